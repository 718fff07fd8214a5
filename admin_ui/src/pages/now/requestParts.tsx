// Parts of the request page: the phases of its time, its targets, and the error of a refused request.
import type { ReactNode } from "react";
import { type AnswerOf, useGet, useMay } from "../../api";
import { Badge, Facts, Id, Link, Money, Section, Time, count, duration, place } from "../../kit";
import { AnsweredBy, KeyName, TenantName } from "../parts/names";

type RequestView = AnswerOf<"/v1/admin/requests/{request_id}">;
type SlownessView = NonNullable<RequestView["slowness"]>;
type Phase = SlownessView["phases"][number];
type Verdict = NonNullable<SlownessView["verdict"]>;
type RequestError = NonNullable<RequestView["error"]>;

const PHASES: Record<Phase["name"], { word: string; kind: string }> = {
  gateway: { word: "in the gateway: limits, budgets", kind: "c4" },
  adapter_load: { word: "loading the adapter", kind: "c5" },
  queue: { word: "in the queue", kind: "c7" },
  prefill: { word: "prefill, until the first token", kind: "c0" },
  decode: { word: "decode, until the end", kind: "c2" },
};
const SHORT_S = 0.00995;
/** As `duration`, with two digits of a few milliseconds. */
const lasted = (seconds: number) =>
  seconds > 0 && seconds < SHORT_S ? `${Number((seconds * 1000).toPrecision(2))} ms` : duration(seconds);

/** The phases of the request's time since its arrival, against its targets. */
export function Slowness({ whole }: { whole: RequestView }) {
  const { slowness } = whole;
  if (slowness === null) {
    return (
      <p className="note">
        {whole.status === "held"
          ? "The request is running; its timings are known when it ends."
          : "The request was not settled, so it has no timings."}
      </p>
    );
  }
  const { phases, verdict } = slowness;
  const ended_s = phases.reduce((all, phase) => Math.max(all, phase.start_s + phase.seconds), 0);
  const first_s = whole.ttft_s ?? 0;
  return (
    <figure className="timings panel">
      <figcaption>
        {first_s > 0 && (
          <>
            First token after <b className="num">{duration(first_s)}</b>,{" "}
          </>
        )}
        ended after <b className="num">{duration(ended_s)}</b>{" "}
        <span className="faint">from its arrival at the gateway</span>
      </figcaption>
      {verdict !== null && <Verdicts of={verdict} tier={whole.tier} first_s={first_s} />}
      {whole.batch_id !== null && <p className="faint">no first-token target: a line of a batch</p>}
      <Bar phases={phases} whole_s={ended_s} target_s={verdict?.ttft_target_s ?? null} />
      <ul>
        {phases.map((phase) => (
          <li key={phase.name}>
            <svg viewBox="0 0 10 10" aria-hidden="true">
              <rect className={PHASES[phase.name].kind} width="10" height="10" rx="2" />
            </svg>
            <span className="num">{lasted(phase.seconds)}</span>{" "}
            <span className="faint">{PHASES[phase.name].word}</span>
            {phase.name === "queue" && <QueuedBehind causes={slowness.queued_behind} />}
          </li>
        ))}
      </ul>
      <Causes of={slowness} model={whole.model} />
    </figure>
  );
}

/** The tiers for whose requests the device computed while this one was in the queue. */
function QueuedBehind({ causes }: { causes: SlownessView["queued_behind"] }) {
  const behind = causes.map((one) => `${one.tier} ${lasted(one.device_s)}`).join(", ");
  return causes.length === 0 ? null : (
    <span className="faint" title="Seconds in which the device computed for each tier's requests during this wait">
      , behind {behind}
    </span>
  );
}

function Bar({ phases, whole_s, target_s }: { phases: readonly Phase[]; whole_s: number; target_s: number | null }) {
  const total = Math.max(0.000001, whole_s);
  const words = phases.map((phase) => `${PHASES[phase.name].word}: ${lasted(phase.seconds)}`).join(", ");
  const target = target_s === null || target_s > whole_s ? null : (100 * target_s) / total;
  return (
    <svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={words}>
      {phases.map((phase) => (
        <rect
          key={phase.name}
          className={PHASES[phase.name].kind}
          x={(100 * phase.start_s) / total}
          width={(100 * phase.seconds) / total}
          height="6"
        />
      ))}
      {target !== null && (
        <line className="timings-target" x1={target} x2={target} y1="0" y2="6" vectorEffect="non-scaling-stroke" />
      )}
    </svg>
  );
}

