// The engines of the fleet: state, load by tier, contents, and draining. Bars have one scale for all engines.
import { useState } from "react";
import { api, useMay, useWrite } from "../../api";
import {
  Badge,
  ConfirmDialog,
  EmptyState,
  Facts,
  Link,
  Loaded,
  PageHead,
  ShortId,
  Sparkline,
  StatTile,
  Tiles,
  count,
  duration,
  place,
  rate,
  toast,
} from "../../kit";
import { type Engine, EngineState, type EnginesAnswer, useEngines } from "../parts/engines";
import "./engines.css";

type Tier = Engine["tiers"][number];
type Rates = ReadonlyMap<string, readonly number[]>;

const RATES_MAX = 150; // samples of each engine: five minutes
const CHANGES = ["/v1/admin/engines", "/v1/admin/health", "/v1/admin/overview", "/v1/admin/audit_log"];
const NOTES: Partial<Record<Engine["state"], string>> = {
  draining: "The engine refuses new requests and finishes its running requests.",
  leaving:
    "The list of engines does not have this engine any more. The gateway closes the connection once all texts of the engine have ended.",
  stuck: "The engine responds, but makes no progress with its requests.",
  connecting:
    "The gateway has no connection to the engine and retries. Texts of the engine continue on another engine, or wait for an engine.",
};

export default function Engines() {
  const found = useEngines();
  const rates = useRates(found.data, found.dataUpdatedAt);
  return (
    <>
      <PageHead title="Engines" note="The engines that this gateway sends requests to, refreshed every 2 seconds." />
      <Loaded of={found} lines={10}>
        {(fleet) => (
          <div className="stack">
            {found.error !== null && (
              <div className="problem" role="alert">
                <p>The gateway no longer responds. Its last answer is shown below.</p>
              </div>
            )}
            {fleet.roster_stale_s !== null && <StaleRoster seconds={fleet.roster_stale_s} />}
            <FleetTiles of={fleet} />
            {fleet.data.length === 0 ? (
              <EmptyState title="The list of engines is empty">
                <p>Requests get 503 until the source of the list has an engine.</p>
              </EmptyState>
            ) : (
              fleet.data.map((engine) => (
                <EnginePanel key={engine.name} of={engine} fleet={fleet.data} rates={rates.get(engine.name) ?? []} />
              ))
            )}
          </div>
        )}
      </Loaded>
    </>
  );
}

/** Tokens per second of each engine since the page was opened. */
function useRates(fleet: EnginesAnswer | undefined, at: number): Rates {
  const [kept, setKept] = useState<{ at: number; rates: Rates }>({ at: 0, rates: new Map() });
  if (fleet !== undefined && at !== kept.at) {
    const rates = fleet.data.map(({ name, tokens_per_s }) => {
      const before = kept.rates.get(name) ?? [];
      return [name, [...before, tokens_per_s].slice(-RATES_MAX)] as const;
    });
    setKept({ at, rates: new Map(rates) });
  }
  return kept.rates;
}

function StaleRoster({ seconds }: { seconds: number }) {
  return (
    <div className="problem problem-warn" role="alert">
      <p>
        <b>The list of engines is stale:</b> its source has not responded for {duration(seconds)}.
      </p>
      <p className="faint">
        Requests are served with the last list. Engines added or removed since then are not known.
      </p>
    </div>
  );
}

/** Sums over all engines, and how many texts changed engines. */
function FleetTiles({ of: fleet }: { of: EnginesAnswer }) {
  const listed = fleet.data.filter((engine) => engine.state !== "leaving");
  const ready = listed.filter((engine) => engine.state === "ready").length;
  const total = (name: "running" | "waiting" | "tokens_per_s") =>
    fleet.data.reduce((sum, engine) => sum + engine[name], 0);
  return (
    <div className="engines-tiles">
      <Tiles>
        <StatTile
          label="Ready"
          tone={ready === 0 ? "bad" : ready < listed.length ? "warn" : "good"}
          value={`${count(ready)} of ${count(listed.length)}`}
          note={listed.length === 1 ? "engine" : "engines"}
        />
        <StatTile
          label="Tokens per second"
          value={rate(total("tokens_per_s"))}
          note={`${count(total("running"))} running, ${count(total("waiting"))} waiting`}
        />
        <StatTile label="Texts resumed" value={count(fleet.resumed)} note="on another engine, with their tokens" />
        <StatTile label="Texts moved" value={count(fleet.moved)} note="to another engine, before their first token" />
        <StatTile label="Texts hedged" value={count(fleet.hedged)} note="started on a second engine too" />
        <StatTile
          label="Texts lost"
          tone={fleet.lost > 0 ? "bad" : "plain"}
          value={count(fleet.lost)}
          note="no engine could continue them"
        />
      </Tiles>
    </div>
  );
}

