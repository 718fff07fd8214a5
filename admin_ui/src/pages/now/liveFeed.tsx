// The events of each watched engine: the latest snapshot, samples of the last minutes, preemptions. They are kept while
// another page or engine is shown, so that the history is there afterwards; the stream is closed meanwhile.
import { useEffect, useSyncExternalStore } from "react";
import { useEvents } from "../../api";
import type { components } from "../../api/schema";
import { type EngineEvent, ownerKey } from "./liveArena";

export type Preemption = components["schemas"]["LivePreemption"];

/** One sample: pages by owner, and the counters whose growth is shown. */
export interface Sample {
  at: number;
  pages: number;
  owners: ReadonlyMap<string, number>;
  steps: number;
  preempted: number;
}

export interface Feed {
  event: EngineEvent | null;
  /** Why the engine is unavailable, and since when. */
  away: { at: number; reason: string } | null;
  samples: readonly Sample[];
  /** Newest first. */
  preemptions: readonly Preemption[];
  stream: "opening" | "open" | "broken";
}

export const MINUTES = 5;
const PREEMPTIONS_MAX = 100;
const NOTHING: Feed = { event: null, away: null, samples: [], preemptions: [], stream: "opening" };

/** By engine; "": the first ready engine, of a gateway that lists none. */
const feeds = new Map<string, Feed>();
const watchers = new Set<() => void>();

function feedOf(engine: string): Feed {
  return feeds.get(engine) ?? NOTHING;
}

function become(engine: string, change: Partial<Feed>): void {
  feeds.set(engine, { ...feedOf(engine), ...change });
  for (const watcher of watchers) watcher();
}

function sampleOf(event: EngineEvent): Sample {
  const owners = new Map<string, number>();
  for (const owner of event.arena.owners) owners.set(ownerKey(owner), (owners.get(ownerKey(owner)) ?? 0) + owner.pages);
  const preempted = event.tiers.reduce((sum, tier) => sum + tier.preempted_total, 0);
  return { at: event.at, pages: event.arena.pages, owners, steps: event.steps, preempted };
}

function take(engine: string, event: EngineEvent): void {
  const feed = feedOf(engine);
  const same = feed.event?.epoch === event.epoch; // a new engine process restarts its counters
  const samples = same ? feed.samples.filter((one) => one.at > event.at - MINUTES * 60) : [];
  const known = new Set(same ? feed.preemptions.map((one) => one.number) : []);
  const fresh = event.preemptions.filter((one) => !known.has(one.number)).sort((a, b) => b.number - a.number);
  become(engine, {
    event,
    away: null,
    samples: [...samples, sampleOf(event)],
    preemptions: [...fresh, ...(same ? feed.preemptions : [])].slice(0, PREEMPTIONS_MAX),
  });
}

/** Reads the stream of an engine while it is mounted; another engine needs another `key`. */
export function Listening({ engine }: { engine: string }) {
  const stream = useEvents(`/v1/admin/engine/live${engine === "" ? "" : `?engine=${encodeURIComponent(engine)}`}`, {
    engine: (data) => take(engine, data as EngineEvent),
    away: (data) => become(engine, { away: data as Feed["away"] }),
  });
  useEffect(() => become(engine, { stream }), [engine, stream]);
  return null;
}

export function useFeed(engine: string): Feed {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => feedOf(engine),
  );
}

/** The growth of `count` over the last `seconds` of samples, and the seconds that it covers. */
export function grown(
  samples: readonly Sample[],
  count: "steps" | "preempted",
  seconds: number,
): { by: number; over: number } {
  const last = samples.at(-1);
  const first = samples.find((one) => last !== undefined && one.at >= last.at - seconds - 0.5);
  if (last === undefined || first === undefined) return { by: 0, over: 0 };
  return { by: last[count] - first[count], over: last.at - first.at };
}
