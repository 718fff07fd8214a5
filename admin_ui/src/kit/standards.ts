// The choices that standards define: time zones of IANA and currencies of ISO 4217, as the browser knows them.
import type { Choice } from "./combobox";

/** Zones that browsers list under an older name; the gateway accepts both. */
const RENAMED: Record<string, string> = {
  "Asia/Calcutta": "Asia/Kolkata",
  "Asia/Katmandu": "Asia/Kathmandu",
  "Asia/Rangoon": "Asia/Yangon",
  "Asia/Saigon": "Asia/Ho_Chi_Minh",
  "America/Buenos_Aires": "America/Argentina/Buenos_Aires",
  "Atlantic/Faeroe": "Atlantic/Faroe",
  "Europe/Kiev": "Europe/Kyiv",
};

function offsetOf(zone: string): string {
  const parts = new Intl.DateTimeFormat("en", { timeZone: zone, timeZoneName: "longOffset" }).formatToParts();
  return (parts.find((part) => part.type === "timeZoneName")?.value ?? "").replace("GMT", "UTC");
}

let zones: readonly Choice[] | null = null;

/** All time zones with their present offset; UTC is first. */
export function timeZones(): readonly Choice[] {
  zones ??= ["UTC", ...Intl.supportedValuesOf("timeZone").filter((zone) => zone !== "UTC")].map((zone) => {
    const name = RENAMED[zone] ?? zone;
    return { value: name, said: name, note: zone === "UTC" ? "" : offsetOf(zone) };
  });
  return zones;
}

/** All currencies with their names; those of `first` lead the list. */
export function currencies(first: readonly string[]): readonly Choice[] {
  const names = new Intl.DisplayNames("en", { type: "currency" });
  const codes = [...new Set([...first, ...Intl.supportedValuesOf("currency")])];
  return codes.map((code) => ({ value: code, said: code, note: names.of(code) ?? "" }));
}

/** The first second of the month that contains `at` (Unix seconds) on the clock of a time zone. */
export function monthStart(at: number, zone: string): number {
  const parts = wallClock(at, zone);
  const first = Date.UTC(parts.year, parts.month - 1, 1) / 1000; // as if the zone were UTC
  // The offset at the first guess is wrong if the clock changes between the two moments; the second guess is right.
  const guess = first - offsetAt(first, zone);
  return first - offsetAt(guess, zone);
}

function wallClock(at: number, zone: string) {
  const format = new Intl.DateTimeFormat("en-US", {
    timeZone: zone,
    hourCycle: "h23",
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
  });
  const parts = Object.fromEntries(format.formatToParts(at * 1000).map((part) => [part.type, Number(part.value)]));
  return parts as Record<"year" | "month" | "day" | "hour" | "minute" | "second", number>;
}

/** Seconds that the zone's clock is ahead of UTC. */
function offsetAt(at: number, zone: string): number {
  const { year, month, day, hour, minute, second } = wallClock(at, zone);
  return Date.UTC(year, month - 1, day, hour, minute, second) / 1000 - Math.floor(at);
}
