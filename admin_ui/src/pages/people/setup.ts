// The parts of a tenant's setup that exist: for the New customer page, and for the note on the tenant's page.
import { type RowOf, useGet, useMay } from "../../api";

type Rows<P extends "/v1/admin/projects" | "/v1/admin/keys" | "/v1/admin/budgets" | "/v1/admin/limits"> =
  readonly RowOf<P>[];

export interface Setup {
  projects: Rows<"/v1/admin/projects">;
  /** Active keys that call models. */
  keys: Rows<"/v1/admin/keys">;
  budgets: Rows<"/v1/admin/budgets">;
  limits: Rows<"/v1/admin/limits">;
}

/** A secret that only this page knows. `stored`: it is not shown any more. */
export interface NewSecret {
  id: string;
  name: string;
  secret: string;
  stored: boolean;
}

const FIRST = 50;

/** Null until all parts are loaded, or if the role may not read all parts. `tenant`: a slug; blank: no query. */
export function useSetup(tenant: string): Setup | null {
  const may = useMay();
  const query = { tenant, limit: FIRST };
  const asking = (area: string) => ({ enabled: tenant !== "" && may(`${area}:read`) });
  const projects = useGet("/v1/admin/projects", { query }, asking("people")).data;
  const keys = useGet("/v1/admin/keys", { query: { ...query, status: "active" } }, asking("keys")).data;
  const budgets = useGet("/v1/admin/budgets", { query }, asking("money")).data;
  const limits = useGet("/v1/admin/limits", { query }, asking("limits")).data;
  if (tenant === "") return { projects: [], keys: [], budgets: [], limits: [] };
  if (projects === undefined || keys === undefined || budgets === undefined || limits === undefined) return null;
  return {
    projects: projects.data,
    keys: keys.data.filter((key) => key.kind !== "admin"),
    budgets: budgets.data,
    limits: limits.data.filter(hasRateLimit),
  };
}

/** A row may have quotas only. */
function hasRateLimit(own: RowOf<"/v1/admin/limits">): boolean {
  return own.requests_per_minute !== null || own.tokens_per_minute !== null || own.concurrency !== null;
}

/** The parts of a setup that are missing. */
export function missingOf(setup: Setup): string[] {
  return [
    ...(setup.keys.length === 0 ? ["an active key"] : []),
    ...(setup.budgets.length === 0 ? ["a budget"] : []),
    ...(setup.limits.length === 0 ? ["rate limits of its own"] : []),
  ];
}
