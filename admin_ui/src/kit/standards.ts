// The choices that standards define: time zones of IANA and currencies of ISO 4217, as the browser knows them.
import type { Choice } from "./combobox";
import { dayStart, wallOf } from "./wallClock";

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
  const { year, month } = wallOf(at, zone);
  return dayStart(year, month, 1, zone);
}
