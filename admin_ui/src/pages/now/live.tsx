// One engine, refreshed every second: pages by owner, queues, requests in flight, preemptions, adapter locations.
import { type ReactNode, useEffect, useState } from "react";
import { useMay } from "../../api";
import {
  Badge,
  EmptyState,
  Link,
  PageHead,
  Section,
  Skeleton,
  StatTile,
  Tiles,
  bytes,
  count,
  duration,
  moment,
  rate,
  useView,
  useZone,
} from "../../kit";
import type { EngineEvent } from "./liveArena";
import { type Feed, Listening, grown, useFeed } from "./liveFeed";
import { ArenaMap, useLook } from "./liveMap";
import { Minutes } from "./liveMinutes";
import { Adapters, Preemptions, Queues, Requests } from "./liveParts";
import { WeightsBudget, useModels } from "../serve/modelParts";
import { type Engine, useEngines } from "../parts/engines";
import "./live.css";

const LATE_S = 5;
const TITLE = "Live engine";
const NOTE = "Refreshed every second while this page is visible.";

/** The engine of the address, by default the first ready one when the page is opened. */
export default function Live() {
  const found = useEngines();
  const view = useView({ engine: "" });
  const [first, setFirst] = useState<string | null>(null);
  const engines = found.data?.data ?? [];
  if (first === null && (found.data !== undefined || found.error !== null)) setFirst(firstReady(engines));
  const name = view.values.engine === "" ? first : view.values.engine;
  const pick =
    engines.length > 1 ? (
      <EnginePicker engines={engines} name={name ?? ""} onPick={(engine) => view.set({ engine })} />
    ) : null;
  if (name === null || (found.data === undefined && found.error === null))
    return (
      <>
        <PageHead title={TITLE} note={NOTE} />
        <Skeleton lines={10} />
      </>
    );
  if (name !== "" && found.data !== undefined && !engines.some((engine) => engine.name === name))
    return (
      <>
        <PageHead title={TITLE} note={NOTE}>
          {pick}
        </PageHead>
        <EmptyState title={`There is no engine ${name}`}>
          <p>
            The list of engines does not have it. <Link to="/engines">Engines</Link>
          </p>
        </EmptyState>
      </>
    );
  const load = engines.find((engine) => engine.name === name);
  return <Watched key={name} name={name} pick={pick} several={engines.length > 1} load={load} />;
}

/** By name; without a ready engine, the first one. */
function firstReady(engines: readonly Engine[]): string {
  return (engines.find((engine) => engine.state === "ready") ?? engines[0])?.name ?? "";
}

function EnginePicker({
  engines,
  name,
  onPick,
}: {
  engines: readonly Engine[];
  name: string;
  onPick: (name: string) => void;
}) {
  return (
    <label className="filter">
      <span>Engine</span>
      <select value={name} onChange={(event) => onPick(event.target.value)}>
        {!engines.some((engine) => engine.name === name) && <option value={name}>{name}</option>}
        {engines.map((engine) => (
          <option key={engine.name} value={engine.name}>
            {engine.state === "ready" ? engine.name : `${engine.name} (${engine.state})`}
          </option>
        ))}
      </select>
    </label>
  );
}

/** `load`: the engine as the list of engines has it. */
function Watched({
  name,
  pick,
  several,
  load,
}: {
  name: string;
  pick: ReactNode;
  several: boolean;
  load: Engine | undefined;
}) {
  const feed = useFeed(name);
  const [paused, setPaused] = useState(false);
  const late = useLateness(feed);
  const { event, away } = feed;
  return (
    <>
      {!paused && <Listening engine={name} />}
      <PageHead title={several ? `${TITLE} ${name}` : TITLE} note={NOTE}>
        {pick}
        <FeedStatus feed={feed} paused={paused} late={late} />
        <button type="button" className="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>
          {paused ? "Resume" : "Pause"}
        </button>
      </PageHead>
      {away !== null && <EngineUnavailable away={away} event={event} />}
      {event === null ? (
        away === null && <Skeleton lines={10} />
      ) : (
        <Moment engine={name} event={event} feed={feed} load={load} old={away !== null || late > LATE_S} />
      )}
    </>
  );
}

/** The age of the snapshot in seconds, by this page's clock: shows a stream that stopped. */
function useLateness({ event }: Feed): number {
  const [late, setLate] = useState(0);
  useEffect(() => {
    const came = performance.now();
    setLate(0);
    const timer = setInterval(() => setLate(Math.floor((performance.now() - came) / 1000)), 1000);
    return () => clearInterval(timer);
  }, [event]);
  return late;
}

