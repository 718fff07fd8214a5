// The audit log as a table: who changed what, with the values before and after. On its own page and on the pages of
// objects.
import { type RowOf, useList } from "../../api";
import {
  type Column,
  DataTable,
  EmptyState,
  Id,
  LookupFilter,
  ShortId,
  TenantLookup,
  TextFilter,
  Time,
  iso,
  useView,
} from "../../kit";

type Line = RowOf<"/v1/admin/audit_log">;

const COLUMNS: readonly Column<Line>[] = [
  { id: "at", header: "When", cell: (line) => <Time at={line.at} absolute />, csv: (line) => iso(line.at) },
  { id: "action", header: "Action", cell: (line) => <b>{line.action}</b>, csv: (line) => line.action },
  { id: "object", header: "Object", cell: (line) => <ShortId value={line.object_id} />, csv: (line) => line.object_id },
  {
    id: "actor",
    header: "By",
    cell: (line) => (line.actor_name === null ? <ShortId value={line.actor} /> : <>{line.actor_name}</>),
    csv: (line) => line.actor_name ?? line.actor,
  },
  {
    id: "changed",
    header: "Changed",
    wide: true,
    cell: (line) => (
      <span className="faint">
        {changes(line)
          .map(([name]) => name)
          .join(", ")}
      </span>
    ),
    csv: (line) =>
      changes(line)
        .map(([name]) => name)
        .join(" "),
  },
];

/** `tenant`, `object`: only lines of that tenant or object. */
export function AuditTable({ tenant, object }: { tenant?: string; object?: string }) {
  const view = useView({ tenant: "", actor: "", action: "", object_id: "", from: "", to: "", open: "" });
  const { tenant: chosen, actor, action, object_id, from, to } = view.values;
  const list = useList("/v1/admin/audit_log", {
    query: {
      tenant: tenant ?? chosen,
      actor,
      action,
      object_id: object ?? object_id,
      start_time: dayStart(from),
      end_time: dayStart(to, 1),
    },
  });
  const filters = (
    <>
      {tenant === undefined && object === undefined && (
        <LookupFilter label="Tenant">
          <TenantLookup value={chosen} onChange={(value) => view.set({ tenant: value })} />
        </LookupFilter>
      )}
      <TextFilter label="Action" view={view} name="action" />
      {object === undefined && <TextFilter label="Object" view={view} name="object_id" />}
      <TextFilter label="By" view={view} name="actor" />
      <TextFilter label="From" view={view} name="from" type="date" />
      <TextFilter label="Until" view={view} name="to" type="date" />
    </>
  );
  return (
    <DataTable
      label="Audit log"
      list={list}
      columns={object === undefined ? COLUMNS : COLUMNS.filter((column) => column.id !== "object")}
      id={(line) => String(line.id)}
      view={view}
      filters={filters}
      detail={(line) => <Change line={line} />}
      csv
      empty={
        <EmptyState title="No changes yet">
          <p>Every administrative write adds a line here, in its own transaction.</p>
        </EmptyState>
      }
    />
  );
}

/** The start in UTC of a day from the address, in Unix seconds, moved by `later` days. */
function dayStart(day: string, later = 0): number | undefined {
  const at = Date.parse(`${day}T00:00:00Z`);
  return Number.isNaN(at) ? undefined : at / 1000 + later * 86_400;
}

function changes({ before, after }: Line): (readonly [string, unknown, unknown])[] {
  const fields = (value: unknown) =>
    typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : value == null
        ? {}
        : { value };
  const [was, is] = [fields(before), fields(after)];
  const names = [...new Set([...Object.keys(was), ...Object.keys(is)])];
  return names.filter((name) => said(was[name]) !== said(is[name])).map((name) => [name, was[name], is[name]] as const);
}

function said(value: unknown): string {
  if (value === undefined) return "";
  return typeof value === "string"
    ? value
    : JSON.stringify(value, (_, one: unknown) => (typeof one === "bigint" ? one.toString() : one));
}

function Change({ line }: { line: Line }) {
  const found = changes(line);
  return (
    <div className="change">
      {found.length === 0 ? (
        <p className="faint">No field changed.</p>
      ) : (
        <table className="table table-small">
          <caption className="sr-only">Changes of audit line {line.id}</caption>
          <thead>
            <tr>
              <th scope="col">Field</th>
              <th scope="col">Before</th>
              <th scope="col">After</th>
            </tr>
          </thead>
          <tbody>
            {found.map(([name, was, is]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>
                  <code className="was">{said(was)}</code>
                </td>
                <td>
                  <code className="is">{said(is)}</code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {line.request_id !== null && (
        <p className="faint">
          Request <Id value={line.request_id} />
        </p>
      )}
    </div>
  );
}
