// Names for the identifiers in rows of the API.
import { useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { type RowOf, api, useGet, useList, useMay } from "../../api";
import { Link, LongName, Lookup, ShortId, place } from "../../kit";

const KEPT_MS = 300_000;
const FIRST = 500;

type Kind = "tenant" | "project" | "key" | "adapter";
const PATHS = {
  tenant: "/v1/admin/tenants",
  project: "/v1/admin/projects",
  key: "/v1/admin/keys",
  adapter: "/v1/admin/adapters",
} as const;
const NEEDS = { tenant: "people:read", project: "people:read", key: "keys:read", adapter: "adapters:read" } as const;

interface Named {
  id: string;
  name: string;
  tenant_id?: string | null;
  slug?: string;
  last4?: string;
}

function said(kind: Kind, row: Named): string {
  if (kind === "tenant") return row.slug ?? row.name;
  return kind === "key" && row.last4 !== undefined ? `${row.name} …${row.last4}` : row.name;
}

/** Names by id; names that are not loaded are missing. Each is fetched once by its own request, except projects, whose
 * first five hundred are listed. `tenants`: the slugs of tenants by id, to begin the names of keys with. */
export function useNames(
  kind: Kind,
  ids: readonly (string | null)[],
  tenants?: ReadonlyMap<string, { slug: string }>,
): Map<string, string> {
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
  const owned = (row: Named) => {
    const slug = kind === "key" ? tenants?.get(row.tenant_id ?? "")?.slug : undefined;
    return slug === undefined ? said(kind, row) : `${slug}: ${said(kind, row)}`;
  };
  single.forEach((row, index) => row !== undefined && found.set(wanted[index]!, owned(row)));
  return found;
}

type Tenant = RowOf<"/v1/admin/tenants">;
type Project = RowOf<"/v1/admin/projects">;

/** The first 500 tenants by id; TenantName fetches others one by one. */
export function useTenants(): ReadonlyMap<string, Tenant> {
  const { rows } = useList("/v1/admin/tenants", {}, { limit: FIRST });
  return useMemo(() => new Map(rows.map((tenant) => [tenant.id, tenant])), [rows]);
}

export function useProjects(): ReadonlyMap<string, Project> {
  const { rows } = useList("/v1/admin/projects", {}, { limit: FIRST });
  return useMemo(() => new Map(rows.map((project) => [project.id, project])), [rows]);
}

/** The first 500 adapters by id. */
export function useAdapters(): ReadonlyMap<string, RowOf<"/v1/admin/adapters">> {
  const { rows } = useList("/v1/admin/adapters", {}, { limit: FIRST });
  return useMemo(() => new Map(rows.map((adapter) => [adapter.id, adapter])), [rows]);
}

export function TenantName({ id }: { id: string }) {
  const tenants = useTenants();
  const known = tenants.get(id);
  const asked = useGet(
    "/v1/admin/tenants/{tenant_id}",
    { path: { tenant_id: id } },
    { enabled: known === undefined && tenants.size > 0 },
  );
  const tenant = known ?? asked.data;
  return tenant === undefined ? (
    <ShortId value={id} />
  ) : (
    <Link to={place("/tenants", tenant.slug)} title={tenant.name}>
      <LongName text={tenant.slug} />
    </Link>
  );
}

export function ProjectName({ id }: { id: string }) {
  const project = useProjects().get(id);
  return project === undefined ? <ShortId value={id} /> : <LongName text={project.name} />;
}

/** A key's name, fetched one by one: few rows of a page have a key. */
export function KeyName({ id }: { id: string }) {
  const may = useMay()("keys:read");
  const { data } = useGet("/v1/admin/keys/{key_id}", { path: { key_id: id } }, { enabled: may });
  return data === undefined ? (
    <ShortId value={id} />
  ) : (
    <Link to={place("/keys", id)}>
      <LongName text={data.name} />
    </Link>
  );
}

interface Control {
  id?: string;
  label?: string;
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
}

/** Finds a project of the tenant; the value is its id. */
export function ProjectLookup({ tenant, ...control }: Control & { tenant: string }) {
  return (
    <Lookup
      label="Project"
      placeholder="All projects"
      {...control}
      path="/v1/admin/projects"
      query={{ tenant }}
      choice={(project) => ({ value: project.id, said: project.name })}
    />
  );
}

/** Finds a key; the value is its id. `tenant` and `status` restrict the choices. */
export function KeyLookup({ tenant, status, ...control }: Control & { tenant?: string; status?: "active" }) {
  const query = { ...(tenant === undefined ? {} : { tenant }), ...(status === undefined ? {} : { status }) };
  const known = useNames("key", [control.value]).get(control.value);
  const choice = (key: RowOf<"/v1/admin/keys">) => ({ value: key.id, said: `${key.name} …${key.last4}`, note: key.id });
  return (
    <Lookup
      label="Key"
      placeholder="All keys"
      {...control}
      {...(known === undefined ? {} : { said: known })}
      path="/v1/admin/keys"
      query={query}
      choice={choice}
    />
  );
}

/** Names of the tiers, and of the base models, for choices. */
export function useTierNames(): string[] {
  const may = useMay()("engine:read");
  return (useGet("/v1/admin/tiers", {}, { enabled: may }).data?.data ?? []).map((tier) => tier.name);
}

export function useModelNames(): string[] {
  const may = useMay()("models:read");
  return (useGet("/v1/admin/models", undefined, { enabled: may }).data?.data ?? []).map((model) => model.name);
}

/** A tenant's slug without a link, for rows that are links. */
export function TenantText({ id }: { id: string }) {
  const name = useNames("tenant", [id]).get(id);
  return <b>{name ?? `${id.slice(0, 9)}…${id.slice(-4)}`}</b>;
}

/** The adapter, or the base model if there was no adapter. */
export function AnsweredBy({ model, adapter }: { model: string; adapter: string | null }) {
  const known = useAdapters();
  if (adapter === null) return <LongName text={model} />;
  const name = known.get(adapter)?.name;
  return (
    <Link to={place("/adapters", adapter)}>
      <b>{name === undefined ? <ShortId value={adapter} /> : <LongName text={name} />}</b>
    </Link>
  );
}
