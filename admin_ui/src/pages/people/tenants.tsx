// The list of tenants.
import { useState } from "react";
import { type RowOf, useGet, useList, useMay, useSession } from "../../api";
import {
  Badge,
  type Column,
  DataTable,
  Dialog,
  EmptyState,
  Link,
  LongName,
  Money,
  PageHead,
  SelectFilter,
  Time,
  iso,
  place,
  sum,
  useGo,
  useNewDialog,
  useNow,
  useView,
} from "../../kit";
import { TenantActions } from "./bulkKeys";
import { NewTenantForm } from "./tenantForms";

type Tenant = RowOf<"/v1/admin/tenants">;

const COST_DAYS = 30;
const DAY_S = 86_400;

/** What a tenant's usage and corrections of the last COST_DAYS UTC days cost; all tenants share one query. */
function Cost({ of: tenant }: { of: Tenant }) {
  const today = Math.floor(useNow() / DAY_S);
  const found = useGet("/v1/organization/costs", {
    query: { start_time: (today - COST_DAYS + 1) * DAY_S, bucket_width: "all", group_by: ["tenant_id"] },
  });
  const costs = found.data;
  if (costs === undefined)
    return found.error === null ? (
      <span className="faint">…</span>
    ) : (
      <span className="faint" title={found.error.message}>
        not available
      </span>
    );
  const own = costs.data.flatMap((bucket) => bucket.results).filter((row) => row.tenant_id === tenant.id);
  // The answer has a bounded number of tenants: a tenant that is not in it may have usage all the same.
  if (own.length === 0 && costs.has_more) return <span className="faint">–</span>;
  return <Money picos={sum(own.map((row) => row.amount.picos))} currency={tenant.currency} short />;
}

const COLUMNS: readonly Column<Tenant>[] = [
  {
    id: "slug",
    header: "Tenant",
    sort: "slug",
    cell: (tenant) => (
      <b>
        <LongName text={tenant.slug} />
      </b>
    ),
    csv: (tenant) => tenant.slug,
  },
  {
    id: "name",
    header: "Name",
    sort: "name",
    cell: (tenant) => <LongName text={tenant.name} />,
    csv: (tenant) => tenant.name,
  },
  { id: "status", header: "Status", cell: (tenant) => <Status of={tenant} />, csv: (tenant) => tenant.status },
  { id: "tier", header: "Highest tier", cell: (tenant) => tenant.tier, csv: (tenant) => tenant.tier },
  {
    id: "weight",
    header: "Share weight",
    end: true,
    wide: true,
    cell: (tenant) => <span className="num">{tenant.share_weight}</span>,
    csv: (tenant) => tenant.share_weight,
  },
  {
    id: "currency",
    header: "Currency",
    wide: true,
    cell: (tenant) => tenant.currency,
    csv: (tenant) => tenant.currency,
  },
  {
    id: "zone",
    header: "Time zone",
    wide: true,
    cell: (tenant) => tenant.time_zone,
    csv: (tenant) => tenant.time_zone,
  },
  {
    id: "cost",
    header: `Cost, ${COST_DAYS} days`,
    end: true,
    cell: (tenant) => <Cost of={tenant} />,
  },
  {
    id: "created",
    header: "Created",
    sort: "created_at",
    cell: (tenant) => <Time at={tenant.created_at} />,
    csv: (tenant) => iso(tenant.created_at),
  },
];

export function Status({ of }: { of: { status: Tenant["status"] } }) {
  return <Badge tone={of.status === "active" ? "good" : "warn"}>{of.status}</Badge>;
}

export default function Tenants() {
  const view = useView({ search: "", status: "", sort: "slug" });
  const list = useList("/v1/admin/tenants", { query: view.values });
  const may = useMay();
  const go = useGo();
  const [creating, setCreating] = useNewDialog();
  const operator = useSession().tenant === null;
  const [chosen, setChosen] = useState<ReadonlyMap<string, Tenant>>(new Map());
  const create = operator && may("people:write") && (
    <>
      <button type="button" className="button" onClick={() => setCreating(true)}>
        New tenant
      </button>
      {may("engine:write") && (
        <Link to="/new-customer" className="button button-main">
          New customer
        </Link>
      )}
    </>
  );
  return (
    <>
      <PageHead title="Tenants" note="Who may use Laneway, up to which tier, and with which share weight.">
        {create}
      </PageHead>
      <DataTable
        label="Tenants"
        list={list}
        columns={COLUMNS}
        id={(tenant) => tenant.id}
        to={(tenant) => place("/tenants", tenant.slug)}
        view={view}
        search="Name or slug"
        filters={
          <SelectFilter label="Status" view={view} name="status" options={[["", "Any"], "active", "suspended"]} />
        }
        csv
        {...(operator && may("people:write")
          ? {
              selection: {
                rows: chosen,
                set: setChosen,
                name: (tenant: Tenant) => tenant.slug,
                actions: <TenantActions tenants={[...chosen.values()]} onDone={() => setChosen(new Map())} />,
              },
            }
          : {})}
        empty={
          <EmptyState title="No tenant yet">
            <p>A tenant has projects, keys and budgets. Create the tenant first, then its keys.</p>
            {create}
          </EmptyState>
        }
      />
      <Dialog open={creating} onClose={() => setCreating(false)} title="New tenant" keep>
        <NewTenantForm onDone={(slug) => go(place("/tenants", slug))} onCancel={() => setCreating(false)} />
      </Dialog>
    </>
  );
}