function Verdicts({ of, tier, first_s }: { of: Verdict; tier: string; first_s: number }) {
  const basis = of.basis === "today" ? "target today" : "target";
  return (
    <ul className="timings-verdicts">
      {of.ttft_met !== null && (
        <li>
          <Met met={of.ttft_met} /> first token: {duration(first_s)}, {basis} of {tier} {duration(of.ttft_target_s)}
        </li>
      )}
      {of.inter_token_met !== null && of.inter_token_s !== null && (
        <li>
          <Met met={of.inter_token_met} /> each further token: {duration(of.inter_token_s)} on average, {basis}{" "}
          {duration(of.inter_token_target_s)}
        </li>
      )}
    </ul>
  );
}

function Met({ met }: { met: boolean }) {
  return <Badge tone={met ? "good" : "bad"}>{met ? "target met" : "target missed"}</Badge>;
}

/** The known causes: weights that were not resident, and preemptions. */
function Causes({ of, model }: { of: SlownessView; model: string }) {
  const lines: ReactNode[] = [];
  if (of.weights_s !== null && of.weights_s > 0) {
    lines.push(
      <>
        The weights of <b>{model}</b> were not on the device when the request was submitted. Loading them takes{" "}
        {duration(of.weights_s)} as the engine predicted, and is a part of the queue.
      </>,
    );
  }
  if (of.preemptions > 0) {
    const costs = of.preempted_by.map(
      (one) => `${duration(one.device_s)} to recompute ${count(one.recomputed_tokens)} tokens for ${one.by}`,
    );
    lines.push(
      <>
        Preempted {of.preemptions === 1 ? "once" : `${count(of.preemptions)} times`}
        {costs.length > 0 && <>: {costs.join(", ")}</>}. The waits until it ran again are in its prefill and decode.
      </>,
    );
  }
  return lines.length === 0 ? null : (
    <ul className="timings-causes">
      {lines.map((line, index) => (
        <li key={index}>{line}</li>
      ))}
    </ul>
  );
}

/** A budget that held the request, by its window, unit and scope. */
export function BudgetLink({ id }: { id: string }) {
  const may = useMay()("money:read");
  const { data } = useGet("/v1/admin/budgets/{budget_id}", { path: { budget_id: id } }, { enabled: may });
  return (
    <Link to="/budgets" query={{ search: id }} title={id}>
      {data === undefined
        ? id
        : `${data.scope}, ${data.unit}, ${data.period === "total" ? "all time" : `per ${data.period}`}`}
    </Link>
  );
}

/** A request that ended with an error before it had a hold. */
export function Refused({ whole, error }: { whole: RequestView; error: RequestError | null }) {
  return (
    <>
      <Section title="Error" note="The error that the caller got.">
        {error !== null && <ErrorFacts error={error} tenant_id={whole.tenant_id} />}
      </Section>
      <Section title="Request">
        <Facts
          facts={[
            ["Tenant", <TenantName id={whole.tenant_id} />],
            ["Key", <KeyName id={whole.key_id} />],
            [
              "Requested model",
              whole.model === "" ? (
                <span className="faint">unknown: the request was refused before its body was read</span>
              ) : (
                <AnsweredBy model={whole.model} adapter={null} />
              ),
            ],
            ["Tier", <Link to="/tiers">{whole.tier}</Link>],
            ["Ended", <Time at={whole.ended_at ?? whole.started_at} absolute />],
            ["Duration", <span className="num">{lasted(whole.duration_s ?? 0)}</span>],
            ["Charged", "nothing"],
          ]}
        />
      </Section>
    </>
  );
}

export function ErrorFacts({ error, tenant_id }: { error: RequestError; tenant_id: string }) {
  return (
    <Facts
      facts={[
        ["Code", <Id value={error.code} />],
        ["HTTP status", <span className="num">{error.status}</span>],
        ["Route", <code>{error.route}</code>],
        ...(error.limit_name === null || error.limit_value === null
          ? []
          : [["Limit", <Limit name={error.limit_name} value={error.limit_value} tenant={tenant_id} />] as const]),
        ...(error.param === null ? [] : [["Field", <code>{error.param}</code>] as const]),
        ...(error.retry_after_s === null
          ? []
          : [["Retry after", <span className="num">{duration(error.retry_after_s)}</span>] as const]),
        ["Message", error.message ?? <span className="faint">not stored: it can quote the request</span>],
      ]}
    />
  );
}

/** "key_requests_per_minute" → "key requests per minute: 60", with a link to the tenant's budgets or limits. */
function Limit({ name, value, tenant }: { name: string; value: number; tenant: string }) {
  const money = name.includes("_money_") || name.includes("budget");
  return (
    <>
      {name.replaceAll("_", " ")}:{" "}
      {name.includes("_money_") ? <Money picos={value} /> : <span className="num">{count(value)}</span>}{" "}
      <Link to={place("/tenants", tenant)} query={{ tab: money ? "budgets" : "limits" }}>
        {money ? "Budgets" : "Limits"}
      </Link>
    </>
  );
}
