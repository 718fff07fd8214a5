// The upload of an adapter: two files, which can be checked first, under a name.
import { type DragEvent, useEffect, useRef, useState } from "react";
import { ApiError, type AnswerOf, api, apiError, upload, useGet, useMay, useSession, useWrite } from "../../api";
import {
  Badge,
  CheckField,
  ConfirmDialog,
  Facts,
  Field,
  Form,
  Link,
  LookupField,
  PageHead,
  SelectField,
  ShortId,
  TenantLookup,
  TextArea,
  TextField,
  bytes,
  count,
  place,
  toast,
  useForm,
  useGo,
  useDebounced,
  useLeaveGuard,
  useView,
  fieldError,
} from "../../kit";
import { ADAPTERS, Warnings } from "./adapter";
import { SHARES, sharesOf } from "./adapterForm";
import { useTenants } from "../parts/names";
import { TenantNamesField } from "../parts/pickers";
import "./adapters.css";

type CheckResult = AnswerOf<"/v1/admin/adapters/check", "post">;
type Made = AnswerOf<"/v1/admin/adapters", "post">;

type Adapter = AnswerOf<"/v1/admin/adapters/{adapter}">;

const NAMED_MAX = 5; // tenants that are named one by one
const CONFIG = "adapter_config.json";
const WEIGHTS = "adapter_model.safetensors";
type Part = typeof CONFIG | typeof WEIGHTS;
const SAID: Record<Part, string> = { [CONFIG]: "Configuration", [WEIGHTS]: "Weights" };

/** The API's error begins with a tensor or a key; it is shown beside the file that has it. */
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
  return <UploadForm of={found.data ?? null} />;
}

