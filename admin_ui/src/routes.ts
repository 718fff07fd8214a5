// Every page of the console. A page is a line here and a file in pages/, loaded when it is first opened; the side
// navigation, the command palette and the router are made from this list.
import type { ComponentType } from "react";

export const GROUPS = ["Now", "Serve", "People", "Money", "Record"] as const;

export interface Page {
  /** Below /admin; `$name` is a parameter, read with `useParam("name")`. */
  path: string;
  title: string;
  /** Where it stands in the navigation, in this list's order; a page without is reached from another. */
  group?: (typeof GROUPS)[number];
  /** The permission without which it is neither shown nor opened. */
  needs?: string;
  /** Its module's default export. */
  load: () => Promise<{ default: ComponentType }>;
}

// prettier-ignore: one page, one line.
export const PAGES: readonly Page[] = [
  { path: "/", title: "Overview", group: "Now", needs: "usage:read", load: () => import("./pages/overview") },
  { path: "/live", title: "Live engine", group: "Now", needs: "engine:read", load: () => import("./pages/live") },
  {
    path: "/requests",
    title: "Requests",
    group: "Now",
    needs: "requests:read",
    load: () => import("./pages/requests"),
  },
  { path: "/requests/$request", title: "Request", needs: "requests:read", load: () => import("./pages/request") },
  { path: "/health", title: "Health", group: "Now", needs: "engine:read", load: () => import("./pages/health") },
  { path: "/connect", title: "Connect", group: "Serve", load: () => import("./pages/connect") },
  {
    path: "/playground",
    title: "Playground",
    group: "Serve",
    needs: "keys:write",
    load: () => import("./pages/playground"),
  },
  { path: "/tenants", title: "Tenants", group: "People", needs: "people:read", load: () => import("./pages/tenants") },
  { path: "/tenants/$tenant", title: "Tenant", needs: "people:read", load: () => import("./pages/tenant") },
  { path: "/tiers", title: "Tiers", group: "Serve", needs: "engine:read", load: () => import("./pages/tiers") },
  { path: "/models", title: "Models", group: "Serve", needs: "models:read", load: () => import("./pages/models") },
  { path: "/models/$model", title: "Model", needs: "models:read", load: () => import("./pages/model") },
  {
    path: "/adapters",
    title: "Adapters",
    group: "Serve",
    needs: "adapters:read",
    load: () => import("./pages/adapters"),
  },
  {
    path: "/adapters/upload",
    title: "Upload an adapter",
    needs: "adapters:write",
    load: () => import("./pages/adapterUpload"),
  },
  { path: "/adapters/$adapter", title: "Adapter", needs: "adapters:read", load: () => import("./pages/adapter") },
  { path: "/aliases", title: "Aliases", group: "Serve", needs: "models:read", load: () => import("./pages/aliases") },
  { path: "/keys", title: "Keys", group: "People", needs: "keys:read", load: () => import("./pages/keys") },
  { path: "/keys/$key", title: "Key", needs: "keys:read", load: () => import("./pages/key") },
  {
    path: "/budgets",
    title: "Budgets and limits",
    group: "Money",
    needs: "money:read",
    load: () => import("./pages/budgets"),
  },
  {
    path: "/usage",
    title: "Usage and costs",
    group: "Money",
    needs: "usage:read",
    load: () => import("./pages/usage"),
  },
  { path: "/billing", title: "Billing", group: "Money", needs: "billing:read", load: () => import("./pages/billing") },
  {
    path: "/billing/invoices/$invoice",
    title: "Invoice",
    needs: "billing:read",
    load: () => import("./pages/invoice"),
  },
  { path: "/audit", title: "Audit log", group: "Record", needs: "audit:read", load: () => import("./pages/audit") },
];
