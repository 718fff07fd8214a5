// Ids as people know them: tenants by slug, adapters by name. What is not found (there are many, or one may not see
// them) stays an id.
import { useGet, useMay } from "../api";
import { Link, ShortId, place } from "../kit";

const ASKED_MAX = 500;

/** Slugs of tenants by id. */
export function useTenants(): ReadonlyMap<string, string> {
  const found = useGet("/v1/admin/tenants", { query: { limit: ASKED_MAX } }, { enabled: useMay()("people:read") });
  return new Map(found.data?.data.map((tenant) => [tenant.id, tenant.slug]));
}

/** Names of adapters by id. */
export function useAdapters(): ReadonlyMap<string, string> {
  const found = useGet("/v1/admin/adapters", { query: { limit: ASKED_MAX } }, { enabled: useMay()("adapters:read") });
  return new Map(found.data?.data.map((adapter) => [adapter.id, adapter.name]));
}

export function TenantLink({ id, slugs }: { id: string; slugs: ReadonlyMap<string, string> }) {
  const slug = slugs.get(id);
  return slug === undefined ? <ShortId value={id} /> : <Link to={place("/tenants", slug)}>{slug}</Link>;
}

/** The adapter, or the base model that answered alone. */
export function AnsweredBy({ model, adapter, names }: { model: string; adapter: string | null; names: ReadonlyMap<string, string> }) {
  if (adapter === null) return <>{model}</>;
  return <Link to={place("/adapters", adapter)}><b>{names.get(adapter) ?? adapter}</b></Link>;
}
