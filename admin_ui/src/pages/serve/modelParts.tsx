// What is said of a base model in several places: its state, where its weights are, who may call it, and the device's
// weights as one bar.
import { type AnswerOf, useGet } from "../../api";
import { Badge, Link, Time, type Tone, bytes, duration, place } from "../../kit";
import { TenantName } from "../parts/names";
import { type Part, ShareBar } from "../parts/shares";

export type ModelsAnswer = AnswerOf<"/v1/admin/models">;
export type Model = ModelsAnswer["data"][number];
export const MODELS = ["/v1/admin/models", "/v1/admin/audit_log", "/v1/models"];
const LIVE_MS = 2_000;
const FEW = 3;

/** Base models, asked again while the page is looked at. */
export function useModels(enabled = true) {
  return useGet("/v1/admin/models", undefined, { enabled, everyMs: LIVE_MS });
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
  if (model.where === null) return "not known now";
  if (model.coming) return `coming, from ${model.where === "disk" ? "disk" : "host memory"}`;
  return model.leaving && model.where === "device" ? "on the device, leaving" : WHERE[model.where];
}

/** As it is to be; the engine may have had no room for it. */
export function Pinned({ of: model }: { of: Model }) {
  if (!model.pinned) return null;
  return model.pinned_there === false ? (
    <Badge tone="warn">pinned, but without room</Badge>
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
        {model.loads !== null && model.loads > 0 && `, came ${model.loads === 1 ? "once" : `${model.loads} times`}`}
      </span>
    </div>
  );
}

/** Who may call it: null is everybody. */
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
      {model.origin === "config" ? "laneway.toml" : "added while it served"}
      {model.changed_at !== null && (
        <>
          , changed <Time at={model.changed_at} />
        </>
      )}
    </>
  );
}

/** A colour for each model, by its place among all: the same on every page. Of the eight of the charts, and then again. */
export function hues(models: readonly Model[]): ReadonlyMap<string, number> {
  return new Map(models.map((model, index) => [model.name, index]));
}

/** Until a request that comes now could begin: said of those whose weights are not on the device. */
export function coldSaid(model: Model): string | null {
  return model.wait_s === null || model.wait_s <= 0 ? null : `ready in ${duration(model.wait_s)}`;
}

/** Said where what an engine makes of its models is shown. */
export function EngineAway({ of: { engine_away } }: { of: ModelsAnswer }) {
  if (engine_away === null) return null;
  return (
    <div className="problem engine-away" role="status">
      <p>
        The engine is away: {engine_away} What it made of its models is as it last said.{" "}
        <Link to="/health">Health</Link>
      </p>
    </div>
  );
}

/** Why the engine does not serve it, where it does not; `named`: where that does not say which. */
export function Refused({ of: { name, reason, fallbacks }, named = false }: { of: Model; named?: boolean }) {
  if (reason === null) return null;
  return (
    <div className="problem engine-away" role="status">
      <p>
        <b>The engine refuses {named ? <Link to={place("/models", name)}>{name}</Link> : "it"}:</b> {reason}
      </p>
      <p className="faint">
        {fallbacks.length === 0 ? "Callers get 503." : `Callers are served by ${fallbacks.join(", else by ")}.`} It is
        tried again by itself.
      </p>
    </div>
  );
}

/** The device's weights: who takes which share of the budget, who comes and leaves, and who is elsewhere. */
export function WeightsBudget({ of: answer }: { of: ModelsAnswer }) {
  const colour = hues(answer.data);
  if (answer.weights_bytes === null) return null;
  const there = answer.data.filter((model) => model.where === "device" || model.coming === true);
  const away = answer.data.filter(
    (model) => !there.includes(model) && (model.state === "serving" || model.state === "draining"),
  );
  const held = there.reduce((sum, model) => sum + (model.weights_bytes ?? 0), 0);
  // Of one that drains it is not told any more.
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
        {model.coming ? ", coming" : model.leaving ? ", leaving" : ""}
      </>
    ),
  }));
  return (
    <section className="panel weights" aria-label="Weights on the device">
      <div className="weights-head">
        <h2>Weights on the device</h2>
        <span className="note num">
          {limit === 0
            ? `${bytes(held)} in all; no limit is set, so all models stay`
            : unknown.length > 0
              ? `${bytes(held)} of ${bytes(limit)}, and what ${unknown.join(", ")} still has`
              : `${bytes(held)} of ${bytes(limit)}, ${bytes(Math.max(0, limit - held))} to be had`}
        </span>
      </div>
      <ShareBar label="Weights on the device" parts={parts} {...(limit === 0 ? {} : { whole: limit })} />
      {away.length > 0 && (
        <p className="note">
          Elsewhere:{" "}
          {away.map((model, index) => (
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
