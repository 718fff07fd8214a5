// The forms of base models: add and change.
import { useEffect, useRef, useState } from "react";
import { api, apiError, useMay, useWrite } from "../../api";
import {
  CheckField,
  Dialog,
  Form,
  SelectField,
  TextField,
  duration,
  numberOf,
  toast,
  useForm,
  useDebounced,
  fieldError,
} from "../../kit";
import { MODELS, type Model } from "./modelParts";
import { ModelsField, TenantsFields, type TenantsForm, listed, tenantsOf, useTenantsValues } from "../parts/picked";
import { PriceForm } from "./priceForm";
import { usePrices } from "./prices";

const FALLBACKS_HINT = "Models that serve a request instead, tried in order, when the tier's queue is full.";
const MAX_TOKENS_HINT =
  "For requests without max_tokens, if their key, project and tenant set no default. Blank: the gateway's default.";
const QUANTIZE_HINT =
  "While loading, from unquantised weights. A checkpoint that is quantised already needs no choice.";
const PINNED_HINT = "Its weights are never evicted for another model.";

/** Seconds since `busy` became true: the engine's check of a model's files can take minutes. */
function useElapsed(busy: boolean): number {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    setSeconds(0);
    if (!busy) return;
    const timer = setInterval(() => setSeconds((now) => now + 1), 1000);
    return () => clearInterval(timer);
  }, [busy]);
  return seconds;
}

export function AddModelForm({ models, onDone }: { models: readonly Model[]; onDone: () => void }) {
  const form = useForm({
    name: "",
    path: "",
    dtype: "",
    quantize: "",
    kv_dtype: "",
    context_tokens: "",
    pinned: false,
    who: "all",
    tenants: "",
    fallbacks: "",
    max_tokens_default: "",
  });
  const add = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/models">>[1]["body"]) => api.post("/v1/admin/models", { body }),
    MODELS,
  );
  const elapsed = useElapsed(form.busy);
  const there = useRef(true);
  useEffect(() => {
    there.current = true;
    return () => void (there.current = false);
  }, []);
  const { values } = form;
  return (
    <Form
      form={form}
      verb="Add model"
      onCancel={onDone}
      save={async () => {
        const name = values.name.trim();
        if (name === "") throw fieldError("name", "Enter a name: the model name that callers send.");
        try {
          const made = await add.mutateAsync({
            name,
            path: values.path.trim() || null,
            dtype: values.dtype === "" ? null : (values.dtype as "float32"),
            quantize: values.quantize === "" ? null : (values.quantize as "fp8"),
            kv_dtype: values.kv_dtype === "" ? null : (values.kv_dtype as "fp8"),
            context_tokens: numberOf(values.context_tokens, "context_tokens"),
            pinned: values.pinned,
            tenants: tenantsOf(values),
            fallbacks: listed(values.fallbacks),
            max_tokens_default: numberOf(values.max_tokens_default, "max_tokens_default"),
          });
          toast(
            made.state === "refused" ? `${name} is refused: ${made.reason}` : `${name} is served.`,
            made.state === "refused",
          );
          if (there.current) onDone();
        } catch (thrown) {
          if (!there.current) toast(`${name} was not added: ${apiError(thrown).message}`, true);
          throw thrown;
        }
      }}
    >
      <div className="field-row">
        <TextField
          form={form}
          name="name"
          label="Name"
          mono
          autoFocus
          placeholder="llama-3.1-8b"
          hint="The model name that callers send."
        />
        <TextField
          form={form}
          name="path"
          label="Directory"
          mono
          optional
          hint="Inside the models folder. Blank: the same as the name."
        />
      </div>
      <Priced name={values.name.trim()} />
      <div className="field-row">
        <SelectField
          form={form}
          name="dtype"
          label="Type"
          options={[["", "the same as the other models"], "float32", "bfloat16", "float16"]}
        />
        <SelectField
          form={form}
          name="quantize"
          label="Quantise weights"
          options={[["", "no, as they are in the files"], "fp8", "int8", "int4"]}
          hint={QUANTIZE_HINT}
        />
        <SelectField
          form={form}
          name="kv_dtype"
          label="Type of KV"
          options={[["", "the same as the model's"], "fp8"]}
          hint="fp8 takes half the memory for each token."
        />
      </div>
      <div className="field-row">
        <TextField
          form={form}
          name="context_tokens"
          label="Context"
          type="number"
          unit="tokens"
          optional
          hint="Blank: the value in its config.json."
        />
        <TextField
          form={form}
          name="max_tokens_default"
          label="Default max_tokens"
          type="number"
          unit="tokens"
          optional
          hint={MAX_TOKENS_HINT}
        />
      </div>
      <div className="field-row">
        <TenantsFields form={form as unknown as TenantsForm} />
      </div>
      <ModelsField
        form={form}
        name="fallbacks"
        label="Fallbacks"
        optional
        hint={FALLBACKS_HINT}
        choices={models
          .filter((one) => one.state !== "removed" && one.name !== values.name.trim())
          .map((one) => one.name)}
      />
      <CheckField form={form} name="pinned" label="Pin it on the device" hint={PINNED_HINT} />
      {form.busy && (
        <p className="note" role="status">
          The engine is checking its files
          {elapsed > 0 && (
            <>
              , for <span className="num">{duration(elapsed)}</span>
            </>
          )}
          . Other models keep serving. You may close this dialog; a message appears when the check is done.
        </p>
      )}
    </Form>
  );
}

