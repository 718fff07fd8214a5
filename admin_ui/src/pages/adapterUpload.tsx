// An adapter goes up: two files, checked first without a trace, then uploaded under a name.
import { type DragEvent, useRef, useState } from "react";
import { ApiError, type AnswerOf, apiError, upload, useGet, useMay, useSession, useWrite } from "../api";
import { Badge, CheckField, Facts, Field, Form, Link, LookupField, PageHead, SelectField, ShortId, TenantLookup, TextArea, TextField, bytes, count, place, toast, useForm, useGo, useStay, useView, wrong } from "../kit";
import { ADAPTERS, Warnings } from "./adapter";
import { SHARES, sharesOf } from "./adapterForm";
import { useTenants } from "./names";
import "./adapters.css";

type Checked = AnswerOf<"/v1/admin/adapters/check", "post">;
type Made = AnswerOf<"/v1/admin/adapters", "post">;

const CONFIG = "adapter_config.json";
const WEIGHTS = "adapter_model.safetensors";
type Part = typeof CONFIG | typeof WEIGHTS;
const SAID: Record<Part, string> = { [CONFIG]: "Configuration", [WEIGHTS]: "Weights" };

/** A refusal begins with the tensor or key it is about: it is said beside the file that has it. */
async function placed(thrown: unknown, config: File): Promise<ApiError> {
  const error = apiError(thrown);
  if (error.code !== "invalid_adapter") return error;
  const about = error.message.split(": ")[0] ?? "";
  let ofConfig = about.startsWith(CONFIG);
  try {
    ofConfig ||= about.split(/[.[]/)[0]! in (JSON.parse(await config.text()) as object);
  } catch {
    ofConfig ||= !about.includes(".safetensors") && !about.includes(".weight");
  }
  return new ApiError(error.status, error.code, ofConfig ? CONFIG : WEIGHTS, error.message, error.requestId);
}

export default function AdapterUpload() {
  const { of } = useView({ of: "" }).values;
  const found = useGet("/v1/admin/adapters/{adapter}", { path: { adapter: of } }, { enabled: of !== "" });
  if (of !== "" && found.data === undefined && found.error === null) return null;
  return <Whole of={found.data ?? null} />;
}

function Whole({ of }: { of: AnswerOf<"/v1/admin/adapters/{adapter}"> | null }) {
  const session = useSession();
  const seesModels = useMay()("models:read");
  const models = useGet("/v1/admin/models", undefined, { enabled: seesModels }).data?.data.filter((model) => model.state === "serving");
  const owner = useTenants().get(of?.tenant_id ?? "")?.slug ?? of?.tenant_id ?? "";
  const go = useGo();
  const form = useForm({ name: of?.name ?? "", base: of?.base_model ?? "", tenant: session.tenant?.slug ?? "", who: "none", shared: "", pinned: false, promote: of === null, notes: "" });
  const [files, setFiles] = useState<Record<Part, File | null>>({ [CONFIG]: null, [WEIGHTS]: null });
  const [checked, setChecked] = useState<Checked | null>(null);
  const [going, setGoing] = useState<{ verb: string; share: number } | null>(null);
  const stop = useRef<AbortController | null>(null);
  useStay(going !== null, () => toast("An upload is on its way; stop it first.", true));
  const { values } = form;
  const send = async (path: string, verb: string, fields: Record<string, string>): Promise<unknown> => {
    const config = files[CONFIG];
    const weights = files[WEIGHTS];
    if (config === null) throw wrong("adapter_config", `The file ${CONFIG} is missing.`);
    if (weights === null) throw wrong("adapter_model", `The file ${WEIGHTS} is missing.`);
    const body = new FormData();
    for (const [name, value] of Object.entries(fields)) if (value !== "") body.append(name, value);
    body.append(CONFIG, config, CONFIG);
    body.append(WEIGHTS, weights, WEIGHTS);
    stop.current = new AbortController();
    setGoing({ verb, share: 0 });
    try {
      return await upload(path, body, (share) => setGoing({ verb, share }), stop.current.signal);
    } catch (thrown) {
      throw await placed(thrown, config);
    } finally {
      setGoing(null);
    }
  };
  const store = useWrite((fields: Record<string, string>) => send("/v1/admin/adapters", "Uploading", fields) as Promise<Made>, ADAPTERS);
  const save = async () => {
    if (checked === null) {
      setChecked((await send("/v1/admin/adapters/check", "Checking", { base: values.base })) as Checked);
      return;
    }
    const made = await store.mutateAsync({
      name: values.name.trim(),
      base: values.base,
      tenant: of === null ? values.tenant : owner,
      notes: values.notes.trim(),
      promote: String(values.promote),
      ...(of === null ? { shared: sharesOf(values.who, values.shared).join(","), pinned: String(values.pinned) } : {}),
    });
    toast(made.added.number === made.version ? `Version ${made.version} of ${made.name} is served.` : `Version ${made.added.number} of ${made.name} is there, and waits to be promoted.`);
    go(place("/adapters", made.id), { tab: "versions" });
  };
  const take = (part: Part, file: File | null) => {
    setFiles((now) => ({ ...now, [part]: file }));
    setChecked(null);
    if (form.error !== null) form.reset(values);
  };
  return (
    <>
      <PageHead title={of === null ? "Upload an adapter" : `A version of ${of.name}`} trail={<Link to="/adapters">Adapters</Link>} note="As peft saves it. It is checked first, against the base model, and nothing of the check stays." />
      <div className="upload">
        <Form form={form} verb={checked === null ? "Check the files" : "Upload"} save={save} onCancel={() => (going === null ? go(of === null ? "/adapters" : place("/adapters", of.id)) : stop.current?.abort())}>
          {models !== undefined && models.length > 1 && of === null && <SelectField form={{ ...form, set: (name, value) => { setChecked(null); form.set(name, value); } }} name="base" label="Base model" options={[["", "the one that the adapter names"], ...models.map((model) => model.name)]} />}
          <Drop files={files} take={take} />
          {going !== null && <Progress {...going} />}
          {checked !== null && going === null && <CheckedFacts of={checked} />}
          {checked !== null && (
            <>
              <div className="field-row">
                {of === null && <TextField form={form} name="name" label="Name" placeholder="acme-support" hint="What callers write as model. A name that there is gets a further version." autoFocus />}
                {of === null && session.tenant === null && <LookupField form={form} name="tenant" label="Owner" optional hint="Blank: the operator, for every tenant unless said otherwise." control={(props) => <TenantLookup {...props} label="Owner" />} />}
              </div>
              {of === null && (
                <div className="field-row">
                  {values.tenant !== "" && <SelectField form={form} name="who" label="May call it" options={SHARES} />}
                  {values.tenant !== "" && values.who === "some" && <TextField form={form} name="shared" label="Tenants" placeholder="acme, globex" hint="Slugs or ids." />}
                </div>
              )}
              <TextArea form={form} name="notes" label="Notes" optional rows={2} />
              <CheckField form={form} name="promote" label="Serve it at once" hint="Otherwise a further version waits until it is promoted. The first version of a name is served in any case." />
              {of === null && <CheckField form={form} name="pinned" label="Pin it in the engine's memory" />}
            </>
          )}
        </Form>
      </div>
    </>
  );
}

function Drop({ files, take }: { files: Record<Part, File | null>; take: (part: Part, file: File | null) => void }) {
  const [over, setOver] = useState(false);
  const dropped = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    for (const file of event.dataTransfer.files) take(file.name.endsWith(".json") ? CONFIG : WEIGHTS, file);
  };
  return (
    <div
      className={over ? "drop drop-over" : "drop"}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={dropped}
    >
      <p className="note">Drop both files here, or choose them.</p>
      {([CONFIG, WEIGHTS] as const).map((part) => (
        <Field key={part} name={part === CONFIG ? "adapter_config" : "adapter_model"} label={SAID[part]} {...(files[part] === null ? { hint: <code>{part}</code> } : {})}>
          {(wired) => (
            <span className="drop-file">
              <input {...wired} type="file" accept={part === CONFIG ? ".json" : ".safetensors"} className={files[part] === null ? undefined : "sr-only"} onChange={(event) => take(part, event.target.files?.[0] ?? null)} />
              {files[part] !== null && (
                <>
                  <Badge tone="accent">{files[part].name}</Badge>
                  <span className="num">{bytes(files[part].size)}</span>
                  <button type="button" className="button button-quiet" aria-label={`Take ${part} away`} onClick={() => take(part, null)}>Another</button>
                </>
              )}
            </span>
          )}
        </Field>
      ))}
    </div>
  );
}

