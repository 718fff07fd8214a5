// The clock of an IANA time zone: its fields at a moment, and the first moment of a local day.

export interface Wall {
  year: number;
  /** 0 to 11. */
  month: number;
  day: number;
  hour: number;
  minute: number;
  second: number;
}

const DAY = 86_400;
const formats = new Map<string, Intl.DateTimeFormat>();

function formatOf(zone: string): Intl.DateTimeFormat {
  let format = formats.get(zone);
  if (format === undefined) {
    format = new Intl.DateTimeFormat("en-US", {
      timeZone: zone,
      hourCycle: "h23",
      year: "numeric",
      month: "numeric",
      day: "numeric",
      hour: "numeric",
      minute: "numeric",
      second: "numeric",
    });
    formats.set(zone, format);
  }
  return format;
}

/** The fields of the clock of `zone` at `at` (Unix seconds). */
export function wallOf(at: number, zone: string): Wall {
  const parts = new Map(
    formatOf(zone)
      .formatToParts(new Date(at * 1000))
      .map((part) => [part.type, part.value]),
  );
  const number = (name: Intl.DateTimeFormatPartTypes) => Number(parts.get(name));
  return {
    year: number("year"),
    month: number("month") - 1,
    day: number("day"),
    hour: number("hour"),
    minute: number("minute"),
    second: number("second"),
  };
}

/** The first moment of a local day, as billing/clock.py has it: the moment of the change where the clock skips
 * midnight, and the first of two midnights. `month` and `day` may be out of range, as in Date.UTC. */
export function dayStart(year: number, month: number, day: number, zone: string): number {
  const shown = Date.UTC(year, month, day) / 1000;
  const offset = (at: number) => {
    const wall = wallOf(at, zone);
    return Date.UTC(wall.year, wall.month, wall.day, wall.hour, wall.minute, wall.second) / 1000 - at;
  };
  const found = [shown - DAY, shown, shown + DAY].map((near) => shown - offset(near));
  const midnights = found.filter((at) => at + offset(at) === shown);
  // A skipped midnight is not among them: the offset before the change leads to the change.
  return midnights.length > 0 ? Math.min(...midnights) : found[0]!;
}