/** A model without a price cannot be added: its requests could not be billed. */
function Priced({ name }: { name: string }) {
  const late = useDebounced(name, 400);
  const may = useMay();
  const { current, known } = usePrices(late);
  const [publishing, setPublishing] = useState(false);
  if (late === "" || !may("prices:read") || !known || current.some((one) => one.now !== null)) return null;
  return (
    <div className="row" role="status">
      <span className="warn-word">{late} has no price in force. Publish one before you add the model.</span>
      {may("prices:write") ? (
        <button type="button" className="button" onClick={() => setPublishing(true)}>
          Publish its price…
        </button>
      ) : (
        <span className="faint">Your role cannot publish prices.</span>
      )}
      <Dialog
        open={publishing}
        onClose={() => setPublishing(false)}
        title={`Publish a price of ${late}`}
        note="Per million tokens, before the model is added."
        keep
        wide
      >
        <PriceForm model={late} current={current} ahead onDone={() => setPublishing(false)} />
      </Dialog>
    </div>
  );
}

export function ChangeModelForm({
  of: model,
  models,
  onDone,
}: {
  of: Model;
  models: readonly Model[];
  onDone: () => void;
}) {
  const before = useTenantsValues(model.tenants);
  const form = useForm({
    ...before,
    pinned: model.pinned,
    fallbacks: model.fallbacks.join(","),
    max_tokens_default: String(model.max_tokens_default),
  });
  const change = useModelChange(model.name);
  return (
    <Form
      form={form}
      verb="Save"
      onCancel={onDone}
      save={async (values) => {
        const tokens = numberOf(values.max_tokens_default, "max_tokens_default");
        await change.mutateAsync({
          pinned: values.pinned,
          tenants: tenantsOf(values),
          fallbacks: listed(values.fallbacks),
          // An unchanged value may be the gateway's default and is not written to the model.
          ...(tokens === model.max_tokens_default ? {} : { max_tokens_default: tokens }),
        });
        toast("Saved.");
        onDone();
      }}
    >
      <TenantsFields form={form as unknown as TenantsForm} />
      <ModelsField
        form={form}
        name="fallbacks"
        label="Fallbacks"
        optional
        hint={FALLBACKS_HINT}
        choices={models.filter((one) => one.state !== "removed" && one.name !== model.name).map((one) => one.name)}
      />
      <TextField
        form={form}
        name="max_tokens_default"
        label="Default max_tokens"
        type="number"
        unit="tokens"
        hint={MAX_TOKENS_HINT}
      />
      <CheckField form={form} name="pinned" label="Pin it on the device" hint={PINNED_HINT} />
    </Form>
  );
}

/** Changes the given fields of a model. */
export function useModelChange(model: string) {
  return useWrite(
    (body: Parameters<typeof api.patch<"/v1/admin/models/{model}">>[1]["body"]) =>
      api.patch("/v1/admin/models/{model}", { path: { model }, body }),
    MODELS,
  );
}
