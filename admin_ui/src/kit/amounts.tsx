// Amounts of money, times and counts, as text and in cells.
import { useSyncExternalStore } from "react";
import { type Exact, count, decimal, rounded } from "./numbers";
import { type Zone, useZone } from "./settings";
import { wallOf } from "./wallClock";

/** An amount of picos, exact; `short`: rounded to two places, or to `places`, with the exact amount as title. */
export function Money({
  picos,
  currency,
  short,
  places = short ? 2 : undefined,
}: {
  picos: Exact;
  currency?: string;
  short?: boolean;
  places?: number;
}) {
  const whole = decimal(picos);
  return (
    <span className="num" title={places === undefined ? undefined : `${whole} ${currency ?? ""}`.trim()}>
      {places === undefined ? whole : rounded(picos, places)}
      {currency !== undefined && <span className="unit"> {currency}</span>}
    </span>
  );
}

export function Count({ value }: { value: Exact | null | undefined }) {
  return <span className="num">{value === null || value === undefined ? "–" : count(value)}</span>;
}

/** A time (Unix seconds) as text in the chosen zone: "2026-03-01 09:30:00 UTC". */
export function moment(at: number, zone: Zone, detail: "day" | "minute" | "second" = "second"): string {
  const two = (value: number) => String(value).padStart(2, "0");
  if (zone !== "local" && zone !== "utc") {
    const wall = wallOf(at, zone);
    const shown = `${wall.year}-${two(wall.month + 1)}-${two(wall.day)}`;
    if (detail === "day") return shown;
    const clock = [wall.hour, wall.minute, wall.second].map(two).join(":");
    return `${shown} ${detail === "minute" ? clock.slice(0, 5) : clock}`;
  }
  const date = new Date(at * 1000);
  const local = zone === "local";
  const day = local
    ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`
    : date.toISOString().slice(0, 10);
  if (detail === "day") return day;
  const time = local
    ? [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":")
    : date.toISOString().slice(11, 19);
  return `${day} ${detail === "minute" ? time.slice(0, 5) : time}${local ? "" : " UTC"}`;
}

const UNITS = [
  ["year", 31_557_600],
  ["month", 2_629_800],
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
] as const;
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });

export function ago(at: number, now: number): string {
  const seconds = at - now;
  for (const [unit, size] of UNITS) {
    if (Math.abs(seconds) >= size) return relative.format(Math.trunc(seconds / size), unit);
  }
  return Math.abs(seconds) < 10 ? "just now" : relative.format(Math.trunc(seconds), "second");
}

/** A time as "3 hr. ago", with the full time as title; `absolute`: the other way round. */
export function Time({
  at,
  absolute,
  detail,
}: {
  at: number | null | undefined;
  absolute?: boolean;
  detail?: "day" | "minute" | "second";
}) {
  const zone = useZone();
  const now = useNow();
  if (at === null || at === undefined) return <span className="faint">never</span>;
  const whole = moment(at, zone, detail);
  const distance = ago(at, now);
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={absolute ? distance : moment(at, zone)} className="num">
      {absolute ? whole : distance}
    </time>
  );
}

// One clock for all times on the page; it ticks every ten seconds while a component uses it.
let now = Date.now() / 1000;
const watchers = new Set<() => void>();
let clock: ReturnType<typeof setInterval> | undefined;

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  if (clock === undefined) {
    now = Date.now() / 1000; // the clock does not tick while no component uses it
    clock = setInterval(() => {
      now = Date.now() / 1000;
      for (const one of watchers) one();
    }, 10_000);
  }
  return () => {
    watchers.delete(watcher);
    if (watchers.size > 0) return;
    clearInterval(clock);
    clock = undefined;
  };
}

/** Now, in Unix seconds, accurate to ten seconds. */
export function useNow(): number {
  return useSyncExternalStore(watch, () => now);
}
