import assert from "node:assert/strict";
import { test } from "node:test";
import { dayStart, wallOf } from "./wallClock";

const utc = (text: string) => Date.parse(`${text}Z`) / 1000;

test("days of time zones begin where billing's clock has them begin", () => {
  for (const [zone, year, month, day, start] of [
    ["America/New_York", 2026, 2, 1, "2026-03-01T05:00:00"],
    ["America/New_York", 2026, 2, 9, "2026-03-09T04:00:00"], // the day after the clock went forward
    ["America/New_York", 2026, 10, 2, "2026-11-02T05:00:00"],
    ["Asia/Kathmandu", 2026, 10, 1, "2026-10-31T18:15:00"],
    ["Asia/Tokyo", 2026, 12, 1, "2026-12-31T15:00:00"], // the month after December
    ["America/Sao_Paulo", 2018, 10, 4, "2018-11-04T03:00:00"], // midnight is skipped
    ["Atlantic/Azores", 2026, 9, 25, "2026-10-25T00:00:00"], // the first of two midnights
    ["Etc/UTC", 2026, 0, 31, "2026-01-31T00:00:00"],
  ] as const)
    assert.equal(dayStart(year, month, day, zone), utc(start), `${zone} ${year}-${month + 1}-${day}`);
  assert.deepEqual(wallOf(utc("2026-11-01T05:59:59"), "Asia/Kathmandu"), {
    year: 2026,
    month: 10,
    day: 1,
    hour: 11,
    minute: 44,
    second: 59,
  });
});
