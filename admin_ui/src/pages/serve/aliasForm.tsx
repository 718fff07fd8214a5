// The form of an alias: models with weights (drawn as parts while they are typed), fallbacks, allowed tenants.
import { useState } from "react";
import { api, useWrite } from "../../api";
import { CheckField, Field, Form, Options, TextField, numberOf, toast, useForm, fieldError } from "../../kit";
import { ALIASES, type Alias, Shares } from "./aliasParts";
import { type Model, hues } from "./modelParts";
import { ModelsField, TenantsFields, type TenantsForm, listed, tenantsOf, useTenantsValues } from "../parts/picked";

interface Target {
  model: string;
  weight: string;
}

/** An incomplete number counts as 0. */
function drawn(targets: readonly Target[]): { model: string; weight: number }[] {
  return targets
    .filter((one) => one.model !== "")
    .map((one) => ({ model: one.model, weight: Math.max(0, Number(one.weight) || 0) }));
}

export function AliasForm({
  of: alias,
  models,
  taken,
  onDone,
}: {
  of: Alias | null;
  models: readonly Model[];
  taken: readonly string[];
  onDone: () => void;
}) {
  const before = useTenantsValues(alias?.tenants ?? null);
  const form = useForm({
    ...before,
    name: alias?.name ?? "",
    cheapest: alias?.cheapest ?? false,
    fallbacks: alias?.fallbacks.join(",") ?? "",
    active: alias?.active ?? true,
  });
  const [targets, setTargets] = useState<readonly Target[]>(
    alias?.models.map((one) => ({ model: one.model, weight: String(one.weight) })) ?? [{ model: "", weight: "1" }],
  );
  const put = useWrite(
    ({ name, ...body }: { name: string } & Parameters<typeof api.put<"/v1/admin/aliases/{alias}">>[1]["body"]) =>
      api.put("/v1/admin/aliases/{alias}", { path: { alias: name }, body }),
    ALIASES,
  );
  const there = models.filter((one) => one.state !== "removed" && one.state !== "draining").map((one) => one.name);
  return (
    <Form
      form={form}
      verb={alias === null ? "Create alias" : "Save"}
      onCancel={onDone}
      save={async (values) => {
        const name = values.name.trim();
        if (name === "") throw fieldError("name", "Enter a name: the model name that callers send.");
        if (alias === null && taken.includes(name))
          throw fieldError("name", `The alias '${name}' already exists. Edit it instead.`);
        const chosen = targets.filter((one) => one.model !== "");
        if (chosen.length === 0) throw fieldError("models", "An alias needs at least one model.");
        await put.mutateAsync({
          name,
          models: chosen.map((one) => ({ model: one.model, weight: numberOf(one.weight, "models") ?? 0 })),
          cheapest: values.cheapest,
          fallbacks: listed(values.fallbacks),
          tenants: tenantsOf(values),
          active: values.active,
        });
        toast(alias === null ? `Alias ${name} is created.` : "Saved.");
        onDone();
      }}
    >
      <TextField
        form={form}
        name="name"
        label="Name"
        mono
        autoFocus={alias === null}
        disabled={alias !== null}
        hint="The model name that callers send. It must differ from all names of models and adapters."
      />
      <Field
        name="models"
        label="Models"
        hint="Each request goes to one of these models, by weight: with 90 and 10, the first gets nine of ten requests. A model of weight 0 is never chosen by weight. Versions of an adapter are split on the adapter’s page."
      >
        {(wired) => <Targets wired={wired} targets={targets} set={setTargets} there={there} />}
      </Field>
      <Shares name={form.values.name} targets={drawn(targets)} hues={hues(models)} />
      <CheckField
        form={form}
        name="cheapest"
        label="Cheapest model for tenants that opted in"
        hint="These tenants get the cheapest of the models that can serve the request, regardless of the weights. A tenant's page shows whether it opted in."
      />
      <ModelsField
        form={form}
        name="fallbacks"
        label="Fallbacks"
        optional
        hint="Tried in order when the chosen model is saturated or unavailable. None: that model's own fallbacks."
        choices={there}
      />
      <div className="field-row">
        <TenantsFields form={form as unknown as TenantsForm} />
      </div>
      <CheckField
        form={form}
        name="active"
        label="Active"
        hint="If it is not active, requests to it get 404, even if laneway.toml defines it."
      />
    </Form>
  );
}

function Targets({
  wired,
  targets,
  set,
  there,
}: {
  wired: { id: string; "aria-describedby": string | undefined; "aria-invalid": boolean | undefined };
  targets: readonly Target[];
  set: (next: readonly Target[]) => void;
  there: readonly string[];
}) {
  const change = (index: number, part: Partial<Target>) =>
    set(targets.map((one, at) => (at === index ? { ...one, ...part } : one)));
  const used = targets.map((one) => one.model);
  const { id, ...described } = wired;
  return (
    <ul className="targets">
      {targets.map((target, index) => {
        const own = target.model === "" || there.includes(target.model) ? there : [target.model, ...there];
        return (
          <li key={index}>
            <select
              {...described}
              {...(index === 0 ? { id } : { "aria-label": `Model ${index + 1}` })}
              value={target.model}
              onChange={(event) => change(index, { model: event.target.value })}
            >
              <Options
                options={[
                  ["", "Choose a model…"],
                  ...own.filter((name) => name === target.model || !used.includes(name)),
                ]}
              />
            </select>
            <input
              aria-label={`Weight of model ${index + 1}`}
              className="mono"
              inputMode="decimal"
              value={target.weight}
              onChange={(event) => change(index, { weight: event.target.value })}
              autoComplete="off"
            />
            <button
              type="button"
              className="button button-quiet"
              aria-label={`Remove model ${index + 1}`}
              disabled={targets.length === 1}
              onClick={() => set(targets.filter((_, at) => at !== index))}
            >
              ×
            </button>
          </li>
        );
      })}
      {targets.length < Math.min(16, there.length) && (
        <li>
          <button type="button" className="button" onClick={() => set([...targets, { model: "", weight: "1" }])}>
            Add a model
          </button>
        </li>
      )}
    </ul>
  );
}
