// All pages of the console. A page is a line here and a file in pages/, loaded when it is first opened. The navigation,
// the command palette and the router are built from this list.
import type { ComponentType } from "react";

export const GROUPS = ["Now", "Serve", "People", "Money", "Record"] as const;

export interface Page {
  /** Below /admin; `$name` is a parameter, read with `useParam("name")`. */
  path: string;
  title: string;
  /** Its group in the navigation; a page without a group is reached from another page. */
  group?: (typeof GROUPS)[number];
  /** The permission that the page requires. */
  needs?: string;
  /** Its module's default export. */
  load: () => Promise<{ default: ComponentType }>;
}

// One page, one line.
// prettier-ignore
export const PAGES: readonly Page[] = [
  { path: "/", title: "Overview", group: "Now", needs: "usage:read", load: () => import("./pages/now/overview") },
  { path: "/engines", title: "Engines", group: "Now", needs: "engine:read", load: () => import("./pages/now/engines") },
  { path: "/live", title: "Live engine", group: "Now", needs: "engine:read", load: () => import("./pages/now/live") },
  { path: "/requests", title: "Requests", group: "Now", needs: "requests:read", load: () => import("./pages/now/requests") },
  { path: "/requests/$request", title: "Request", needs: "requests:read", load: () => import("./pages/now/request") },
  { path: "/batches", title: "Batches", group: "Now", needs: "batches:read", load: () => import("./pages/now/batches") },
  { path: "/batches/$batch", title: "Batch", needs: "batches:read", load: () => import("./pages/now/batch") },
  { path: "/files", title: "Files", group: "Now", needs: "batches:read", load: () => import("./pages/now/files") },
  { path: "/errors", title: "Errors", group: "Now", needs: "requests:read", load: () => import("./pages/now/errors") },
  { path: "/health", title: "Health", group: "Now", needs: "engine:read", load: () => import("./pages/now/health") },
  { path: "/connect", title: "Connect", group: "Serve", load: () => import("./pages/serve/connect") },
  { path: "/playground", title: "Playground", group: "Serve", needs: "keys:write", load: () => import("./pages/serve/playground") },
  { path: "/tiers", title: "Tiers", group: "Serve", needs: "engine:read", load: () => import("./pages/serve/tiers") },
  { path: "/sla", title: "SLA", group: "Serve", needs: "usage:read", load: () => import("./pages/serve/sla") },
  { path: "/models", title: "Models", group: "Serve", needs: "models:read", load: () => import("./pages/serve/models") },
  { path: "/models/$model", title: "Model", needs: "models:read", load: () => import("./pages/serve/model") },
  { path: "/adapters", title: "Adapters", group: "Serve", needs: "adapters:read", load: () => import("./pages/serve/adapters") },
  { path: "/adapters/upload", title: "Upload an adapter", needs: "adapters:write", load: () => import("./pages/serve/adapterUpload") },
  { path: "/adapters/$adapter", title: "Adapter", needs: "adapters:read", load: () => import("./pages/serve/adapter") },
  { path: "/aliases", title: "Aliases", group: "Serve", needs: "models:read", load: () => import("./pages/serve/aliases") },
  { path: "/tenants", title: "Tenants", group: "People", needs: "people:read", load: () => import("./pages/people/tenants") },
  // engine:write: a tenant's admins have people:write, and tenants are created by operators.
  { path: "/new-customer", title: "New customer", needs: "engine:write", load: () => import("./pages/people/newCustomer") },
  { path: "/tenants/$tenant", title: "Tenant", needs: "people:read", load: () => import("./pages/people/tenant") },
  // engine:read: a tenant's admins have keys:read, and people are of all tenants.
  { path: "/people", title: "People", group: "People", needs: "engine:read", load: () => import("./pages/people/people") },
  { path: "/keys", title: "Keys", group: "People", needs: "keys:read", load: () => import("./pages/people/keys") },
  { path: "/authenticator", title: "Authenticator app", load: () => import("./pages/people/authenticator") },
  { path: "/keys/$key", title: "Key", needs: "keys:read", load: () => import("./pages/people/key") },
  { path: "/budgets", title: "Budgets and limits", group: "Money", needs: "money:read", load: () => import("./pages/money/budgets") },
  { path: "/usage", title: "Usage and costs", group: "Money", needs: "usage:read", load: () => import("./pages/money/usage") },
  { path: "/billing", title: "Billing", group: "Money", needs: "billing:read", load: () => import("./pages/money/billing") },
  { path: "/billing/invoices/$invoice", title: "Invoice", needs: "billing:read", load: () => import("./pages/money/invoice") },
  { path: "/billing/credits/$correction", title: "Credit note", needs: "billing:read", load: () => import("./pages/money/creditNote") },
  // engine:read: a tenant's admins have billing:read, and these pages are about all tenants.
  { path: "/billing-profiles", title: "Billing profiles", group: "Money", needs: "engine:read", load: () => import("./pages/money/profiles") },
  { path: "/connectors", title: "Connectors", group: "Money", needs: "engine:read", load: () => import("./pages/money/connectors") },
  { path: "/audit", title: "Audit log", group: "Record", needs: "audit:read", load: () => import("./pages/record/audit") },
];
