// Parts that the table of budgets, their forms and their alerts share.
import type { RowOf } from "../../api";
import { type Exact, brief, rounded } from "../../kit";
import { KeyName, ProjectName, TenantName, useTenants } from "../parts/names";

export type Budget = RowOf<"/v1/admin/budgets">;

export const BUDGETS = ["/v1/admin/budgets", "/v1/admin/overview", "/v1/admin/audit_log"];

/** The scope of a budget or limit: tenant, project or key, with links. */
export function ScopeOf({ of }: { of: { scope: Budget["scope"]; scope_id: string; tenant_id: string } }) {
  if (of.scope === "tenant")
    return (
      <b>
        <TenantName id={of.tenant_id} />
      </b>
    );
  return (
    <span>
      <TenantName id={of.tenant_id} /> <span className="faint">›</span>{" "}
      {of.scope === "key" ? (
        <>
          key <KeyName id={of.scope_id} />
        </>
      ) : (
        <>
          project <ProjectName id={of.scope_id} />
        </>
      )}
    </span>
  );
}

/** Formats an amount of a budget; `short`: tokens without their unit. */
export function useSay(): (of: { unit: Budget["unit"]; tenant_id: string }, amount: Exact, short?: boolean) => string {
  const tenants = useTenants();
  return ({ unit, tenant_id }, amount, short) => {
    if (unit === "tokens") return short ? brief(amount) : `${brief(amount)} tokens`;
    return `${rounded(amount)} ${tenants.get(tenant_id)?.currency ?? ""}`.trim();
  };
}