function FeedStatus({ feed, paused, late }: { feed: Feed; paused: boolean; late: number }) {
  const zone = useZone();
  const [tone, words] = ((): ["good" | "warn" | "bad" | "plain", string] => {
    if (paused) return ["plain", "Paused"];
    if (feed.away !== null) return ["bad", "Engine unavailable"];
    if (feed.stream === "broken") return ["warn", "Connection lost, reconnecting"];
    if (feed.event === null || feed.stream === "opening") return ["plain", "Connecting"];
    return late > LATE_S ? ["warn", `No update for ${duration(late)}`] : ["good", "Live"];
  })();
  return (
    <span className="live-status">
      <span role="status">
        <Badge tone={tone}>{words}</Badge>
      </span>
      {feed.event !== null && <span className="faint num">as of {moment(feed.event.at, zone).slice(11)}</span>}
    </span>
  );
}

function EngineUnavailable({ away, event }: { away: NonNullable<Feed["away"]>; event: EngineEvent | null }) {
  const zone = useZone();
  return (
    <div className="problem engine-unavailable" role="alert">
      <p>
        <b>The engine is unavailable:</b> {away.reason}.
      </p>
      <p className="faint">
        Since {moment(away.at, zone)}.{" "}
        {event === null
          ? "The console retries every second."
          : "The last snapshot is shown below; the console retries every second."}{" "}
        <Link to="/health">Health</Link> shows what is down.
      </p>
    </div>
  );
}

function Moment({
  engine,
  event,
  feed,
  load,
  old,
}: {
  engine: string;
  event: EngineEvent;
  feed: Feed;
  load: Engine | undefined;
  old: boolean;
}) {
  const view = useView({ tier: "", state: "", model: "", where: "" });
  const models = useModels(useMay()("models:read"), engine).data;
  const look = useLook(event, models?.data);
  return (
    <div className={old ? "live live-old" : "live"}>
      <Glance event={event} feed={feed} load={load} />
      <ArenaMap event={event} look={look} />
      {/* With a single resident model the bar would add no information. */}
      {models !== undefined && (models.data.length > 1 || models.weights_bytes !== 0) && <WeightsBudget of={models} />}
      <div className="live-two">
        <Section title="Queues by tier" note="A tier's floor is guaranteed: other tiers never take those pages.">
          <Queues event={event} palette={look.palette} />
        </Section>
        <Minutes event={event} samples={feed.samples} palette={look.palette} />
      </div>
      <div className="live-two">
        <Section title="Preemptions">
          <Preemptions preemptions={feed.preemptions} />
        </Section>
        <Section title="Adapter locations">
          <Adapters event={event} view={view} />
        </Section>
      </div>
      <Section title="Requests in flight">
        <Requests event={event} view={view} />
      </Section>
      <p className="faint">
        Engine {event.engine}, epoch <code>{event.epoch}</code>, step {count(event.steps)}.
      </p>
    </div>
  );
}

function Glance({ event, feed, load }: { event: EngineEvent; feed: Feed; load: Engine | undefined }) {
  const total = (name: "waiting" | "running") => event.tiers.reduce((sum, tier) => sum + tier[name], 0);
  const free = event.arena.owners
    .filter((one) => one.kind === "free" || one.kind === "cached")
    .reduce((sum, one) => sum + one.pages, 0);
  const steps = grown(feed.samples, "steps", 10);
  const gave = grown(feed.samples, "preempted", 60);
  const oldest = event.requests
    .filter((one) => one.state === "waiting")
    .reduce((most, one) => Math.max(most, one.age_s), 0);
  return (
    <Tiles>
      <StatTile
        label="Running"
        value={count(total("running"))}
        note={steps.over > 0 ? `${(steps.by / steps.over).toFixed(1)} steps per second` : "measuring steps per second"}
      />
      <StatTile
        label="Waiting"
        value={count(total("waiting"))}
        tone={total("waiting") > 0 ? "warn" : "plain"}
        note={total("waiting") > 0 && oldest > 0 ? `oldest: ${duration(oldest)}` : "none"}
      />
      <StatTile
        label="Tokens per second"
        value={load === undefined ? "–" : rate(load.tokens_per_s)}
        note="of all requests on this engine"
      />
      <StatTile
        label="Prefix hit rate"
        value={load?.prefix_hit_rate == null ? "–" : `${(load.prefix_hit_rate * 100).toFixed(1)} %`}
        note="of prompt tokens since the engine started"
      />
      <StatTile
        label="Free pages"
        value={`${event.arena.pages === 0 ? 0 : Math.round((100 * free) / event.arena.pages)} %`}
        note={`${count(free)} free or cached of ${count(event.arena.pages)}, ${bytes(event.arena.pages * event.arena.page_bytes)} in all`}
      />
      <StatTile
        label="Preempted"
        value={count(gave.by)}
        tone={gave.by > 0 ? "warn" : "plain"}
        note={gave.over < 59 ? `in the ${Math.round(gave.over)} s since this page opened` : "in the last minute"}
      />
    </Tiles>
  );
}
