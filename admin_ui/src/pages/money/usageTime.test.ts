import assert from "node:assert/strict";
import { test } from "node:test";
import { BUCKETS_MAX, edges, partsOf, rangeOf } from "./usageTime";

const NOW = Date.UTC(2026, 5, 15, 12, 30) / 1000;

test("no bucket holds what is behind those that can be drawn: more of them are refused", () => {
  for (const [preset, unit, fits] of [
    ["7d", "hour", true],
    ["30d", "hour", false],
    ["90d", "hour", false],
    ["90d", "day", true],
    ["12m", "day", true],
  ] as const) {
    const [start, end] = rangeOf(preset, "", "", NOW, "utc")!;
    const at = edges(start, end, unit, "utc");
    const parts = partsOf(at, unit, false);
    assert.equal(parts !== null, fits, `${preset} by ${unit}`);
    if (parts === null) continue;
    const width = unit === "hour" ? 3600 : 86_400;
    assert.ok(
      at.slice(1).every((one, index) => one - at[index]! === width),
      `${preset} by ${unit}`,
    );
    assert.deepEqual([parts[0]!.start, parts.at(-1)!.end], [start, end]);
  }
  const [start, end] = rangeOf("custom", "2024-01-01", "2025-12-31", NOW, "utc")!;
  assert.equal(partsOf(edges(start, end, "day", "utc"), "day", false), null);
  assert.ok(BUCKETS_MAX >= 366);
});
