// Pages by owner over the last minutes, stacked in the map's colours; the area above them is free pages.
import { type KeyboardEvent, type PointerEvent, useEffect, useMemo, useRef, useState } from "react";
import { count, duration, moment, setSetting, useZone } from "../../kit";
import { type EngineEvent, type Palette, groupKey, groupsOf, hex } from "./liveArena";
import { MINUTES, type Sample } from "./liveFeed";
import { useWidth } from "./liveMap";

const HEIGHT_PX = 150;
const GAP_S = 5; // samples further apart than this are drawn with a gap
const TWIN_S = 10;
const SPAN_S_MIN = 30;

interface Layer {
  key: string;
  label: string;
  colour: string;
}

/** One sample: pages by the map's groups. */
interface Held {
  at: number;
  pages: number;
  groups: ReadonlyMap<string, number>;
}

function heldOf({ at, pages, owners }: Sample, { by }: Palette): Held {
  const groups = new Map<string, number>();
  for (const [key, held] of owners) groups.set(groupKey(key, by), (groups.get(groupKey(key, by)) ?? 0) + held);
  return { at, pages, groups };
}

export function Minutes({
  event,
  samples: every,
  palette,
}: {
  event: EngineEvent;
  samples: readonly Sample[];
  palette: Palette;
}) {
  const zone = useZone();
  const [asTable, setAsTable] = useState(false);
  const samples = useMemo(() => every.map((one) => heldOf(one, palette)), [every, palette]);
  // Includes owners that had pages in these minutes and have none now.
  const layers = useMemo(
    () =>
      groupsOf(event, palette, new Set(every.flatMap((one) => [...one.owners.keys()])))
        .filter((one) => one.key !== "free")
        .map(({ key, label, paint }): Layer => ({ key, label, colour: hex(paint.colour) })),
    [event, every, palette],
  );
  return (
    <figure className="chart arena-minutes">
      <figcaption>
        <h3>
          {spanOf(samples) < MINUTES * 60 && samples[0] !== undefined
            ? `Pages in use since ${moment(samples[0].at, zone).slice(11, 19)}`
            : `Pages in use, last ${MINUTES} minutes`}
        </h3>
        <div className="actions">
          <button
            type="button"
            className="button button-quiet"
            aria-pressed={zone === "utc"}
            onClick={() => setSetting("zone", zone === "utc" ? "local" : "utc")}
          >
            {zone === "utc" ? "UTC" : "Local time"}
          </button>
          <button
            type="button"
            className="button button-quiet"
            aria-pressed={asTable}
            onClick={() => setAsTable(!asTable)}
          >
            {asTable ? "Chart" : "Table"}
          </button>
        </div>
      </figcaption>
      {asTable ? <Twin layers={layers} samples={samples} /> : <Stack layers={layers} samples={samples} />}
    </figure>
  );
}

