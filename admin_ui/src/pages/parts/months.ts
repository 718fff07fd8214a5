// Months as the API writes them: 2026-01.
import type { Option } from "../../kit";

export const MONTHS_BACK = 36;

/** The current month in UTC and the months before it. */
export function monthsBefore(now: number, count = MONTHS_BACK): string[] {
  const date = new Date(now * 1000);
  return Array.from({ length: count }, (_, back) =>
    new Date(Date.UTC(date.getUTCFullYear(), date.getUTCMonth() - back)).toISOString().slice(0, 7),
  );
}

export function monthOptions(now: number, none: string): Option[] {
  return [["", none], ...monthsBefore(now)];
}
