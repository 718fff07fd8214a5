// Form fields for ordered lists: allowed tenants, fallback models. The form keeps the list as one comma-separated
// string.
import { Field, type FieldProps, type FormState, type Option, Options, SelectField, TenantLookup } from "../../kit";
import { useTenants } from "./names";
import "./picked.css";

type Values = Record<string, string | boolean>;

export function listed(text: string): string[] {
  return text.split(/[\s,;]+/).filter(Boolean);
}

/** The chosen names, each with a button that removes it. */
export function Chips({
  of,
  set,
  ordered,
  label,
}: {
  of: readonly string[];
  set: (next: readonly string[]) => void;
  ordered: boolean;
  label: string;
}) {
  if (of.length === 0) return null;
  const earlier = (index: number) =>
    set(of.map((one, at) => (at === index - 1 ? of[index]! : at === index ? of[index - 1]! : one)));
  return (
    <ol className="picked" aria-label={label}>
      {of.map((one, index) => (
        <li key={one}>
          {one}
          {ordered && index > 0 && (
            <button
              type="button"
              className="button button-quiet"
              aria-label={`Move ${one} up`}
              onClick={() => earlier(index)}
            >
              ←
            </button>
          )}
          <button
            type="button"
            className="button button-quiet"
            aria-label={`Remove ${one}`}
            onClick={() => set(of.filter((other) => other !== one))}
          >
            ×
          </button>
        </li>
      ))}
    </ol>
  );
}

/** A list of models, in the order in which they are tried. */
export function ModelsField<V extends Values>({
  form,
  choices,
  ...field
}: FieldProps & { form: FormState<V>; choices: readonly string[] }) {
  const picked = listed(String(form.values[field.name] ?? ""));
  const set = (next: readonly string[]) => form.set(field.name, next.join(",") as V[string]);
  const left: Option[] = choices.filter((one) => !picked.includes(one));
  return (
    <Field {...field}>
      {(wired) => (
        <>
          <Chips of={picked} set={set} ordered label={field.label} />
          <select
            {...wired}
            value=""
            onChange={(event) => event.target.value !== "" && set([...picked, event.target.value])}
            disabled={left.length === 0}
          >
            <Options
              options={[
                [
                  "",
                  left.length === 0 ? "No other model" : picked.length === 0 ? "Choose a model…" : "Add another model…",
                ],
                ...left,
              ]}
            />
          </select>
        </>
      )}
    </Field>
  );
}

const WHO = [
  ["all", "every tenant"],
  ["some", "only these tenants"],
] as const;

/** A form with the fields `who` and `tenants`. */
export type TenantsForm = FormState<{ who: string; tenants: string }>;

export function TenantsFields({ form }: { form: TenantsForm }) {
  const picked = listed(form.values.tenants);
  const set = (next: readonly string[]) => form.set("tenants", next.join(","));
  return (
    <>
      <SelectField form={form} name="who" label="Allowed tenants" options={WHO} />
      {form.values.who === "some" && (
        <Field name="tenants" label="Tenants">
          {(wired) => (
            <>
              <Chips of={picked} set={set} ordered={false} label="Tenants" />
              <TenantLookup
                {...wired}
                value=""
                placeholder="Type to find"
                onChange={(slug) => slug !== "" && !picked.includes(slug) && set([...picked, slug])}
              />
            </>
          )}
        </Field>
      )}
    </>
  );
}

/** The API's value: null for every tenant. */
export function tenantsOf(values: { who: string; tenants: string }): string[] | null {
  return values.who === "all" ? null : listed(values.tenants);
}

/** The initial values of such a form, with slugs for known tenants. */
export function useTenantsValues(tenants: readonly string[] | null): { who: string; tenants: string } {
  const known = useTenants();
  return {
    who: tenants === null ? "all" : "some",
    tenants: (tenants ?? []).map((one) => known.get(one)?.slug ?? one).join(","),
  };
}