function UploadForm({ of }: { of: AnswerOf<"/v1/admin/adapters/{adapter}"> | null }) {
  const session = useSession();
  const seesModels = useMay()("models:read");
  const models = useGet("/v1/admin/models", undefined, { enabled: seesModels }).data?.data.filter(
    (model) => model.state === "serving",
  );
  const owner = useTenants().get(of?.tenant_id ?? "")?.slug ?? of?.tenant_id ?? "";
  const go = useGo();
  const form = useForm({
    name: of?.name ?? "",
    base: of?.base_model ?? "",
    tenant: session.tenant?.slug ?? "",
    who: "none",
    shared: "",
    pinned: false,
    promote: of === null,
    notes: "",
  });
  const [files, setFiles] = useState<Record<Part, File | null>>({ [CONFIG]: null, [WEIGHTS]: null });
  const [checked, setChecked] = useState<CheckResult | null>(null);
  const [going, setGoing] = useState<{ verb: string; share: number } | null>(null);
  const stop = useRef<AbortController | null>(null);
  useLeaveGuard(going !== null, () => toast("An upload is running. Stop it first.", true));
  const { values } = form;
  // If the owner already has an adapter of this name, the upload adds a version to an adapter in use.
  const [there, setThere] = useState<Existing | null>(null);
  const [asking, setAsking] = useState(false);
  const confirmed = useRef(false);
  const late = useDebounced(`${values.tenant}/${values.name.trim()}`, 300);
  const know = (found: Existing | null) => {
    if (found?.adapter.id === there?.adapter.id) return;
    setThere(found);
    form.set("promote", found === null);
  };
  useEffect(() => {
    const stale = new AbortController();
    void existing(of, values.tenant, values.name.trim(), stale.signal)
      .then((found) => !stale.signal.aborted && know(found))
      .catch(() => undefined); // checked again at the upload
    return () => stale.abort();
    // eslint-disable-next-line react-hooks/exhaustive-deps -- `late` is the tenant and the name, once they have settled
  }, [late]);
  const send = async (path: string, verb: string, fields: Record<string, string>): Promise<unknown> => {
    const config = files[CONFIG];
    const weights = files[WEIGHTS];
    if (config === null) throw fieldError("adapter_config", `The file ${CONFIG} is missing.`);
    if (weights === null) throw fieldError("adapter_model", `The file ${WEIGHTS} is missing.`);
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
  const store = useWrite(
    (fields: Record<string, string>) => send("/v1/admin/adapters", "Uploading", fields) as Promise<Made>,
    ADAPTERS,
  );
  const save = async () => {
    const agreed = confirmed.current;
    confirmed.current = false;
    if (checked === null) {
      setChecked((await send("/v1/admin/adapters/check", "Checking", { base: values.base })) as CheckResult);
      return;
    }
    const found = await existing(of, values.tenant, values.name.trim());
    if (found?.adapter.id !== there?.adapter.id) {
      know(found);
      if (found !== null)
        throw fieldError(
          "name",
          `${found.adapter.name} already exists: this upload would be version ${found.next} of it. Check the form, then upload again.`,
        );
    }
    if (found !== null && values.promote && !agreed) {
      setThere(found);
      setAsking(true);
      return;
    }
    const made = await store.mutateAsync({
      name: values.name.trim(),
      base: values.base,
      tenant: of === null ? values.tenant : owner,
      notes: values.notes.trim(),
      promote: String(values.promote),
      ...(found === null
        ? { shared: sharesOf(values.who, values.shared).join(","), pinned: String(values.pinned) }
        : {}),
    });
    toast(
      made.added.number === made.version
        ? `Version ${made.version} of ${made.name} is served.`
        : `Version ${made.added.number} of ${made.name} is uploaded and can be promoted.`,
    );
    go(place("/adapters", made.id), { tab: "versions" });
  };
  const take = (part: Part, file: File | null) => {
    setFiles((now) => ({ ...now, [part]: file }));
    setChecked(null);
    if (form.error !== null) form.reset(values);
  };
  return (
    <>
      <PageHead
        title={of === null ? "Upload an adapter" : `A version of ${of.name}`}
        trail={<Link to="/adapters">Adapters</Link>}
        note="The two files that peft saves. Check them against the base model first; a check stores nothing."
      />
      <div className="upload">
        <Form
          form={form}
          verb={checked === null ? "Check the files" : "Upload"}
          save={save}
          onCancel={() =>
            going === null ? go(of === null ? "/adapters" : place("/adapters", of.id)) : stop.current?.abort()
          }
        >
          {models !== undefined && models.length > 1 && of === null && (
            <SelectField
              form={{
                ...form,
                set: (name, value) => {
                  setChecked(null);
                  form.set(name, value);
                },
              }}
              name="base"
              label="Base model"
              options={[["", "as named in the adapter's files"], ...models.map((model) => model.name)]}
            />
          )}
          <Drop files={files} take={take} />
          {going !== null && <Progress {...going} />}
          {checked !== null && going === null && <CheckedFacts of={checked} />}
          {checked !== null && (
            <>
              <div className="field-row">
                {of === null && (
                  <TextField
                    form={form}
                    name="name"
                    label="Name"
                    placeholder="acme-support"
                    hint="The model name that callers send."
                    autoFocus
                  />
                )}
                {of === null && session.tenant === null && (
                  <LookupField
                    form={form}
                    name="tenant"
                    label="Owner"
                    optional
                    hint="Blank: the operator. Every tenant may then call it unless you choose otherwise."
                    control={(props) => <TenantLookup {...props} label="Owner" />}
                  />
                )}
              </div>
              {there !== null && of === null && (
                <div className="problem problem-warn" role="alert">
                  <p>
                    <Link to={place("/adapters", there.adapter.id)}>{there.adapter.name}</Link> already exists. This
                    upload becomes version {there.next}; version {there.adapter.version} is served to {there.whom} now.
                    Its allowed tenants and its pinning do not change.
                  </p>
                </div>
              )}
              {there === null && (
                <div className="field-row">
                  {values.tenant !== "" && (
                    <SelectField form={form} name="who" label="Allowed tenants" options={SHARES} />
                  )}
                  {values.tenant !== "" && values.who === "some" && (
                    <TenantNamesField form={form} name="shared" label="Tenants" />
                  )}
                </div>
              )}
              <TextArea form={form} name="notes" label="Notes" optional rows={2} />
              <CheckField
                form={form}
                name="promote"
                label="Serve it immediately"
                hint={
                  there === null
                    ? "The first version of a name is always served."
                    : `Version ${there.next} replaces version ${there.adapter.version} for ${there.whom}. Otherwise it is served once you promote it.`
                }
              />
              {there === null && <CheckField form={form} name="pinned" label="Pin it in the engine's memory" />}
            </>
          )}
        </Form>
      </div>
      <ConfirmDialog
        open={asking && there !== null}
        onClose={() => setAsking(false)}
        title={`Serve version ${there?.next} of ${there?.adapter.name} immediately?`}
        verb={`Upload and serve version ${there?.next}`}
        action={async () => {
          confirmed.current = true;
          void form.submit(save); // the form shows its progress and errors
        }}
      >
        {there !== null && (
          <>
            Requests of <b>{there.whom}</b> that name {there.adapter.name} get version {there.next} instead of version{" "}
            {there.adapter.version} as soon as it is uploaded. Requests in flight finish on version{" "}
            {there.adapter.version}. A rollback serves that version again.
          </>
        )}
      </ConfirmDialog>
    </>
  );
}

interface Existing {
  adapter: Adapter;
  /** The number of the next version. */
  next: number;
  /** The tenants that may call it, as text. */
  whom: string;
}

/** The existing adapter to which an upload would add a version: `of`, or else the adapter with this name and owner
 * (`tenant`: the owner's slug; blank: the operator). Null: the upload makes a new adapter. */
async function existing(
  of: Adapter | null,
  tenant: string,
  name: string,
  signal?: AbortSignal,
): Promise<Existing | null> {
  if (of === null && name === "") return null;
  const call = { ...(signal === undefined ? {} : { signal }) };
  const named =
    of === null ? (await api.get("/v1/admin/adapters", { query: { name, tenant, limit: 500 }, ...call })).data : [of];
  const adapter = named.find((one) => of !== null || tenant !== "" || one.tenant_id === null);
  if (adapter === undefined) return null;
  const newest = await api.get("/v1/admin/adapters/{adapter}/versions", {
    path: { adapter: adapter.id },
    query: { limit: 1 },
    ...call,
  });
  return { adapter, next: (newest.data[0]?.number ?? 0) + 1, whom: await servedTo(adapter, signal) };
}

async function servedTo(adapter: Adapter, signal?: AbortSignal): Promise<string> {
  if (adapter.shared.includes("*")) return "every tenant";
  const ids = [...(adapter.tenant_id === null ? [] : [adapter.tenant_id]), ...adapter.shared];
  if (ids.length === 0) return "no tenant";
  const named = ids.slice(0, NAMED_MAX).map(async (tenant_id) => {
    try {
      return (
        await api.get("/v1/admin/tenants/{tenant_id}", {
          path: { tenant_id },
          ...(signal === undefined ? {} : { signal }),
        })
      ).slug;
    } catch {
      return tenant_id; // another tenant, which this role cannot see
    }
  });
  const names = await Promise.all(named);
  return ids.length > NAMED_MAX ? `${names.join(", ")} and ${count(ids.length - NAMED_MAX)} more` : names.join(", ");
}

function Drop({ files, take }: { files: Record<Part, File | null>; take: (part: Part, file: File | null) => void }) {
  const [over, setOver] = useState(false);
  const chooser = useRef<HTMLInputElement>(null);
  const takeAll = (some: FileList | null) => {
    for (const file of some ?? []) take(file.name.endsWith(".json") ? CONFIG : WEIGHTS, file);
  };
  const dropped = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    takeAll(event.dataTransfer.files);
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
      <p className="note">
        Drop both files here, or{" "}
        <button type="button" className="button" onClick={() => chooser.current?.click()}>
          Choose both files
        </button>
        <input
          ref={chooser}
          type="file"
          multiple
          hidden
          accept=".json,.safetensors"
          onChange={(event) => takeAll(event.target.files)}
        />
      </p>
      {([CONFIG, WEIGHTS] as const).map((part) => (
        <Field
          key={part}
          name={part === CONFIG ? "adapter_config" : "adapter_model"}
          label={SAID[part]}
          {...(files[part] === null ? { hint: <code>{part}</code> } : {})}
        >
          {(wired) => (
            <span className="drop-file">
              <input
                {...wired}
                type="file"
                accept={part === CONFIG ? ".json" : ".safetensors"}
                className={files[part] === null ? undefined : "sr-only"}
                onChange={(event) => take(part, event.target.files?.[0] ?? null)}
              />
              {files[part] !== null && (
                <>
                  <Badge tone="accent">{files[part].name}</Badge>
                  <span className="num">{bytes(files[part].size)}</span>
                  <button
                    type="button"
                    className="button button-quiet"
                    aria-label={`Remove ${part} from this upload`}
                    onClick={() => take(part, null)}
                  >
                    Remove
                  </button>
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
  const said = share < 1 ? `${verb}: ${sent} % sent` : `${verb}: sent, waiting for the gateway`;
  return (
    <div
      className="progress"
      role="progressbar"
      aria-label={verb}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={sent}
      aria-valuetext={said}
    >
      <svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
        <rect className="all" width="100" height="4" />
        <rect className="done" width={sent} height="4" />
      </svg>
      <span className="num">{said}</span>
    </div>
  );
}

function CheckedFacts({ of: facts }: { of: CheckResult }) {
  return (
    <div className="panel stack" role="status">
      <div className="row">
        <Badge tone="good">fits the base model</Badge>
        <span className="note">Nothing is stored yet.</span>
      </div>
      {(facts.warnings ?? []).length > 0 && <Warnings of={facts.warnings ?? []} />}
      <Facts
        facts={[
          ["Digest", <ShortId value={facts.digest} />],
          ["Rank", <span className="num">{facts.rank_max ?? "–"}</span>],
          ["Size", facts.bytes == null ? "–" : <span className="num">{bytes(facts.bytes)}</span>],
          ["Parameters", facts.parameters == null ? "–" : <span className="num">{count(facts.parameters)}</span>],
          ["Modules", <code>{(facts.targets ?? []).join(", ")}</code>],
          ["Trained for", facts.trained_for ?? <span className="faint">not stated</span>],
        ]}
      />
    </div>
  );
}
