// People who have signed in at the provider: their role and their last sign-in.
import { type RowOf, useList } from "../../api";
import { Badge, type Column, DataTable, EmptyState, PageHead, ShortId, Time, iso, useView } from "../../kit";
import { TenantName } from "../parts/names";

type Person = RowOf<"/v1/admin/people">;

const COLUMNS: readonly Column<Person>[] = [
  { id: "name", header: "Name", sort: "name", cell: (one) => <b>{one.name ?? one.subject}</b>, csv: (one) => one.name },
  { id: "email", header: "Email", sort: "email", cell: (one) => one.email ?? "–", csv: (one) => one.email },
  {
    id: "role",
    header: "Role",
    sort: "role",
    cell: (one) =>
      one.role === null ? <Badge tone="warn">no role</Badge> : <Badge>{one.role.replace("_", " ")}</Badge>,
    csv: (one) => one.role,
  },
  {
    id: "tenant",
    header: "Tenant",
    cell: (one) =>
      one.tenant_id === null ? <span className="faint">operator</span> : <TenantName id={one.tenant_id} />,
    csv: (one) => one.tenant_id,
  },
  {
    id: "signed_in_at",
    header: "Last sign-in",
    sort: "signed_in_at",
    cell: (one) => <Time at={one.signed_in_at} />,
    csv: (one) => iso(one.signed_in_at),
  },
  { id: "id", header: "Id", cell: (one) => <ShortId value={one.id} />, csv: (one) => one.id },
];

export default function People() {
  const view = useView({ search: "", sort: "-signed_in_at" });
  const list = useList("/v1/admin/people", { query: { search: view.values.search, sort: view.values.sort } });
  return (
    <>
      <PageHead
        title="People"
        note="People who have signed in at the provider. The groups of a person decide the role, and are checked again during a session."
      />
      <DataTable
        label="People"
        list={list}
        columns={COLUMNS}
        id={(one) => one.id}
        view={view}
        search="Name, email or id"
        csv
        empty={
          <EmptyState title="No person has signed in at the provider yet">
            <p>
              The section <code>[oidc]</code> of laneway.toml names the provider and the role of each group.
            </p>
          </EmptyState>
        }
      />
    </>
  );
}
