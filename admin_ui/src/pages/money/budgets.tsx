// Budgets and limits: budgets, rate limits, alerts and webhooks.
import { useMay, useSession } from "../../api";
import { Dialog, EmptyState, LookupFilter, PageHead, Tabs, TenantLookup, useNewDialog, useView } from "../../kit";
import { BudgetForm } from "./budgetForms";
import { BudgetTable } from "./budgetTable";
import { Alerts, Webhooks } from "./alerts";
import { RateLimits } from "./rateLimits";

export default function BudgetsAndLimits() {
  const may = useMay();
  return (
    <>
      <PageHead
        title="Budgets and limits"
        note="What tenants, projects and keys may use per window and per minute. A hard budget is never exceeded: the highest possible cost of a request is held before it runs."
      />
      <Tabs
        label="Budgets and limits"
        tabs={[
          { id: "budgets", label: "Budgets", content: () => <Budgets /> },
          ...(may("limits:read") ? [{ id: "limits", label: "Limits", content: () => <RateLimits /> }] : []),
          ...(may("alerts:read")
            ? [
                { id: "alerts", label: "Alerts", content: () => <Alerts /> },
                { id: "webhooks", label: "Webhooks", content: () => <Webhooks /> },
              ]
            : []),
        ]}
      />
    </>
  );
}

function Budgets() {
  const view = useView({ search: "", sort: "-created_at", tenant: "" });
  const may = useMay()("money:write");
  const own = useSession().tenant;
  const [creating, setCreating] = useNewDialog();
  const { tenant } = view.values;
  const create = may && (
    <button type="button" className="button button-main" onClick={() => setCreating(true)}>
      New budget
    </button>
  );
  return (
    <>
      <BudgetTable
        label="Budgets"
        query={view.values}
        view={view}
        search="Tenant, project or id"
        filters={
          <>
            {own === null && (
              <LookupFilter label="Tenant">
                <TenantLookup value={tenant} onChange={(value) => view.set({ tenant: value })} />
              </LookupFilter>
            )}
            {create}
          </>
        }
        empty={
          <EmptyState title="No budget yet">
            <p>Only rate limits bound what tenants use.</p>
          </EmptyState>
        }
      />
      <Dialog
        open={creating}
        onClose={() => setCreating(false)}
        title="New budget"
        note="A tenant, a project or a key has one budget per unit and window, and one more per end user. Setting a budget again changes it."
        keep
      >
        <BudgetForm tenant={tenant} onDone={() => setCreating(false)} />
      </Dialog>
    </>
  );
}
