// The audit log as a table: who changed what, with the values before and after. On its own page and on the pages of
// objects.
import { type RowOf, useList } from "../../api";
import {
  type Column,
  DataTable,
  EmptyState,
  Id,
  Link,
  LongName,
  LookupFilter,
  ShortId,
  TenantLookup,
  TextFilter,
  Time,
  iso,
  place,
  useView,
} from "../../kit";
import { ActionLookup, ActorLookup } from "./auditFilters";

type Line = RowOf<"/v1/admin/audit_log">;

const COLUMNS: readonly Column<Line>[] = [
  { id: "at", header: "When", cell: (line) => <Time at={line.at} absolute />, csv: (line) => iso(line.at) },
  { id: "action", header: "Action", cell: (line) => <b>{line.action}</b>, csv: (line) => line.action },
  {
    id: "object",
    header: "Object",
    cell: (line) => <Named id={line.object_id} name={line.object_name} />,
    csv: (line) => line.object_id,
  },
  {
    id: "object_name",
    header: "Object name",
    hidden: true,
    cell: () => null,
    csv: (line) => line.object_name,
  },
  {
    id: "actor",
    header: "By",
    cell: (line) => <Named id={line.actor} name={line.actor_name} />,
    csv: (line) => line.actor_name ?? line.actor,
  },
  { id: "actor_id", header: "Actor id", hidden: true, cell: () => null, csv: (line) => line.actor },
  {
    id: "changed",
    header: "Changed",
    wide: true,
    cell: (line) => <span className="faint">{changedSaid(line)}</span>,
    csv: (line) =>
      changes(line)
        .map(([name]) => name)
        .join(" "),
  },
];

/** The pages of objects by the first letters of their ids. */
const PAGES: Record<string, string> = {
  ten: "/tenants",
  key: "/keys",
  ada: "/adapters",
  inv: "/billing/invoices",
  cor: "/billing/credits",
};

/** An object or an actor: its name, as a link to its page if it has one. */
function Named({ id, name }: { id: string; name: string | null }) {
  const page = PAGES[id.split("_")[0] ?? ""];
  const said = name === null ? <ShortId value={id} /> : <LongName text={name} />;
  return page === undefined || !ID.test(id) ? said : <Link to={place(page, id)}>{said}</Link>;
}

const ID = /^[a-z]{3}_[0-9a-f]{32}$/;
const FEW_FIELDS = 4; // more field names do not fit in a cell; the details have all

/** The last words of the actions that create and that remove their object. Other actions have lines without the values
 * before or after too: `session.refuse`, `period.close`. */
const CREATING = new Set([
  "add",
  "begin",
  "create",
  "enrol",
  "make",
  "publish",
  "record",
  "register",
  "set",
  "version",
]);
const REMOVING = new Set(["delete", "end", "remove", "remove_version"]);

/** The fields that differ, in short: "created" if the action created the object, "removed" if it removed the object. */
function changedSaid(line: Line): string {
  const names = changes(line).map(([name]) => name);
  const verb = line.action.slice(line.action.lastIndexOf(".") + 1);
  if (names.length > 0 && line.before === null && CREATING.has(verb)) return "created";
  if (names.length > 0 && line.after === null && REMOVING.has(verb)) return "removed";
  return names.length <= FEW_FIELDS
    ? names.join(", ")
    : `${names.slice(0, FEW_FIELDS).join(", ")} and ${names.length - FEW_FIELDS} more`;
}

/** `tenant`, `object`: only lines of that tenant or object. */
export function AuditTable({ tenant, object }: { tenant?: string; object?: string }) {
  const view = useView({ search: "", tenant: "", actor: "", action: "", object_id: "", from: "", to: "", open: "" });
  const { search, tenant: chosen, actor, action, object_id, from, to } = view.values;
  const list = useList("/v1/admin/audit_log", {
    query: {
      search,
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
      <LookupFilter label="Action">
        <ActionLookup value={action} onChange={(value) => view.set({ action: value })} />
      </LookupFilter>
      <LookupFilter label="By">
        <ActorLookup value={actor} onChange={(value) => view.set({ actor: value })} />
      </LookupFilter>
      {object === undefined && <TextFilter label="Object id" view={view} name="object_id" />}
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
      search="Part of an action, id or name"
      filters={filters}
      detail={(line) => <Change line={line} />}
      csv
      empty={
        <EmptyState title="No changes yet">
          <p>Every administrative write adds a line here; refused sign-ins with an admin key do too, up to a limit.</p>
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
