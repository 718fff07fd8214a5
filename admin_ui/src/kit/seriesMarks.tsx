// The colours of a chart's series: eight hues, and from the ninth series on the same hues with a hatch, so that no two of
// SERIES_MAX series look alike.

export const HUES = 8;
/** SVG paths in a square of 10 by 10, one for each round of hues. */
const HATCHES = ["", "M-1 11L11 -1", "M0 5H10", "M5 0V10"] as const;
export const SERIES_MAX = HUES * HATCHES.length;
const TILE_PX = 6; // a hatch is repeated at this distance

function hatchOf(index: number): string {
  return HATCHES[Math.floor(index / HUES) % HATCHES.length]!;
}

/** The square of a series in legends and tables. */
export function Swatch({ index }: { index: number }) {
  const hatch = hatchOf(index);
  return (
    <svg viewBox="0 0 10 10" aria-hidden="true" className="swatch" data-series={index % SERIES_MAX}>
      <rect className={`c${index % HUES}`} width="10" height="10" rx="2" />
      {hatch !== "" && <path d={hatch} className="swatch-hatch" />}
    </svg>
  );
}

/** The fill of a series on a canvas. `colour` reads a CSS variable. */
export function fillOf(index: number, colour: (name: string) => string): string | CanvasPattern {
  const hue = colour(`--chart-${index % HUES}`);
  const hatch = hatchOf(index);
  if (hatch === "") return hue;
  const tile = document.createElement("canvas");
  tile.width = tile.height = TILE_PX * devicePixelRatio;
  const context = tile.getContext("2d");
  if (context === null) return hue;
  context.fillStyle = hue;
  context.fillRect(0, 0, tile.width, tile.height);
  context.scale(tile.width / 10, tile.height / 10);
  context.strokeStyle = colour("--surface");
  context.lineWidth = 2.5;
  context.stroke(new Path2D(hatch));
  return context.createPattern(tile, "repeat") ?? hue;
}

/** The dashes of a series as a line; empty: a solid line. */
export function dashOf(index: number): number[] {
  return [[], [8, 4], [3, 3], [10, 3, 3, 3]][Math.floor(index / HUES) % HATCHES.length]!;
}
