// Checks from base.css that the chart colours can be told apart in both themes, with any colour vision.
import assert from "node:assert/strict";
import { test } from "node:test";
import css from "./base.css?raw";

type Triple = readonly [number, number, number];

const CONTRAST_MIN = 3; // of anything drawn, to the surface it is drawn on (WCAG 1.4.11)
// Distances in OKLab, times 100; about 2 is just to be seen. The first six are models' and tiers'.
const SIX_MIN = 10;
const EIGHT_MIN = 9;
// Machado, Oliveira and Fernandes 2009, at full severity, on linear RGB.
const SIGHTS: Record<string, readonly [Triple, Triple, Triple]> = {
  all: [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  "no red": [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  "no green": [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  "no blue": [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
};

const dot = (a: Triple, b: Triple) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const times = (rows: readonly [Triple, Triple, Triple], v: Triple): Triple => [
  dot(rows[0], v),
  dot(rows[1], v),
  dot(rows[2], v),
];

function linear(hex: string): Triple {
  const one = (at: number) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return [one(1), one(3), one(5)];
}

function oklab(rgb: Triple): Triple {
  const [l, m, s] = times(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    rgb,
  );
  return times(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766],
    ],
    [Math.cbrt(l), Math.cbrt(m), Math.cbrt(s)],
  );
}

function contrast(a: string, b: string): number {
  const light = (hex: string) => dot([0.2126, 0.7152, 0.0722], linear(hex)) + 0.05;
  return Math.max(light(a), light(b)) / Math.min(light(a), light(b));
}

function distance(a: string, b: string, sight: readonly [Triple, Triple, Triple]): number {
  const seen = (hex: string) =>
    oklab(times(sight, linear(hex)).map((value) => Math.min(1, Math.max(0, value))) as unknown as Triple);
  const [one, other] = [seen(a), seen(b)];
  return 100 * Math.hypot(one[0] - other[0], one[1] - other[1], one[2] - other[2]);
}

/** The light one, the dark one, and the dark one of who chose none. */
function themes(): { surface: string; colours: string[] }[] {
  const surfaces = [...css.matchAll(/--surface: (#\w{6})/g)].map((found) => found[1]!);
  const colours = [...css.matchAll(/--chart-\d: (#\w{6})/g)].map((found) => found[1]!);
  return surfaces.map((surface, index) => ({ surface, colours: colours.slice(8 * index, 8 * index + 8) }));
}

test("the colours of the charts are distinguishable for everybody, in light and dark", () => {
  const [light, dark, system] = themes();
  assert.deepEqual(system, dark);
  for (const { surface, colours } of [light!, dark!]) {
    assert.equal(colours.length, 8);
    for (const colour of colours) assert.ok(contrast(colour, surface) >= CONTRAST_MIN, `${colour} on ${surface}`);
    for (const [name, sight] of Object.entries(SIGHTS)) {
      for (let b = 1; b < 8; b++) {
        for (let a = 0; a < b; a++) {
          const apart = distance(colours[a]!, colours[b]!, sight);
          assert.ok(
            apart >= (b < 6 ? SIX_MIN : EIGHT_MIN),
            `${colours[a]} and ${colours[b]} by who sees ${name}: ${apart}`,
          );
        }
      }
    }
  }
});
