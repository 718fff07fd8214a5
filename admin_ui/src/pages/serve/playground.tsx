// The playground: requests as a tenant, with a key of its own, to one or two models, adapters or aliases.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { type ApiError, apiError, useSession } from "../../api";
import { errorOf, reach } from "../../api/errors";
import {
  ConfirmDialog,
  EmptyState,
  Form,
  Link,
  PageHead,
  Problem,
  SelectField,
  TenantLookup,
  TextArea,
  TextField,
  Time,
  fieldError,
  numberOf,
  place,
  useForm,
  useView,
} from "../../kit";
import { Answer } from "./playgroundAnswer";
import { type PlaygroundKey, usePlaygroundKey } from "./playgroundKey";
import { ReasoningField, type ReasoningValues } from "./playgroundReasoningField";
import { type Body, useRun } from "./playgroundRun";
import { type Card, lacking, readFormat, readTools } from "./playgroundTools";
import { ToolsField, type ToolValues } from "./playgroundToolsField";
import "./playground.css";

const TIERS = [
  ["auto", "the key's tier"],
  ["priority", "premium (priority)"],
  ["default", "standard (default)"],
  ["flex", "batch (flex)"],
] as const;

export default function Playground() {
  const session = useSession();
  const asked = useView({ tenant: "", model: "", beside: "" }).values;
  const [tenant, setTenant] = useState(session.tenant?.slug ?? asked.tenant);
  const [asking, setAsking] = useState(false);
  const { key, make, revoke } = usePlaygroundKey(session);
  const choose = (next: string) => {
    if (key !== null) void revoke();
    setTenant(next);
  };
  return (
    <>
      <PageHead
        title="Playground"
        note="Sends requests as a tenant: its limits, budgets and prices apply, and it is billed."
      />
      <div className="panel playground-who">
        <div className="field">
          <label htmlFor="playground-tenant">Call as</label>
          <TenantLookup
            id="playground-tenant"
            value={key?.tenant ?? tenant}
            onChange={choose}
            placeholder="Choose a tenant"
            label="Call as"
          />
        </div>
        {key === null ? (
          <button type="button" className="button button-main" disabled={tenant === ""} onClick={() => setAsking(true)}>
            Create a key…
          </button>
        ) : (
          <>
            <p>
              Uses the key{" "}
              <Link to={place("/keys", key.id)}>
                <code>{key.id.slice(0, 12)}…</code>
              </Link>
              , known only to this page. It expires <Time at={key.expires_at} absolute />.
            </p>
            <button type="button" className="button" onClick={() => void revoke()}>
              Revoke it now
            </button>
          </>
        )}
      </div>
      {key === null ? (
        <EmptyState title="No key">
          <p>
            {tenant === ""
              ? "Choose a tenant to create a short-lived key for it."
              : `Create a short-lived key for ${tenant} to send requests.`}
          </p>
        </EmptyState>
      ) : (
        <Bench key={key.id} with_={key} asked={asked} />
      )}
      <ConfirmDialog
        open={asking}
        onClose={() => setAsking(false)}
        title={`Create a key for ${tenant}?`}
        verb="Create key"
        tone="plain"
        action={() => make(tenant)}
      >
        Requests with this key count in {tenant}'s limits and budgets and are on its invoice. The key expires within the
        hour, is kept only in this page's memory, and is revoked when you leave. The audit log records that you created
        it.
      </ConfirmDialog>
    </>
  );
}

/** The models that the tenant may call, listed with its own key. */
function useModels(key: PlaygroundKey) {
  return useQuery<readonly Card[], ApiError>({
    queryKey: ["/v1/models", key.id],
    queryFn: async () => {
      const answer = await reach("/v1/models", {
        headers: { authorization: `Bearer ${key.secret}` },
        credentials: "omit",
      });
      const body: unknown = await answer.json();
      if (!answer.ok) throw errorOf(answer.status, body, answer.headers.get("x-request-id"));
      return (body as { data: Card[] }).data;
    },
  });
}

