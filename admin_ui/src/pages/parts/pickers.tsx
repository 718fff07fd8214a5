// Form fields that choose a tier, a currency, a time zone, or names of models, adapters and aliases.
import { useMemo } from "react";
import { useGet, useList, useMay } from "../../api";
import {
  type Choice,
  ChoiceField,
  ChoiceLookup,
  Field,
  type FieldProps,
  type FormState,
  SelectField,
  TenantLookup,
  TextField,
  currencies,
  timeZones,
} from "../../kit";
import { useAdapters } from "./names";
import { Chips, listed } from "./picked";

type Values = Record<string, string | boolean>;
/** A form that has the field; the forms of pages have more. */
type AnyForm<N extends string> = FormState<Record<N, string>>;

/** The names of the tiers; undefined if the role may not list them. */
export function useTierNames(): readonly string[] | undefined {
  const may = useMay()("engine:read");
  return useGet("/v1/admin/tiers", undefined, { enabled: may }).data?.data.map((tier) => tier.name);
}

/** A tier. `none`: the text of the blank choice; without it, a tier must be chosen. A text field if the role may not list
 * tiers. */
export function TierField({
  form,
  none,
  ...field
}: Omit<FieldProps, "name" | "label"> & { label?: string; form: unknown; none?: string }) {
  const of = form as AnyForm<"tier">;
  const names = useTierNames();
  const said = { label: "Tier", ...field };
  if (names === undefined) return <TextField form={of} name="tier" {...said} />;
  const blank = none ?? (of.values.tier === "" ? "Choose…" : undefined);
  return (
    <SelectField
      form={of}
      name="tier"
      {...said}
      options={[...(blank === undefined ? [] : [["", blank] as const]), ...names]}
    />
  );
}

/** The currencies that have a price, then all others. */
export function CurrencyField({ form, hint }: { form: unknown; hint?: string }) {
  const may = useMay()("prices:read");
  const { rows } = useList("/v1/admin/prices", {}, { enabled: may, limit: 500 });
  const choices = useMemo(() => currencies([...new Set(rows.map((price) => price.currency))].sort()), [rows]);
  return (
    <ChoiceField
      form={form as AnyForm<"currency">}
      name="currency"
      label="Currency"
      choices={choices}
      {...(hint === undefined ? {} : { hint })}
    />
  );
}

export function ZoneField({ form, hint }: { form: unknown; hint?: React.ReactNode }) {
  return (
    <ChoiceField
      form={form as AnyForm<"time_zone">}
      name="time_zone"
      label="Time zone"
      choices={timeZones()}
      placeholder="A city, such as Berlin"
      hint={hint}
    />
  );
}

/** The names that a request may have as its model, as far as the role may list them. */
export function useModelChoices(): readonly Choice[] {
  const may = useMay();
  const models = useGet("/v1/admin/models", undefined, { enabled: may("models:read") }).data?.data;
  const aliases = useList("/v1/admin/aliases", {}, { enabled: may("models:read"), limit: 500 }).rows;
  const adapters = useAdapters();
  return useMemo(() => {
    const found = new Map<string, Choice>();
    const add = (name: string, note: string) => found.has(name) || found.set(name, { value: name, said: name, note });
    for (const model of models ?? []) if (model.state !== "removed") add(model.name, "model");
    for (const alias of aliases) add(alias.name, "alias");
    for (const adapter of adapters.values()) if (adapter.active) add(adapter.name, `adapter of ${adapter.base_model}`);
    return [...found.values()];
  }, [models, aliases, adapters]);
}

type Wired = Parameters<Parameters<typeof Field>[0]["children"]>[0];

function Many<V extends Values>({
  form,
  control,
  ...field
}: FieldProps & {
  form: FormState<V>;
  control: (props: Wired & { value: ""; placeholder: string; onChange: (value: string) => void }) => React.ReactNode;
}) {
  const picked = listed(String(form.values[field.name] ?? ""));
  const set = (next: readonly string[]) => form.set(field.name, next.join(" ") as V[string]);
  return (
    <Field {...field}>
      {(wired) => (
        <>
          <Chips of={picked} set={set} ordered={false} label={field.label} />
          {control({
            ...wired,
            value: "",
            placeholder: "Type to find",
            onChange: (value) => value !== "" && !picked.includes(value) && set([...picked, value]),
          })}
        </>
      )}
    </Field>
  );
}

/** Names of models, adapters and aliases; the form keeps them separated by spaces. */
export function ModelNamesField<V extends Values>(field: FieldProps & { form: FormState<V> }) {
  const choices = useModelChoices();
  return <Many {...field} control={(props) => <ChoiceLookup {...props} choices={choices} free="not known yet" />} />;
}

/** Tenants by slug; the form keeps them separated by spaces. */
export function TenantNamesField<V extends Values>(field: FieldProps & { form: FormState<V> }) {
  return <Many {...field} control={(props) => <TenantLookup {...props} label={field.label} />} />;
}
