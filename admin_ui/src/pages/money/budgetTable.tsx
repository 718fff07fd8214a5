// The table of budgets: posted, held and left, the projection, and actions.
import { type ReactNode, useState } from "react";
import { api, useList, useMay, useSession, useWrite } from "../../api";
import {
  Badge,
  type Column,
  ConfirmDialog,
  DataTable,
  Dialog,
  Meter,
  Time,
  type View,
  count,
  decimal,
  exact,
  iso,
  percent,
  toast,
  useNow,
} from "../../kit";
import { BudgetForm } from "./budgetForms";
import { BUDGETS, type Budget, ScopeOf, useSay } from "./budgetParts";
import { EndUsers } from "./endUsers";

const DAY_S = 86_400;

/** The API's projection: when the budget runs out, or its use at the end of the window. */
export function Outlook({ of: budget }: { of: Budget }) {
  const now = useNow();
  const say = useSay();
  if (budget.per_end_user) return <span className="faint">–</span>;
  if (exact(budget.left) <= 0n)
    return (
      <Badge tone={budget.kind === "hard" ? "bad" : "warn"}>
        {budget.kind === "hard" ? "used up, refusing" : "over limit"}
      </Badge>
    );
  const { run_out_at, projected } = budget;
  if (run_out_at !== null) {
    const soon = run_out_at - now < 7 * DAY_S;
    return budget.resets_at === null && !soon ? (
      <span>
        lasts until <Time at={run_out_at} absolute detail="day" />
      </span>
    ) : (
      <span className="warn-word">
        runs out <Time at={run_out_at} />
      </span>
    );
  }
  if (projected === null) return <span className="faint">no run-out projected</span>;
  return (
    <span className="num">
      {say(budget, projected)}{" "}
      <span className="faint">{Math.round(percent(projected, budget.limit_amount))} % at window end</span>
    </span>
  );
}

/** The meter, with the exact amounts as title. */
function BudgetUse({ of: budget }: { of: Budget }) {
  const say = useSay();
  const whole = budget.unit === "money" ? decimal : count;
  return (
    <div
      className="budget-use"
      title={`posted ${whole(budget.used)}, held ${whole(budget.held)}, left ${whole(budget.left)} of ${whole(budget.limit_amount)}`}
    >
      <Meter
        posted={budget.used}
        held={budget.held}
        limit={budget.limit_amount}
        say={(amount) => say(budget, amount, true)}
        label={`The ${budget.period} budget`}
      />
    </div>
  );
}

/** Opens the end users of a budget for each end user. */
function EndUserCounts({ of: budget, onOpen }: { of: Budget; onOpen: () => void }) {
  const say = useSay();
  const near = budget.end_users_near ?? 0;
  return (
    <span className="budget-use">
      {say(budget, budget.limit_amount)} each{" "}
      <button type="button" className="button button-quiet" onClick={onOpen}>
        {count(budget.end_users ?? 0)} {budget.end_users === 1 ? "end user" : "end users"}
      </button>{" "}
      {near > 0 && <span className="warn-word num">{count(near)} above 80 %</span>}
    </span>
  );
}