function Twin({ layers, samples }: { layers: readonly Layer[]; samples: readonly Held[] }) {
  const zone = useZone();
  const rows = samples
    .filter(
      (one, index) =>
        index === samples.length - 1 ||
        Math.floor(one.at / TWIN_S) !== Math.floor((samples[index + 1]?.at ?? 0) / TWIN_S),
    )
    .reverse();
  return (
    <div className="table-scroll chart-twin" tabIndex={0} role="region" aria-label="Pages in use, as a table">
      <table className="table table-small">
        <caption className="sr-only">Pages in use, every {TWIN_S} seconds, newest first</caption>
        <thead>
          <tr>
            <th scope="col">Time</th>
            {layers.map((one) => (
              <th key={one.key} scope="col" className="end">
                {one.label}
              </th>
            ))}
            <th scope="col" className="end">
              Free
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((one) => (
            <tr key={one.at}>
              <th scope="row" className="num">
                {moment(one.at, zone)}
              </th>
              {layers.map(({ key }) => (
                <td key={key} className="end num">
                  {count(one.groups.get(key) ?? 0)}
                </td>
              ))}
              <td className="end num">{count(one.groups.get("free") ?? 0)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Stack({ layers, samples }: { layers: readonly Layer[]; samples: readonly Held[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(canvas);
  const zone = useZone();
  const [at, setAt] = useState<number | null>(null); // a time, so that the cursor stays while the chart moves
  const last = samples.at(-1)?.at ?? 0;
  const span = spanOf(samples);
  const begin = last - span;
  const pointed = at === null ? null : nearest(samples, at);
  useEffect(() => {
    if (canvas.current !== null && width > 0) draw(canvas.current, width, layers, samples, begin, pointed);
  }, [width, layers, samples, begin, pointed]);
  const point = ({ nativeEvent }: PointerEvent) => setAt(begin + (nativeEvent.offsetX / Math.max(1, width)) * span);
  const key = (event: KeyboardEvent) => {
    const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (by === 0) return;
    event.preventDefault();
    const from = pointed === null ? samples.length : samples.indexOf(pointed);
    setAt(samples[Math.max(0, Math.min(samples.length - 1, from + by))]?.at ?? null);
  };
  return (
    <>
      <div
        className="arena-stack"
        role="group"
        tabIndex={0}
        onKeyDown={key}
        aria-label="Chart of pages in use over time. Left and right arrows read it; the table has the same numbers."
      >
        <canvas ref={canvas} onPointerMove={point} onPointerLeave={() => setAt(null)} />
      </div>
      <p className="arena-readout num">
        {pointed === null ? (
          <>
            <span className="faint">{duration(span)} ago</span>
            <span className="faint">{count(samples.at(-1)?.pages ?? 0)} pages in total</span>
            <span className="faint">now</span>
          </>
        ) : (
          <span>
            {moment(pointed.at, zone)}:{" "}
            {layers.map((one) => `${one.label} ${count(pointed.groups.get(one.key) ?? 0)}`).join(", ")}, free{" "}
            {count(pointed.groups.get("free") ?? 0)}
          </span>
        )}
      </p>
    </>
  );
}

/** The seconds that the chart shows: those of the samples, at least SPAN_S_MIN, and at most MINUTES. */
function spanOf(samples: readonly Held[]): number {
  const [first, last] = [samples[0], samples.at(-1)];
  const covered = first === undefined || last === undefined ? 0 : last.at - first.at;
  return Math.max(SPAN_S_MIN, Math.min(MINUTES * 60, Math.round(covered)));
}

function nearest(samples: readonly Held[], at: number): Held | null {
  let found: Held | null = null;
  for (const one of samples) if (found === null || Math.abs(one.at - at) < Math.abs(found.at - at)) found = one;
  return found;
}

function draw(
  canvas: HTMLCanvasElement,
  width: number,
  layers: readonly Layer[],
  samples: readonly Held[],
  begin: number,
  pointed: Held | null,
): void {
  const scale = devicePixelRatio;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(HEIGHT_PX * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${HEIGHT_PX}px`;
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(scale, scale);
  const style = getComputedStyle(canvas);
  context.fillStyle = style.getPropertyValue("--sunk");
  context.fillRect(0, 0, width, HEIGHT_PX);
  const x = (at: number) => ((at - begin) / spanOf(samples)) * width;
  samples.forEach((one, index) => {
    const next = samples[index + 1];
    const left = Math.round(x(one.at));
    const right =
      next === undefined || next.at - one.at > GAP_S ? left + 2 : Math.max(left + 1, Math.round(x(next.at)));
    let y = HEIGHT_PX;
    for (const { key, colour } of layers) {
      const height = ((one.groups.get(key) ?? 0) / Math.max(1, one.pages)) * HEIGHT_PX;
      context.fillStyle = colour;
      context.fillRect(left, y - height, right - left, height);
      y -= height;
    }
  });
  context.fillStyle = style.getPropertyValue("--rule");
  for (const part of [0.25, 0.5, 0.75]) context.fillRect(0, HEIGHT_PX * part, width, 1);
  context.fillStyle = style.getPropertyValue("--ink");
  if (pointed !== null) context.fillRect(Math.round(x(pointed.at)), 0, 1, HEIGHT_PX);
}
