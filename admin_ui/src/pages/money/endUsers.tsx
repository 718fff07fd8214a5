// The end users of a budget for each end user, the most used first.
import { useState } from "react";
import { type RowOf, useList } from "../../api";
import { Badge, type Column, DataTable, EmptyState, Meter, SearchBox, Time, iso } from "../../kit";
import { type Budget, useSay } from "./budgetParts";

type EndUser = RowOf<"/v1/admin/budgets/{budget_id}/end_users">;

const ID_CHARS = 12; // of the id of an end user's budget

export function EndUsers({ of: budget }: { of: Budget }) {
  const [name, setName] = useState("");
  const list = useList(
    "/v1/admin/budgets/{budget_id}/end_users",
    { path: { budget_id: budget.id }, query: { sort: "-used", end_user: name } },
    { everyMs: 10_000 },
  );
  const say = useSay();
  const columns: Column<EndUser>[] = [
    {
      id: "id",
      header: "End user's budget",
      cell: (one) =>
        one.shared ? <Badge tone="warn">shared by all others</Badge> : <code>{one.id.slice(0, ID_CHARS)}…</code>,
      csv: (one) => one.id,
    },
    {
      id: "meter",
      header: "Use",
      cell: (one) => (
        <Meter
          posted={one.used}
          held={one.held}
          limit={one.limit_amount}
          say={(amount) => say(budget, amount, true)}
          label={`The ${budget.period} budget of an end user`}
        />
      ),
      csv: (one) => one.used,
    },
    {
      id: "created",
      header: "First request",
      wide: true,
      cell: (one) => <Time at={one.created_at} />,
      csv: (one) => iso(one.created_at),
    },
  ];
  return (
    <DataTable
      label="End users"
      list={list}
      columns={columns}
      id={(one) => one.id}
      filters={<SearchBox label="End user's exact name" hint="Exact name" value={name} onChange={setName} />}
      empty={
        <EmptyState title={name === "" ? "No end user yet" : "No request named this end user"}>
          <p>
            Requests name an end user with <code>safety_identifier</code>, <code>user</code> or{" "}
            <code>metadata.user_id</code>.
          </p>
        </EmptyState>
      }
    />
  );
}