function EnginePanel({ of: engine, fleet, rates }: { of: Engine; fleet: readonly Engine[]; rates: readonly number[] }) {
  const note = NOTES[engine.state];
  const connected = engine.state !== "connecting";
  return (
    <section className={`panel engine engine-${engine.state}`} aria-label={`Engine ${engine.name}`}>
      <div className="engine-head">
        <h2>
          <Link to="/live" query={{ engine: engine.name }}>
            {engine.name}
          </Link>
        </h2>
        <EngineState of={engine} />
        <code className="faint">{engine.address}</code>
        <DrainButton of={engine} fleet={fleet} />
      </div>
      {note !== undefined && <p className="engine-note">{note}</p>}
      {Object.entries(engine.silent).map(([model, why]) => (
        <p className="engine-note" key={model}>
          {model} makes no tokens: {why}
        </p>
      ))}
      <div className="engine-body">
        <div className="engine-load">
          {connected ? (
            <>
              <RequestsBar of={engine} fleet={fleet} />
              <Queue of={engine} fleet={fleet} />
            </>
          ) : (
            <p className="faint">Its load is not known.</p>
          )}
        </div>
        <div className="engine-rates">
          <div>
            <span className="soft">Tokens per second</span>
            <b className="num">{connected ? rate(engine.tokens_per_s) : "–"}</b>
            <Sparkline values={rates} label={`Tokens per second of ${engine.name} since this page was opened`} />
          </div>
          <div>
            <span className="soft">Prefix hit rate</span>
            <b className="num">
              {engine.prefix_hit_rate === null ? "–" : `${(engine.prefix_hit_rate * 100).toFixed(1)} %`}
            </b>
            <svg className="engine-bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
              <rect className="engine-bar-all" width="100" height="8" />
              <rect className="engine-bar-running" width={(engine.prefix_hit_rate ?? 0) * 100} height="8" />
            </svg>
          </div>
        </div>
        <Contents of={engine} />
      </div>
    </section>
  );
}

/** Running and waiting requests, over the busiest engine's. */
function RequestsBar({ of: engine, fleet }: { of: Engine; fleet: readonly Engine[] }) {
  const most = Math.max(1, ...fleet.map(({ running, waiting }) => running + waiting));
  const width = (requests: number) => (100 * requests) / most;
  return (
    <div className="engine-requests">
      <svg
        className="engine-bar"
        viewBox="0 0 100 8"
        preserveAspectRatio="none"
        role="img"
        aria-label={`Requests of ${engine.name}: ${engine.running} running, ${engine.waiting} waiting`}
      >
        <rect className="engine-bar-all" width="100" height="8" />
        <rect className="engine-bar-running" width={width(engine.running)} height="8" />
        <rect className="engine-bar-waiting" x={width(engine.running)} width={width(engine.waiting)} height="8" />
      </svg>
      <span className="num">
        <b>{count(engine.running)}</b> running, <b>{count(engine.waiting)}</b> waiting;{" "}
        {engine.streams === 1 ? "1 text" : `${count(engine.streams)} texts`} of this gateway
      </span>
    </div>
  );
}

