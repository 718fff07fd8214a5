// Parts of several pages about base models: state, location of weights, allowed tenants, and the bar of weights on the
// device.
import { type AnswerOf, useGet } from "../../api";
import { Badge, Link, Time, type Tone, bytes, duration, place } from "../../kit";
import { TenantName } from "../parts/names";
import { type Part, ShareBar } from "../parts/shares";

export type ModelsAnswer = AnswerOf<"/v1/admin/models">;
export type Model = ModelsAnswer["data"][number];
export const MODELS = ["/v1/admin/models", "/v1/admin/audit_log", "/v1/models"];
const LIVE_MS = 2_000;
const FEW = 3;

/** Base models, refreshed while the page is visible. `engine`: whose weights they say; by default the first ready
 * engine's. */
export function useModels(enabled = true, engine = "") {
  return useGet("/v1/admin/models", engine === "" ? undefined : { query: { engine } }, { enabled, everyMs: LIVE_MS });
}

const STATES: Record<Model["state"], readonly [Tone, string]> = {
  serving: ["good", "serving"],
  loading: ["accent", "loading"],
  draining: ["warn", "draining"],
  refused: ["bad", "refused"],
  removed: ["plain", "removed"],
};

export function ModelState({ of: model }: { of: Model }) {
  const [tone, said] = STATES[model.state];
  return <Badge tone={tone}>{said}</Badge>;
}

const WHERE = { device: "on the device", host: "in host memory", disk: "on disk" } as const;

export function whereSaid(model: Model): string {
  if (model.where === null) return "unknown";
  if (model.coming) return `loading from ${model.where === "disk" ? "disk" : "host memory"}`;
  return model.leaving && model.where === "device" ? "on the device, being evicted" : WHERE[model.where];
}

/** The operator's wish; the engine may lack the memory for it. */
export function Pinned({ of: model }: { of: Model }) {
  if (!model.pinned) return null;
  return model.pinned_there === false ? (
    <Badge tone="warn">pinned, does not fit</Badge>
  ) : (
    <Badge tone="accent">pinned</Badge>
  );
}

export function ModelWhere({ of: model }: { of: Model }) {
  if (model.where === null) return <span className="faint">–</span>;
  const tone =
    model.coming || model.leaving
      ? "warn"
      : model.where === "device"
        ? "good"
        : model.where === "host"
          ? "accent"
          : "plain";
  return (
    <div className="two-lines">
      <span className="row">
        <Badge tone={tone}>{whereSaid(model)}</Badge>
        <Pinned of={model} />
      </span>
      <span className="faint num">
        {model.weights_bytes === null ? "size unknown" : bytes(model.weights_bytes)}
        {model.loads !== null && model.loads > 0 && `, loaded ${model.loads === 1 ? "once" : `${model.loads} times`}`}
      </span>
    </div>
  );
}

/** The allowed tenants; null is every tenant. */
export function MayCall({ tenants }: { tenants: readonly string[] | null }) {
  if (tenants === null) return <span className="no-break">every tenant</span>;
  return (
    <span>
      {tenants.slice(0, FEW).map((id, index) => (
        <span key={id}>
          {index > 0 && ", "}
          <TenantName id={id} />
        </span>
      ))}
      {tenants.length > FEW && ` and ${tenants.length - FEW} more`}
    </span>
  );
}

/** Models in order, as links. */
export function InOrder({ models, none = "none" }: { models: readonly string[]; none?: string }) {
  if (models.length === 0) return <span className="faint">{none}</span>;
  return (
    <span>
      {models.map((name, index) => (
        <span key={name}>
          {index > 0 && ", then "}
          <Link to={place("/models", name)}>{name}</Link>
        </span>
      ))}
    </span>
  );
}

export function Origin({ of: model }: { of: Model }) {
  return (
    <>
      {model.origin === "config" ? "laneway.toml" : "added at runtime"}
      {model.changed_at !== null && (
        <>
          , changed <Time at={model.changed_at} />
        </>
      )}
    </>
  );
}

