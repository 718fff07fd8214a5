import assert from "node:assert/strict";
import { test } from "node:test";
import { currencies, monthStart, timeZones } from "./standards";

test("a month starts at midnight of its zone", () => {
  const at = Date.parse("2026-11-29T03:00:00Z") / 1000;
  const said = (zone: string) => new Date(monthStart(at, zone) * 1000).toISOString();
  assert.equal(said("UTC"), "2026-11-01T00:00:00.000Z");
  assert.equal(said("Asia/Kathmandu"), "2026-10-31T18:15:00.000Z");
  // The clock of New York changes on 1 November, after the month has begun.
  assert.equal(said("America/New_York"), "2026-11-01T04:00:00.000Z");
  assert.equal(new Date(monthStart(Date.parse("2026-12-31T20:00:00Z") / 1000, "Asia/Tokyo") * 1000).getUTCMonth(), 11);
});

test("time zones and currencies have their present names", () => {
  const zones = timeZones().map((zone) => zone.value);
  assert.equal(zones[0], "UTC");
  assert.ok(zones.includes("Asia/Kathmandu") && zones.includes("Europe/Berlin"));
  assert.deepEqual(
    currencies(["EUR"])
      .slice(0, 1)
      .map((one) => [one.value, one.note]),
    [["EUR", "Euro"]],
  );
});
