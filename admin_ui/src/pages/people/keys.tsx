// Keys of all tenants: owner, state and last use.
import { useState } from "react";
import { useList, useMay, useSession } from "../../api";
import {
  Badge,
  type Column,
  DataTable,
  Dialog,
  EmptyState,
  LongName,
  LookupFilter,
  PageHead,
  SelectFilter,
  TenantLookup,
  Time,
  iso,
  moment,
  place,
  useNow,
  useNewDialog,
  useView,
  useZone,
} from "../../kit";
import { KeyActions } from "./bulkKeys";
import { type Key, NewKeyForm } from "./keyForms";
import { ProjectLookup, ProjectName, TenantName, useTenants } from "../parts/names";
import { SecretDialog, type Shown } from "../parts/secret";

const SOON_S = 14 * 86_400;
export const ROLES = ["owner", "operator", "finance", "tenant_admin", "read_only"] as const;

const SKEW_S = 1; // between the clocks of browser and gateway

/** The state, with the names of the list's filter. `now`: of `useNow`, which may be ten seconds late; a key rotated
 * without an overlap expires within that time. */
export function stateOf({ revoked_at, expires_at }: Key, now: number): "revoked" | "expired" | "active" {
  if (revoked_at !== null) return "revoked";
  return expires_at !== null && expires_at <= Math.max(now, Date.now() / 1000 + SKEW_S) ? "expired" : "active";
}

/** A key's state, with a warning before it expires. */
export function KeyState({ of: key }: { of: Key }) {
  const now = useNow();
  const zone = useZone();
  const state = stateOf(key, now);
  if (state === "expired" && key.rotated_to !== null) return <Badge>rotated, refused now</Badge>;
  if (state !== "active") return <Badge>{state}</Badge>;
  if (key.expires_at !== null && key.expires_at - now < SOON_S) {
    return (
      <span title={moment(key.expires_at, zone)}>
        <Badge tone="warn">{key.rotated_to === null ? "expires soon" : "rotated, ends soon"}</Badge>
      </span>
    );
  }
  return <Badge tone="good">active</Badge>;
}

export function KindOf({ of: key }: { of: Key }) {
  if (key.kind !== "admin") return <>{key.kind}</>;
  return (
    <>
      <Badge tone="accent">{key.role?.replace("_", " ") ?? "admin"}</Badge>
      {key.break_glass && <Badge tone="warn">break glass</Badge>}
    </>
  );
}

/** The tier of its requests; faint if it is the tenant's. */
function TierOf({ of: key }: { of: Key }) {
  const tenants = useTenants();
  if (key.kind === "admin") return <span className="faint">–</span>;
  return key.tier !== null ? (
    <>{key.tier}</>
  ) : (
    <span className="faint" title="the tenant's">
      {tenants.get(key.tenant_id ?? "")?.tier ?? "the tenant's"}
    </span>
  );
}

const COLUMNS: readonly Column<Key>[] = [
  {
    id: "name",
    header: "Key",
    sort: "name",
    cell: (key) => (
      <b>
        <LongName text={key.name} />
      </b>
    ),
    csv: (key) => key.name,
  },
  {
    id: "secret",
    header: "Secret",
    cell: (key) => (
      <code className="no-break">
        {key.prefix}…{key.last4}
      </code>
    ),
    csv: (key) => `${key.prefix}…${key.last4}`,
  },
  {
    id: "tenant",
    header: "Tenant",
    cell: (key) =>
      key.tenant_id === null ? <span className="faint">operator</span> : <TenantName id={key.tenant_id} />,
    csv: (key) => key.tenant_id,
  },
  {
    id: "project",
    header: "Project",
    cell: (key) => (key.project_id === null ? <span className="faint">–</span> : <ProjectName id={key.project_id} />),
    csv: (key) => key.project_id,
  },
  { id: "kind", header: "Kind", sort: "kind", cell: (key) => <KindOf of={key} />, csv: (key) => key.role ?? key.kind },
  {
    id: "tier",
    header: "Tier",
    sort: "tier",
    wide: true,
    roomy: true,
    cell: (key) => <TierOf of={key} />,
    csv: (key) => key.tier,
  },
  { id: "state", header: "State", cell: (key) => <KeyState of={key} />, csv: (key) => stateOf(key, Date.now() / 1000) },
  {
    id: "used",
    header: "Last used",
    sort: "last_used_at",
    cell: (key) => <Time at={key.last_used_at} />,
    csv: (key) => iso(key.last_used_at),
  },
  {
    id: "expires",
    header: "Expires",
    sort: "expires_at",
    wide: true,
    cell: (key) => <Time at={key.expires_at} />,
    csv: (key) => iso(key.expires_at),
  },
  {
    id: "created",
    header: "Created",
    sort: "created_at",
    wide: true,
    roomy: true,
    cell: (key) => <Time at={key.created_at} />,
    csv: (key) => iso(key.created_at),
  },
];