export function BudgetTable({
  label,
  query,
  view,
  search,
  filters,
  empty,
}: {
  label: string;
  query: Record<string, string>;
  view?: View<Record<string, string>>;
  search?: string;
  filters?: ReactNode;
  empty: ReactNode;
}) {
  const list = useList("/v1/admin/budgets", { query: { ...query } }, { everyMs: 10_000 });
  const may = useMay()("money:write");
  const own = useSession().tenant;
  const say = useSay();
  const [edited, setEdited] = useState<Budget | null>(null);
  const [removed, setRemoved] = useState<Budget | null>(null);
  const [opened, setOpened] = useState<Budget | null>(null);
  const remove = useWrite(
    (budget_id: string) => api.delete("/v1/admin/budgets/{budget_id}", { path: { budget_id } }),
    BUDGETS,
  );
  const sorted = view !== undefined;
  const columns: Column<Budget>[] = [
    {
      id: "of",
      header: "Scope",
      ...(sorted ? { sort: "scope" } : {}),
      cell: (budget) => <ScopeOf of={budget} />,
      csv: (budget) => budget.scope_id,
    },
    {
      id: "period",
      header: "Window",
      ...(sorted ? { sort: "period" } : {}),
      cell: (budget) => (
        <span>
          {budget.period === "total" ? "all time" : budget.period}{" "}
          <span className="faint">
            {budget.unit}
            {budget.per_end_user && ", each end user"}
          </span>
        </span>
      ),
      csv: (budget) => budget.period,
    },
    { id: "unit", header: "Unit", hidden: true, cell: () => null, csv: (budget) => budget.unit },
    { id: "end_users", header: "End users", hidden: true, cell: () => null, csv: (budget) => budget.end_users },
    {
      id: "kind",
      header: "Kind",
      ...(sorted ? { sort: "kind" } : {}),
      cell: (budget) => <Badge tone={budget.kind === "hard" ? "accent" : "plain"}>{budget.kind}</Badge>,
      csv: (budget) => budget.kind,
    },
    {
      id: "meter",
      header: "Use",
      cell: (budget) =>
        budget.per_end_user ? (
          <EndUserCounts of={budget} onOpen={() => setOpened(budget)} />
        ) : (
          <BudgetUse of={budget} />
        ),
      csv: (budget) => budget.limit_amount,
    },
    ...(["used", "held", "left"] as const).map((name) => ({
      id: name,
      header: name,
      hidden: true,
      cell: () => null,
      csv: (budget: Budget) => budget[name],
    })),
    { id: "outlook", header: "Projection", cell: (budget) => <Outlook of={budget} /> },
    {
      id: "alerts",
      header: "Alerts at",
      wide: true,
      roomy: true,
      cell: (budget) =>
        budget.thresholds.length === 0 ? (
          <span className="faint">–</span>
        ) : (
          <span className="num">{budget.thresholds.join(", ")} %</span>
        ),
      csv: (budget) => budget.thresholds.join(" "),
    },
    {
      id: "resets",
      header: "Resets",
      wide: true,
      cell: (budget) => <Time at={budget.resets_at} />,
      csv: (budget) => iso(budget.resets_at),
    },
  ];
  if (may) {
    columns.push({
      id: "do",
      header: "Change",
      end: true,
      // Only operators may change the budget of a whole tenant.
      cell: (budget) =>
        (own === null || budget.scope !== "tenant") && (
          <span className="row-actions">
            <button
              type="button"
              className="button button-quiet"
              aria-label={`Edit ${nameOf(budget)}`}
              onClick={() => setEdited(budget)}
            >
              Edit
            </button>
            <button
              type="button"
              className="button button-quiet"
              aria-label={`Remove ${nameOf(budget)}`}
              onClick={() => setRemoved(budget)}
            >
              Remove
            </button>
          </span>
        ),
    });
  }
  return (
    <>
      <DataTable
        label={label}
        list={list}
        columns={columns}
        id={(budget) => budget.id}
        {...(view === undefined ? {} : { view })}
        {...(search === undefined ? {} : { search })}
        filters={filters}
        csv={sorted}
        empty={empty}
      />
      <Dialog open={edited !== null} onClose={() => setEdited(null)} title="Edit the budget" keep>
        {edited !== null && <BudgetForm of={edited} onDone={() => setEdited(null)} />}
      </Dialog>
      <Dialog
        open={opened !== null}
        onClose={() => setOpened(null)}
        title="End users"
        note="The most used budgets first. Names of end users are not stored: search for an end user by its exact name."
        wide
      >
        {opened !== null && <EndUsers of={opened} />}
      </Dialog>
      <ConfirmDialog
        open={removed !== null}
        onClose={() => setRemoved(null)}
        title="Remove this budget?"
        verb="Remove"
        action={async () => {
          if (removed === null) return;
          await remove.mutateAsync(removed.id);
          toast("The budget is removed.");
        }}
      >
        {removed !== null && (
          <>
            The {nameOf(removed)} of <ScopeOf of={removed} />, {say(removed, removed.limit_amount)}, is no longer
            enforced from the next request. Recorded usage does not change.
          </>
        )}
      </ConfirmDialog>
    </>
  );
}

function nameOf(budget: Budget): string {
  const each = budget.period === "total" ? "total" : `${budget.period}'s`;
  return `${each} budget in ${budget.unit}${budget.per_end_user ? " of each end user" : ""}`;
}