function Progress({ verb, share }: { verb: string; share: number }) {
  const sent = Math.round(share * 100);
  const said = share < 1 ? `${verb}: ${sent} % is there` : `${verb}: all is there, and is being read`;
  return (
    <div className="progress" role="progressbar" aria-label={verb} aria-valuemin={0} aria-valuemax={100} aria-valuenow={sent} aria-valuetext={said}>
      <svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect className="all" width="100" height="4" /><rect className="done" width={sent} height="4" /></svg>
      <span className="num">{said}</span>
    </div>
  );
}

function CheckedFacts({ of: facts }: { of: Checked }) {
  return (
    <div className="panel stack" role="status">
      <div className="row"><Badge tone="good">fits the base</Badge><span className="note">Nothing is stored yet.</span></div>
      {(facts.warnings ?? []).length > 0 && <Warnings of={facts.warnings ?? []} />}
      <Facts
        facts={[
          ["Digest", <ShortId value={facts.digest} />],
          ["Rank", <span className="num">{facts.rank_max ?? "–"}</span>],
          ["Size", facts.bytes == null ? "–" : <span className="num">{bytes(facts.bytes)}</span>],
          ["Parameters", facts.parameters == null ? "–" : <span className="num">{count(facts.parameters)}</span>],
          ["Modules", <code>{(facts.targets ?? []).join(", ")}</code>],
          ["Trained for", facts.trained_for ?? <span className="faint">it does not say</span>],
        ]}
      />
    </div>
  );
}