function Queue({ of: engine, fleet }: { of: Engine; fleet: readonly Engine[] }) {
  if (engine.tiers.length === 0) return <p className="faint">Its queues are not known yet.</p>;
  const most = Math.max(1, ...fleet.flatMap(({ tiers }) => tiers.map(({ queued }) => queued)));
  return (
    <div className="table-scroll">
      <table className="table engine-queue">
        <caption className="sr-only">Queue of {engine.name} by tier</caption>
        <thead>
          <tr>
            <th scope="col">Tier</th>
            <th scope="col">Queue</th>
            <th scope="col" className="end">
              Queued
            </th>
            <th scope="col" className="end">
              Predicted wait
            </th>
          </tr>
        </thead>
        <tbody>
          {engine.tiers.map((tier) => (
            <QueueRow key={tier.name} of={tier} most={most} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function QueueRow({ of: tier, most }: { of: Tier; most: number }) {
  return (
    <tr>
      <th scope="row">
        <Link to="/tiers">{tier.name}</Link>
      </th>
      <td>
        <svg className="engine-bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
          <rect className="engine-bar-all" width="100" height="8" />
          <rect className="engine-bar-waiting" width={(100 * tier.queued) / most} height="8" />
        </svg>
      </td>
      <td className="end num">{tier.queued > 0 ? <b>{count(tier.queued)}</b> : 0}</td>
      <td className="end num">{duration(tier.wait_s)}</td>
    </tr>
  );
}

/** The contents of the engine, and its process. */
function Contents({ of: engine }: { of: Engine }) {
  const names = [...new Set([...engine.models, ...Object.keys(engine.loading), ...Object.keys(engine.refused)])].sort();
  const models =
    names.length === 0 ? (
      <span className="faint">none</span>
    ) : (
      <ul className="engine-models">
        {names.map((name) => (
          <li key={name}>
            <Link to={place("/models", name)}>{name}</Link> <ModelBadge of={engine} name={name} />
          </li>
        ))}
      </ul>
    );
  return (
    <Facts
      facts={[
        ["Models", models],
        [
          "Adapters resident",
          <span className="num">{engine.state === "connecting" ? "–" : count(engine.adapters_resident)}</span>,
        ],
        [
          "Protocol and build",
          <span>
            {engine.protocol_version === null ? "not connected" : `version ${engine.protocol_version}`}
            {engine.build !== "" && (
              <>
                , <code>{engine.build}</code>
              </>
            )}
          </span>,
        ],
        ["Epoch", engine.epoch === "" ? <span className="faint">–</span> : <ShortId value={engine.epoch} />],
      ]}
    />
  );
}

function ModelBadge({ of: engine, name }: { of: Engine; name: string }) {
  const refused = engine.refused[name];
  if (refused !== undefined)
    return (
      <>
        <Badge tone="bad">refused</Badge> <span className="faint">{refused}</span>
      </>
    );
  if (engine.state === "connecting") return <Badge>not connected</Badge>;
  const seconds = engine.loading[name];
  if (seconds === undefined) return <Badge tone="good">resident</Badge>;
  return (
    <>
      <Badge tone="accent">not resident</Badge> <span className="faint num">loads in {duration(seconds)}</span>
    </>
  );
}

/** Drains a ready engine, or lets a draining one serve again. */
function DrainButton({ of: engine, fleet }: { of: Engine; fleet: readonly Engine[] }) {
  const [open, setOpen] = useState(false);
  const may = useMay();
  const write = useWrite(
    (draining: boolean) =>
      api.post("/v1/admin/engines/{name}/drain", { path: { name: engine.name }, body: { draining } }),
    CHANGES,
  );
  const drains = engine.state !== "draining";
  if (!may("engine:write")) return null;
  const others = fleet.filter((other) => other.name !== engine.name && other.state === "ready");
  const possible = engine.state === "ready" || engine.state === "stuck" || engine.state === "draining";
  return (
    <span className="actions">
      <button type="button" className="button" disabled={!possible} onClick={() => setOpen(true)}>
        {drains ? "Drain" : "Serve again"}
        <span className="sr-only"> {engine.name}</span>
      </button>
      <ConfirmDialog
        open={open}
        onClose={() => setOpen(false)}
        title={drains ? `Drain ${engine.name}?` : `Let ${engine.name} serve again?`}
        verb={drains ? "Drain" : "Serve again"}
        tone={drains ? "bad" : "plain"}
        action={async () => {
          await write.mutateAsync(drains);
          toast(drains ? `${engine.name} drains.` : `${engine.name} serves again.`);
        }}
      >
        {drains ? (
          <>
            {engine.name} refuses new requests of every gateway and finishes its running requests.{" "}
            {others.length === 0 ? (
              <b>No other engine is ready: new requests get 503 meanwhile.</b>
            ) : (
              <>Other engines serve new requests.</>
            )}{" "}
            It serves again when you say so, or when it is restarted.
          </>
        ) : (
          "Every gateway sends new requests to it within a second."
        )}
      </ConfirmDialog>
    </span>
  );
}
