// Links and the address. Paths are strings such as `/tenants/acme`; filters of a list are in the query.
import { Link as RouterLink, useBlocker, useNavigate, useParams, useRouterState } from "@tanstack/react-router";
import type { AnchorHTMLAttributes, ReactNode } from "react";
import { useCallback, useMemo } from "react";

type Values = Record<string, string>;

/** A link within the console. `to` is a path, `query` the filters of its list. */
export function Link({
  to,
  query,
  children,
  ...rest
}: {
  to: string;
  query?: Values;
  children: ReactNode;
} & Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href">) {
  return (
    <RouterLink to={to} {...(query === undefined ? {} : { search: query })} {...rest}>
      {children}
    </RouterLink>
  );
}

/** `place("/tenants", id)`: a path of escaped parts. */
export function place(...parts: string[]): string {
  const [first = "", ...rest] = parts;
  return [first, ...rest.map(encodeURIComponent)].join("/");
}

export function useGo(): (to: string, query?: Values) => void {
  const navigate = useNavigate();
  return useCallback((to, query) => void navigate({ to, search: query ?? {} }), [navigate]);
}

/** Parameters that are not filters: order, open rows, open tab. */
const LOOKS = new Set(["sort", "open", "tab"]);

export interface View<V extends Values> {
  /** All values; the address overrides the defaults. */
  values: V;
  set: (change: Partial<V>) => void;
  /** Whether any filter differs from its default. */
  narrowed: boolean;
  clear: () => void;
}

/** Filters and order in the address, so that a link shows the same: `useView({ search: "", sort: "slug" })`. Defaults
 * are omitted from the address. A change replaces the history entry. */
export function useView<V extends Values>(defaults: V): View<V> {
  const search = useRouterState({ select: (state) => state.location.search as Values });
  const navigate = useNavigate();
  const given = JSON.stringify(defaults);
  return useMemo(() => {
    const base = JSON.parse(given) as V;
    const values = { ...base };
    for (const name of Object.keys(base)) if (typeof search[name] === "string") (values as Values)[name] = search[name];
    const put = (change: Partial<V>) =>
      void navigate({
        to: ".",
        replace: true,
        resetScroll: false,
        search: (now: Values) => {
          const next: Values = { ...now };
          for (const [name, value] of Object.entries(change)) {
            if (value === undefined || value === base[name]) delete next[name];
            else next[name] = value as string;
          }
          return next;
        },
      });
    const narrowed = Object.keys(base).some((name) => !LOOKS.has(name) && values[name] !== base[name]);
    return { values, set: put, narrowed, clear: () => put(base) };
  }, [search, navigate, given]);
}

/** Whether the page's dialog that creates something is open, and its setter. The address can open it: `?new=1`. */
export function useNewDialog(): [boolean, (open: boolean) => void] {
  const view = useView({ new: "" });
  return [view.values.new === "1", (open) => view.set({ new: open ? "1" : "" })];
}

/** The open dialog of an object's page, and its setter. The address can open one: `?do=rotate`. `allowed`: the dialogs
 * that the role may open. */
export function useActionDialog<Name extends string>(
  allowed: readonly Name[],
): [Name | null, (open: Name | null) => void] {
  const view = useView({ do: "" });
  return [allowed.find((name) => name === view.values.do) ?? null, (open) => view.set({ do: open ?? "" })];
}

/** The parameter `$name` of the page's path. */
export function useParam(name: string): string {
  const params: Values = useParams({ strict: false });
  return params[name] ?? "";
}

/** While `stay` is true, navigation away is blocked and calls `told`; the browser asks before it closes the tab. */
export function useLeaveGuard(stay: boolean, told: () => void): void {
  useBlocker({
    shouldBlockFn: ({ current, next }) => {
      if (current.pathname === next.pathname) return false;
      told();
      return true;
    },
    enableBeforeUnload: stay,
    disabled: !stay,
  });
}
