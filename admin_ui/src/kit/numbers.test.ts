import assert from "node:assert/strict";
import { test } from "node:test";
import { parseJson, writeJson } from "../api/json";
import { safeCell } from "./csv";
import { brief, bytes, count, decimal, duration, picosOf, rounded, sum, ungrouped } from "./numbers";

const LARGEST = 9_223_372_036_854_775_807n;

test("integers beyond 2^53 are read and written to the last digit, and texts are left alone", () => {
  const text = `{"a":${LARGEST},"b":[-${LARGEST},9007199254740993],"c":"9007199254740993","d":1.5e300,"e":12345678901234567.5,"f":1.9634999999999998,"g":-0.12345678901234567}`;
  const value = parseJson(text) as Record<string, unknown>;
  assert.equal(value.a, LARGEST);
  assert.deepEqual(value.b, [-LARGEST, 9007199254740993n]);
  assert.equal(value.c, "9007199254740993");
  assert.equal(value.d, 1.5e300);
  assert.equal(value.e, 12345678901234567.5);
  assert.deepEqual([value.f, value.g], [1.9634999999999998, -0.12345678901234567]);
  assert.equal(
    writeJson({ a: LARGEST, b: [-LARGEST], c: 'a "quoted\\" 9007199254740993', n: null }),
    `{"a":${LARGEST},"b":[-${LARGEST}],"c":"a \\"quoted\\\\\\" 9007199254740993","n":null}`,
  );
  assert.equal((parseJson("[42,9007199254740991]") as number[])[1], 9007199254740991);
});

test("picos are shown and read as exact decimals", () => {
  assert.equal(decimal(1), "0.000000000001");
  assert.equal(decimal(1_234_567_500_000_000_000n), "1,234,567.50");
  assert.equal(decimal(-1_500_000_000_000), "−1.50");
  assert.equal(decimal(LARGEST), "9,223,372.036854775807");
  for (const picos of [0n, 1n, 10n ** 12n, LARGEST, -LARGEST]) assert.equal(picosOf(decimal(picos)), picos);
  assert.equal(picosOf("12.5"), 12_500_000_000_000n);
  assert.equal(picosOf("0.0000000000001"), null);
  assert.equal(picosOf("1e3"), null);
  assert.equal(picosOf(""), null);
  assert.equal(rounded(1_005_000_000_000), "1.01");
  assert.equal(rounded(-1), "0.00");
  assert.equal(sum([LARGEST, 1]), LARGEST + 1n);
});

test("counts are grouped, and brief where they are glanced at", () => {
  assert.equal(count(1234567), "1,234,567");
  assert.equal(count(-1234), "−1,234");
  assert.equal(brief(1_234_567), "1.23 M");
  assert.equal(brief(999), "999");
});

test("a comma groups thousands or the number is refused: a decimal comma does not make a hundredfold", () => {
  assert.equal(picosOf("1,234,567.50"), 1_234_567_500_000_000_000n);
  assert.equal(picosOf("12 500"), 12_500n * 10n ** 12n);
  for (const text of ["12,50", "1,5", "12,5000", "1,23,456", ",500", "0.5,000", "1,000,"])
    assert.equal(picosOf(text), null, text);
  assert.deepEqual(
    [ungrouped("1,000"), ungrouped("-2,500.5"), ungrouped("0,7"), ungrouped(" 0.7 ")],
    ["1000", "-2500.5", null, "0.7"],
  );
});

test("what is rounded carries over into the next unit", () => {
  assert.deepEqual(
    [brief(999_999), brief(999_400), brief(999_500_000), brief(-999_999)],
    ["1.00 M", "999 k", "1.00 G", "-1.00 M"],
  );
  assert.deepEqual(
    [bytes(1000 * 2 ** 20), bytes(1023.9 * 2 ** 20), bytes(2 ** 30), bytes(1000)],
    ["1000 MiB", "1024 MiB", "1.00 GiB", "1000 B"],
  );
  assert.deepEqual([119.7, 59.97, 7190, 0.9997, 95, 0.0421, 9.996, 3599.8, 86_400].map(duration), [
    "2 min 0 s",
    "1 min 0 s",
    "2 h 0 min",
    "1.00 s",
    "1 min 35 s",
    "42 ms",
    "10.0 s",
    "1 h 0 min",
    "24 h 0 min",
  ]);
});

test("a cell of a CSV is never a formula", () => {
  assert.equal(safeCell("=1+1"), `"'=1+1"`);
  assert.equal(safeCell("@cmd"), `"'@cmd"`);
  assert.equal(safeCell('say "so", twice'), `"say ""so"", twice"`);
  assert.equal(safeCell(-12), "-12");
  assert.equal(safeCell("-12.5"), "-12.5");
  assert.equal(safeCell("-12+cmd"), `"'-12+cmd"`);
  assert.equal(safeCell("\n=1+1"), `"'=1+1"`);
  assert.equal(safeCell("\uff1d1+1"), `"'\uff1d1+1"`);
  assert.equal(safeCell("x;=1+1"), `"x;=1+1"`);
  assert.equal(safeCell("a\u001b]0;b\u0007\u202ec"), `"a]0;bc"`);
});
