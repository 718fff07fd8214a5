// The list of adapters: owner, served version, location and use.
import { type RowOf, useList, useMay } from "../../api";
import {
  Badge,
  type Column,
  DataTable,
  EmptyState,
  Link,
  LookupFilter,
  PageHead,
  Sparkline,
  TenantLookup,
  Time,
  bytes,
  count,
  iso,
  place,
  useView,
} from "../../kit";
import { USE_DAYS, useAdapterUse, usePlaces } from "./adapterUse";
import "./adapters.css";
import { TenantName } from "../parts/names";

export type Adapter = RowOf<"/v1/admin/adapters">;

export function Owner({ of: adapter }: { of: Adapter }) {
  return adapter.tenant_id === null ? <span className="faint">operator</span> : <TenantName id={adapter.tenant_id} />;
}

export function Shared({ of: adapter }: { of: Adapter }) {
  if (adapter.shared.includes("*")) return <>every tenant</>;
  if (adapter.shared.length === 0) return <span className="faint">its owner</span>;
  return (
    <span>
      {adapter.shared.map((id, index) => (
        <span key={id}>
          {index > 0 && ", "}
          <TenantName id={id} />
        </span>
      ))}
    </span>
  );
}

/** The location of the served version: arena, host memory or disk. */
export function Where({ digest }: { digest: string }) {
  const places = usePlaces();
  if (places === null) return <span className="faint">–</span>;
  if (places.away !== null)
    return (
      <span className="faint" title={places.away}>
        engine unavailable
      </span>
    );
  const found = places.of.get(digest);
  if (found === undefined || found.where === "disk") return <Badge>disk</Badge>;
  return (
    <span title={bytes(found.bytes)}>
      <Badge tone={found.where === "device" ? "good" : "accent"}>{found.where}</Badge>
    </span>
  );
}

function DailyUse({ of: adapter }: { of: Adapter }) {
  const use = useAdapterUse();
  if (use === null) return <span className="faint">–</span>;
  const values = use.of.get(adapter.id);
  if (values === undefined) return <span className="faint">none</span>;
  const mean = Math.round(values.reduce((all, one) => all + one, 0) / USE_DAYS);
  return (
    <span className="spark">
      <Sparkline values={values} label={`Tokens per day over ${USE_DAYS} days: ${values.map(count).join(", ")}`} />
      <span className="num">{count(mean)}</span>
    </span>
  );
}

const COLUMNS: readonly Column<Adapter>[] = [
  {
    id: "name",
    header: "Adapter",
    sort: "name",
    cell: (adapter) => <b>{adapter.name}</b>,
    csv: (adapter) => adapter.name,
  },
  { id: "owner", header: "Owner", cell: (adapter) => <Owner of={adapter} />, csv: (adapter) => adapter.tenant_id },
  {
    id: "shared",
    header: "Allowed tenants",
    wide: true,
    cell: (adapter) => <Shared of={adapter} />,
    csv: (adapter) => adapter.shared.join(" "),
  },
  {
    id: "base",
    header: "Base model",
    sort: "base_model",
    cell: (adapter) => <Link to={place("/models", adapter.base_model)}>{adapter.base_model}</Link>,
    csv: (adapter) => adapter.base_model,
  },
  {
    id: "version",
    header: "Version",
    sort: "version",
    end: true,
    cell: (adapter) => <span className="num">{adapter.version}</span>,
    csv: (adapter) => adapter.version,
  },
  {
    id: "where",
    header: "Location",
    cell: (adapter) => (
      <span className="row">
        <Where digest={adapter.digest} />
        {adapter.pinned && <Badge tone="accent">pinned</Badge>}
      </span>
    ),
  },
  { id: "use", header: `Tokens per day, ${USE_DAYS} days`, cell: (adapter) => <DailyUse of={adapter} /> },
  {
    id: "created",
    header: "Created",
    sort: "created_at",
    wide: true,
    cell: (adapter) => <Time at={adapter.created_at} />,
    csv: (adapter) => iso(adapter.created_at),
  },
];

export default function Adapters() {
  const view = useView({ search: "", sort: "name", tenant: "" });
  const list = useList("/v1/admin/adapters", { query: view.values });
  const upload = useMay()("adapters:write") && (
    <Link to="/adapters/upload" className="button button-main">
      Upload an adapter
    </Link>
  );
  return (
    <>
      <PageHead
        title="Adapters"
        note="LoRA adapters, by the model names that callers send. Versions are promoted and rolled back without downtime."
      >
        {upload}
      </PageHead>
      <DataTable
        label="Adapters"
        list={list}
        columns={COLUMNS}
        id={(adapter) => adapter.id}
        to={(adapter) => place("/adapters", adapter.id)}
        view={view}
        search="Name, id or base model"
        filters={
          <LookupFilter label="Owner">
            <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
          </LookupFilter>
        }
        csv
        empty={
          <EmptyState title="No adapter yet">
            <p>Upload the files that peft saves: adapter_config.json and adapter_model.safetensors.</p>
            {upload}
          </EmptyState>
        }
      />
    </>
  );
}