/** `asked`: the models in the page's address, such as a version of an adapter, which no list has. */
function Bench({ with_: key, asked }: { with_: PlaygroundKey; asked: { model: string; beside: string } }) {
  const models = useModels(key);
  const form = useForm({
    left: "",
    right: "",
    system: "",
    prompt: "",
    max_tokens: "200",
    temperature: "",
    top_p: "",
    seed: "",
    service_tier: "auto",
    tools: "",
    tool_choice: "auto",
    response_format: "",
    reasoning_effort: "",
    max_reasoning_tokens: "",
    include_reasoning: "",
  });
  const [left, right] = [useRun(), useRun()];
  const { data } = models;
  useEffect(() => {
    if (data === undefined) return;
    const base = data.find((one) => one.parent == null)?.id ?? "";
    form.set("left", asked.model || base);
    form.set("right", asked.model ? asked.beside : (data.find((one) => one.parent === base)?.id ?? ""));
    // eslint-disable-next-line react-hooks/exhaustive-deps -- only the first answer fills the form
  }, [data]);
  if (models.error !== null) return <Problem error={apiError(models.error)} again={() => void models.refetch()} />;
  const listed =
    data?.map((one) => [one.id, one.parent == null ? one.id : `${one.id} (of ${one.parent})`] as const) ?? [];
  const unlisted = [asked.model, asked.beside].filter((name) => name !== "" && !listed.some(([id]) => id === name));
  const names = [...unlisted.map((name) => [name, name] as const), ...listed];
  const busy = [left, right].some(({ run }) => run.state === "waiting" || run.state === "answering");
  const chosen = [...new Set([form.values.left, form.values.right])].filter((name) => name !== "");
  const lack = {
    tools: lacking(data ?? [], chosen, "tools"),
    response_format: lacking(data ?? [], chosen, "structured_outputs"),
    reasoning: lacking(data ?? [], chosen, "reasoning"),
  };
  const served = {
    tools: lack.tools.length < Math.max(1, chosen.length),
    response_format: lack.response_format.length < Math.max(1, chosen.length),
  };
  const reasons = lack.reasoning.length < chosen.length;
  const send = async (values: typeof form.values) => {
    if (busy) return;
    const body = { ...bodyOf(values), ...toolFields(values, served), ...(reasons ? reasoningFields(values) : {}) };
    const calls = [left.start({ ...body, model: values.left }, key.secret)];
    if (values.right === "") right.clear();
    else calls.push(right.start({ ...body, model: values.right }, key.secret));
    void Promise.all(calls);
  };
  return (
    <div className="playground">
      <Form form={form} verb={form.values.right === "" ? "Send" : "Send to both"} save={send}>
        <TextArea form={form} name="prompt" label="Prompt" rows={5} placeholder="What the user says" />
        <TextArea form={form} name="system" label="System message" optional rows={2} />
        <div className="field-row">
          <SelectField form={form} name="left" label="Model" options={names} />
          <SelectField form={form} name="right" label="Compare with" options={[["", "nothing"], ...names]} />
          <SelectField form={form} name="service_tier" label="Tier" options={TIERS} />
        </div>
        <div className="field-row playground-sampling">
          <TextField form={form} name="max_tokens" label="max_tokens" type="number" />
          <TextField form={form} name="temperature" label="temperature" type="number" placeholder="1" />
          <TextField form={form} name="top_p" label="top_p" type="number" placeholder="1" />
          <TextField form={form} name="seed" label="seed" type="number" />
        </div>
        {reasons && <ReasoningField form={form} lack={lack.reasoning} />}
        <ToolsField form={form} lack={lack} served={served} />
        {busy && (
          <div className="row">
            <button
              type="button"
              className="button button-bad"
              onClick={() => {
                left.stop();
                right.stop();
              }}
            >
              Stop
            </button>
            <span className="faint">Tokens made until then are billed.</span>
          </div>
        )}
      </Form>
      <div className="playground-answers">
        <Answer name={form.values.left} of={left} secret={key.secret} />
        {form.values.right !== "" && <Answer name={form.values.right} of={right} secret={key.secret} />}
      </div>
    </div>
  );
}

/** The body of a request without its model. */
type Settings = Record<string, unknown> & Pick<Body, "messages">;

/** Blank fields are omitted; the API validates the others. */
function bodyOf(values: {
  prompt: string;
  system: string;
  max_tokens: string;
  temperature: string;
  top_p: string;
  seed: string;
  service_tier: string;
}): Settings {
  const messages = [
    ...(values.system.trim() === "" ? [] : [{ role: "system", content: values.system }]),
    { role: "user", content: values.prompt },
  ];
  const body: Settings = {
    messages,
    service_tier: values.service_tier,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ["max_tokens", "temperature", "top_p", "seed"] as const) {
    const value = numberOf(values[name], name);
    if (value !== null) body[name] = value;
  }
  return body;
}

/** Fields that no chosen model serves are disabled and not sent. Throws the error of a field. */
function toolFields(values: ToolValues, served: { tools: boolean; response_format: boolean }): Record<string, unknown> {
  const tools = readTools(served.tools ? values.tools : "");
  if ("fault" in tools) throw fieldError("tools", tools.fault);
  const format = readFormat(served.response_format ? values.response_format : "");
  if ("fault" in format) throw fieldError("response_format", format.fault);
  return {
    ...(tools.value.length === 0 ? {} : { tools: tools.value, tool_choice: values.tool_choice }),
    ...(format.value === null ? {} : { response_format: format.value }),
  };
}

/** The reasoning settings; the model decides those whose field is blank. Throws the error of a field. */
function reasoningFields(values: ReasoningValues): Record<string, unknown> {
  const limit = numberOf(values.max_reasoning_tokens, "max_reasoning_tokens");
  return {
    ...(values.reasoning_effort === "" ? {} : { reasoning_effort: values.reasoning_effort }),
    ...(limit === null ? {} : { max_reasoning_tokens: limit }),
    ...(values.include_reasoning === "false" ? { include_reasoning: false } : {}),
  };
}