export default function Keys() {
  const view = useView({
    search: "",
    sort: "-created_at",
    tenant: "",
    project: "",
    status: "active",
    kind: "",
    role: "",
  });
  const list = useList("/v1/admin/keys", { query: view.values });
  const may = useMay()("keys:write");
  const [creating, setCreating] = useNewDialog();
  const [shown, setShown] = useState<Shown | null>(null);
  const [chosen, setChosen] = useState<ReadonlyMap<string, Key>>(new Map());
  const now = useNow();
  const own = useSession().tenant?.slug;
  const { tenant, project } = view.values;
  const create = may && (
    <button type="button" className="button button-main" onClick={() => setCreating(true)}>
      New key
    </button>
  );
  const filters = (
    <>
      {own === undefined && (
        <LookupFilter label="Tenant">
          <TenantLookup value={tenant} onChange={(value) => view.set({ tenant: value, project: "" })} />
        </LookupFilter>
      )}
      {(own ?? tenant) !== "" && (
        <LookupFilter label="Project">
          <ProjectLookup tenant={own ?? tenant} value={project} onChange={(value) => view.set({ project: value })} />
        </LookupFilter>
      )}
      <SelectFilter
        label="State"
        view={view}
        name="status"
        options={[
          ["active", "Active"],
          ["expiring", "Expires soon"],
          ["expired", "Expired"],
          ["revoked", "Revoked"],
          ["", "Any"],
        ]}
      />
      <SelectFilter label="Kind" view={view} name="kind" options={[["", "Any"], "live", "test", "admin"]} />
      <SelectFilter
        label="Role"
        view={view}
        name="role"
        options={[["", "Any"], ...ROLES.map((role) => [role, role.replace("_", " ")] as const)]}
      />
    </>
  );
  return (
    <>
      <PageHead
        title="Keys"
        note="Keys that call or administer Laneway. A secret is shown once, when its key is created; afterwards only its last four characters are shown."
      >
        {create}
      </PageHead>
      <DataTable
        label="Keys"
        list={list}
        columns={COLUMNS}
        id={(key) => key.id}
        to={(key) => place("/keys", key.id)}
        view={view}
        search="Name, id or last four"
        filters={filters}
        csv
        {...(may
          ? {
              selection: {
                rows: chosen,
                set: setChosen,
                name: (key: Key) => `${key.name} …${key.last4}`,
                may: (key: Key) => stateOf(key, now) === "active",
                actions: <KeyActions keys={[...chosen.values()]} onDone={() => setChosen(new Map())} />,
              },
            }
          : {})}
        empty={
          <EmptyState title="No active key">
            <p>Requests need an active key.</p>
            {create}
          </EmptyState>
        }
      />
      <Dialog open={creating} onClose={() => setCreating(false)} title="New key" keep>
        <NewKeyForm
          tenant={tenant}
          onDone={(made) => {
            setCreating(false);
            setShown(made);
          }}
          onCancel={() => setCreating(false)}
        />
      </Dialog>
      <SecretDialog shown={shown} onStored={() => setShown(null)} />
    </>
  );
}
