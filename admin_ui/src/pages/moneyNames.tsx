// What an identifier is called: tenants by slug, keys, projects and adapters by name. Asked once, and kept.
import { useQueries, useQuery } from "@tanstack/react-query";
import { api, useMay } from "../api";
import { Link, ShortId, place } from "../kit";

const KEPT_MS = 300_000;
const FIRST = 500;

type Kind = "tenant" | "project" | "key" | "adapter";
const PATHS = { tenant: "/v1/admin/tenants", project: "/v1/admin/projects", key: "/v1/admin/keys", adapter: "/v1/admin/adapters" } as const;
const NEEDS = { tenant: "people:read", project: "people:read", key: "keys:read", adapter: "adapters:read" } as const;

interface Named {
  id: string;
  name: string;
  slug?: string;
  last4?: string;
}

function said(kind: Kind, row: Named): string {
  if (kind === "tenant") return row.slug ?? row.name;
  return kind === "key" && row.last4 !== undefined ? `${row.name} …${row.last4}` : row.name;
}

/** The names of these, by id; one that is not known (yet) is missing. Projects have no address of their own, so their
 * first five hundred are asked for at once. */
export function useNames(kind: Kind, ids: readonly (string | null)[]): Map<string, string> {
  const may = useMay()(NEEDS[kind]);
  const wanted = [...new Set(ids)].filter((id): id is string => id !== null && id !== "");
  const whole = kind === "project";
  const list = useQuery({
    queryKey: [PATHS[kind], "names"],
    queryFn: () => api.get(PATHS[kind] as "/v1/admin/projects", { query: { limit: FIRST } }),
    enabled: may && whole && wanted.length > 0,
    staleTime: KEPT_MS,
  });
  const single = useQueries({
    queries: (whole ? [] : wanted).map((id) => ({
      queryKey: [PATHS[kind], "name", id],
      queryFn: () => api.get(`${PATHS[kind]}/{id}` as never, { path: { id } } as never) as Promise<Named>,
      enabled: may,
      staleTime: KEPT_MS,
      retry: false,
    })),
    combine: (all) => all.map((one) => one.data),
  });
  const found = new Map<string, string>();
  for (const row of list.data?.data ?? []) found.set(row.id, said(kind, row));
  single.forEach((row, index) => row !== undefined && found.set(wanted[index]!, said(kind, row)));
  return found;
}

/** A tenant by its id, as a link to it. */
export function TenantLink({ id }: { id: string }) {
  const name = useNames("tenant", [id]).get(id);
  const may = useMay()("people:read");
  if (name === undefined) return <ShortId value={id} />;
  return may ? <Link to={place("/tenants", name)}>{name}</Link> : <>{name}</>;
}

export function TenantName({ id }: { id: string }) {
  const name = useNames("tenant", [id]).get(id);
  return <b>{name ?? `${id.slice(0, 9)}…${id.slice(-4)}`}</b>;
}
