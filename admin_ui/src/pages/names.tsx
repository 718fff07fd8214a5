// Whose something is, by name: rows of the API carry identifiers, and people know slugs.
import { useMemo } from "react";
import { type RowOf, useGet, useList, useMay } from "../api";
import { Link, Lookup, ShortId, place } from "../kit";

type Tenant = RowOf<"/v1/admin/tenants">;
type Project = RowOf<"/v1/admin/projects">;

/** Tenants by id, as far as the first 500 go; one beyond them is asked for by itself where its name is shown. */
export function useTenants(): ReadonlyMap<string, Tenant> {
  const { rows } = useList("/v1/admin/tenants", {}, { limit: 500 });
  return useMemo(() => new Map(rows.map((tenant) => [tenant.id, tenant])), [rows.length, rows[0]]);
}

export function useProjects(): ReadonlyMap<string, Project> {
  const { rows } = useList("/v1/admin/projects", {}, { limit: 500 });
  return useMemo(() => new Map(rows.map((project) => [project.id, project])), [rows.length, rows[0]]);
}

export function TenantName({ id }: { id: string }) {
  const tenants = useTenants();
  const known = tenants.get(id);
  const asked = useGet("/v1/admin/tenants/{tenant_id}", { path: { tenant_id: id } }, { enabled: known === undefined && tenants.size > 0 });
  const tenant = known ?? asked.data;
  return tenant === undefined ? <ShortId value={id} /> : <Link to={place("/tenants", tenant.slug)} title={tenant.name}>{tenant.slug}</Link>;
}

export function ProjectName({ id }: { id: string }) {
  const project = useProjects().get(id);
  return project === undefined ? <ShortId value={id} /> : <>{project.name}</>;
}

/** A key's name, asked for by itself: few rows of a page have one. */
export function KeyName({ id }: { id: string }) {
  const may = useMay()("keys:read");
  const { data } = useGet("/v1/admin/keys/{key_id}", { path: { key_id: id } }, { enabled: may });
  return data === undefined ? <ShortId value={id} /> : <Link to={place("/keys", id)} title={id}>{data.name}</Link>;
}

interface Control {
  id?: string;
  label?: string;
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
}

/** A project of the tenant, by id. */
export function ProjectLookup({ tenant, ...control }: Control & { tenant: string }) {
  return <Lookup label="Project" placeholder="All projects" {...control} path="/v1/admin/projects" query={{ tenant }} choice={(project) => ({ value: project.id, said: project.name })} />;
}

/** A key of the tenant that still works, by id. */
export function KeyLookup({ tenant, ...control }: Control & { tenant: string }) {
  return <Lookup label="Key" placeholder="All keys" {...control} path="/v1/admin/keys" query={{ tenant, status: "active" }} choice={(key) => ({ value: key.id, said: key.name, note: `…${key.last4}` })} />;
}