/** The colour index of each model, the same on every page: the eight chart colours in order, repeated. */
export function hues(models: readonly Model[]): ReadonlyMap<string, number> {
  return new Map(models.map((model, index) => [model.name, index]));
}

/** The estimated time until a new request could start, for models whose weights are not on the device. */
export function coldSaid(model: Model): string | null {
  return model.wait_s === null || model.wait_s <= 0 ? null : `ready in ${duration(model.wait_s)}`;
}

/** A warning on the pages of models while the engine is unavailable. */
export function EngineDown({ of: { engine_away } }: { of: ModelsAnswer }) {
  if (engine_away === null) return null;
  return (
    <div className="problem engine-down" role="status">
      <p>
        The engine is unavailable: {engine_away} The states of its models are from its last report.{" "}
        <Link to="/health">Health</Link>
      </p>
    </div>
  );
}

/** Why the engine refuses the model; `named`: with the model's name. */
export function Refused({ of: { name, reason, fallbacks }, named = false }: { of: Model; named?: boolean }) {
  if (reason === null) return null;
  return (
    <div className="problem engine-down" role="status">
      <p>
        <b>The engine refuses {named ? <Link to={place("/models", name)}>{name}</Link> : "it"}:</b> {reason}
      </p>
      <p className="faint">
        {fallbacks.length === 0 ? "Requests get 503." : `Requests are served by ${fallbacks.join(", then by ")}.`} The
        engine retries automatically.
      </p>
    </div>
  );
}

/** Weights on the device: each model's part of the budget, loads and evictions, and models elsewhere. */
export function WeightsBudget({ of: answer }: { of: ModelsAnswer }) {
  const colour = hues(answer.data);
  if (answer.weights_bytes === null) return null;
  const there = answer.data.filter((model) => model.where === "device" || model.coming === true);
  const elsewhere = answer.data.filter(
    (model) => !there.includes(model) && (model.state === "serving" || model.state === "draining"),
  );
  const held = there.reduce((sum, model) => sum + (model.weights_bytes ?? 0), 0);
  // The engine no longer reports the weights of a draining model.
  const unknown = there.filter((model) => model.weights_bytes === null).map((model) => model.name);
  const limit = answer.weights_bytes;
  const parts: Part[] = there.map((model) => ({
    key: model.name,
    value: model.weights_bytes ?? 0,
    known: model.weights_bytes !== null,
    hue: colour.get(model.name) ?? 0,
    moving: model.coming === true || model.leaving === true,
    note: (
      <>
        {model.weights_bytes === null ? "size unknown" : bytes(model.weights_bytes)}
        {model.pinned && ", pinned"}
        {model.coming ? ", loading" : model.leaving ? ", being evicted" : ""}
      </>
    ),
  }));
  return (
    <section className="panel weights" aria-label="Weights on the device">
      <div className="weights-head">
        <h2>Weights on the device</h2>
        <span className="note num">
          {limit === 0
            ? `${bytes(held)} in total; no limit is set, so no model is evicted`
            : unknown.length > 0
              ? `${bytes(held)} of ${bytes(limit)}, plus the weights of ${unknown.join(", ")}`
              : `${bytes(held)} of ${bytes(limit)}, ${bytes(Math.max(0, limit - held))} free`}
        </span>
      </div>
      <ShareBar label="Weights on the device" parts={parts} {...(limit === 0 ? {} : { whole: limit })} />
      {elsewhere.length > 0 && (
        <p className="note">
          Not on the device:{" "}
          {elsewhere.map((model, index) => (
            <span key={model.name}>
              {index > 0 && "; "}
              <Link to={place("/models", model.name)}>{model.name}</Link> {whereSaid(model)}
              {model.weights_bytes !== null && `, ${bytes(model.weights_bytes)}`}
              {coldSaid(model) !== null && `, ${coldSaid(model)}`}
            </span>
          ))}
          .
        </p>
      )}
    </section>
  );
}
