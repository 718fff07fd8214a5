// The buckets of the usage page: hours, days and months in UTC, local time or a tenant's time zone, and the queries that fetch them.
import type { Zone } from "../../kit";
import { dayStart, wallOf } from "../../kit/wallClock";

export type Unit = "hour" | "day" | "month";
export interface Part {
  start: number;
  end: number;
  width: "1h" | "1d" | "all";
  limit: number;
}

/** The maximum of buckets in a chart: a year of days. */
export const BUCKETS_MAX = 400;
/** The maximum of buckets fetched one by one, if they do not align with the API's buckets. */
const SINGLE_MAX = 120;
const HOUR = 3600;
const DAY = 24 * HOUR;

export const PRESETS = [
  ["24h", "24 hours"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["90d", "90 days"],
  ["month", "This month"],
  ["last", "Last month"],
  ["12m", "12 months"],
  ["custom", "Custom"],
] as const;

/** The start of the bucket that contains `at` (Unix seconds), moved by `by` buckets. */
export function edge(at: number, unit: Unit, zone: Zone, by = 0): number {
  if (zone !== "utc" && zone !== "local") {
    const wall = wallOf(at, zone);
    if (unit === "hour") return at - wall.minute * 60 - wall.second + by * HOUR;
    return unit === "day"
      ? dayStart(wall.year, wall.month, wall.day + by, zone)
      : dayStart(wall.year, wall.month + by, 1, zone);
  }
  const date = new Date(at * 1000);
  if (zone === "utc") {
    const [year, month, day, hour] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate(), date.getUTCHours()];
    if (unit === "hour") return Date.UTC(year, month, day, hour + by) / 1000;
    return (unit === "day" ? Date.UTC(year, month, day + by) : Date.UTC(year, month + by)) / 1000;
  }
  // Local hours are counted in seconds: an hour that the clock repeats is two buckets.
  if (unit === "hour") return at - date.getMinutes() * 60 - date.getSeconds() + by * HOUR;
  const [year, month, day] = [date.getFullYear(), date.getMonth(), date.getDate()];
  return (unit === "day" ? new Date(year, month, day + by) : new Date(year, month + by, 1)).getTime() / 1000;
}

/** The start of a day (2026-01-31) in Unix seconds; null if it is not a date. */
export function dayOf(text: string, zone: Zone): number | null {
  const match = /^(\d{4})-(\d\d)-(\d\d)$/.exec(text);
  if (match === null) return null;
  const [year, month, day] = [Number(match[1]), Number(match[2]) - 1, Number(match[3])];
  if (zone !== "utc" && zone !== "local") return dayStart(year, month, day, zone);
  return (zone === "utc" ? Date.UTC(year, month, day) : new Date(year, month, day).getTime()) / 1000;
}

/** Start and end of a range in whole buckets, including the current one. Null: the dates are incomplete. */
export function rangeOf(preset: string, from: string, to: string, now: number, zone: Zone): [number, number] | null {
  const day = (by: number) => edge(now, "day", zone, by);
  const month = (by: number) => edge(now, "month", zone, by);
  if (preset === "24h") return [edge(now, "hour", zone, -23), edge(now, "hour", zone, 1)];
  if (preset === "7d") return [day(-6), day(1)];
  if (preset === "90d") return [day(-89), day(1)];
  if (preset === "month") return [month(0), day(1)];
  if (preset === "last") return [month(-1), month(0)];
  if (preset === "12m") return [month(-11), day(1)];
  if (preset !== "custom") return [day(-29), day(1)];
  const [first, last] = [dayOf(from, zone), dayOf(to, zone)];
  return first === null || last === null || last < first ? null : [first, edge(last, "day", zone, 1)];
}

export function unitOf(chosen: string, start: number, end: number): Unit {
  if (chosen === "hour" || chosen === "day" || chosen === "month") return chosen;
  return end - start <= 2 * DAY ? "hour" : end - start > 200 * DAY ? "month" : "day";
}

/** Starts of the buckets, and the end of the last one. */
export function edges(start: number, end: number, unit: Unit, zone: Zone): number[] {
  const found = [start];
  for (let at = edge(start, unit, zone, 1); at < end && found.length <= BUCKETS_MAX; at = edge(at, unit, zone, 1))
    found.push(at);
  return [...found, end];
}

/** The queries that fetch these buckets. `days`: the API has no hourly data (costs). Null: too many buckets to draw, or
 * to fetch one by one. */
export function partsOf(at: readonly number[], unit: Unit, days: boolean): Part[] | null {
  if (at.length - 1 > BUCKETS_MAX) return null; // edges() stopped early: the last bucket would contain the rest of the range
  const [start, end] = [at[0]!, at.at(-1)!];
  const fit = (step: number) => at.every((one) => one % step === 0);
  if (unit !== "hour" && fit(DAY)) return windows(start, end, "1d", DAY, days ? 180 : 31);
  if (!days && fit(HOUR) && end - start <= 100 * DAY) return windows(start, end, "1h", HOUR, 168);
  if (at.length - 1 > SINGLE_MAX) return null;
  return at.slice(0, -1).map((one, index) => ({ start: one, end: at[index + 1]!, width: "all", limit: 1 }));
}

function windows(start: number, end: number, width: "1h" | "1d", step: number, limit: number): Part[] {
  const found: Part[] = [];
  for (let at = start; at < end; at += step * limit)
    found.push({ start: at, end: Math.min(end, at + step * limit), width, limit });
  return found;
}
