// The drawing of a chart, with uPlot in the theme's colours. A chunk of its own: loaded with the first chart.
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { moment } from "./amounts";
import type { Exact } from "./numbers";
import { HUES, dashOf, fillOf } from "./seriesMarks";
import type { Zone } from "./settings";

export interface Series {
  name: string;
  /** One value for each time; null where it is unknown. Exact amounts are drawn rounded; the table has them exact. */
  values: readonly (Exact | null)[];
}

export interface ChartProps {
  title: string;
  kind: "bars" | "lines";
  /** Unix seconds, ascending; for bars, the start of each bucket. */
  at: readonly number[];
  series: readonly Series[];
  /** Formats a value for the table and the readout. Default: a count. */
  say?: (value: Exact) => string;
  /** Formats a value at the axis. Default: `say`. */
  brief?: (value: number) => string;
  /** The precision of times. */
  detail?: "day" | "minute" | "second";
  /** A horizontal line: a target, a limit. */
  mark?: { at: number; name: string };
  height?: number;
}

type Values = (number | null)[];

interface Props extends ChartProps {
  /** The index of each series' colour (`seriesMarks`); it does not change when other series are hidden. */
  colours: readonly number[];
  zone: Zone;
  shade: string;
  onCursor: (index: number | null) => void;
}

export default function Canvas(props: Props) {
  const { at, series, colours, kind, mark, zone, shade, height = 240, title, say, brief, onCursor } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const words = useRef({ say, brief, onCursor });
  useEffect(() => {
    words.current = { say, brief, onCursor };
  });
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const style = getComputedStyle(element);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const made = new uPlot(
      {
        width: element.clientWidth,
        height,
        legend: { show: false },
        cursor: { y: false, points: { show: kind === "lines" } },
        tzDate: (seconds) =>
          zone === "local"
            ? new Date(seconds * 1e3)
            : uPlot.tzDate(new Date(seconds * 1e3), zone === "utc" ? "Etc/UTC" : zone),
        // A bar starts at its time, so the axis needs one more bucket for the last bar.
        scales: {
          x: {
            time: true,
            ...(kind === "bars" && at.length > 1
              ? { range: (_: uPlot, from: number, to: number): [number, number] => [from, to + (at[1]! - at[0]!)] }
              : {}),
          },
          y: { range: (_, __, highest) => [0, Math.max(highest, mark?.at ?? 0) * 1.06 || 1] },
        },
        axes: axes({
          colour,
          zone,
          say: (value) =>
            (words.current.brief ?? ((one: number) => (words.current.say ?? String)(Math.round(one))))(value),
          last: at[at.length - 1]!,
          whole: series.every((one) => one.values.every(isWhole)),
        }),
        series: [
          {},
          // Stacked: the highest sum is drawn first, lower sums on top of it.
          ...order(series.length, kind).map((index) => ({
            stroke: colour(`--chart-${colours[index]! % HUES}`),
            ...(kind === "bars"
              ? {
                  fill: fillOf(colours[index]!, colour),
                  width: 0,
                  paths: uPlot.paths.bars!({ size: [0.8, 48], align: at.length > 1 ? 1 : 0 }),
                  points: { show: false },
                }
              : { width: 2, dash: dashOf(colours[index]!), points: { show: at.length < 2 } }),
          })),
        ],
        hooks: {
          setCursor: [(one) => words.current.onCursor(one.cursor.idx ?? null)],
          draw: mark === undefined ? [] : [(one) => drawMark(one, mark, colour("--warn"))],
        },
      },
      data(at, series, kind),
      element,
    );
    plot.current = made;
    const size = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    size.observe(element);
    return () => {
      size.disconnect();
      made.destroy();
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- arrays by their content, the theme by its shade
  }, [at, series, colours.join(), kind, mark?.at, mark?.name, zone, shade, height]);
  const step = (by: number) => {
    const made = plot.current;
    if (made === null) return;
    const next = Math.max(0, Math.min(at.length - 1, (made.cursor.idx ?? (by > 0 ? -1 : at.length)) + by));
    made.setCursor({ left: made.valToPos(at[next]!, "x"), top: 10 });
  };
  return (
    <div
      className="chart-canvas"
      ref={box}
      role="group"
      tabIndex={0}
      aria-label={`${title}: chart. Left and right arrows read it; the table has the same numbers.`}
      onKeyDown={(event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        event.preventDefault();
        step(event.key === "ArrowRight" ? 1 : -1);
      }}
    />
  );
}

function order(length: number, kind: "bars" | "lines"): number[] {
  const all = Array.from({ length }, (_, index) => index);
  return kind === "bars" ? all.reverse() : all;
}

/** The data to draw: for bars the cumulative sums, highest first. */
function data(at: readonly number[], series: Props["series"], kind: "bars" | "lines"): uPlot.AlignedData {
  const plain = series.map((one) => one.values.map((value) => (value === null ? null : Number(value))));
  if (kind === "lines") return [[...at], ...plain] as [number[], ...Values[]];
  const sums = at.map(() => 0);
  const stacked = plain.map((values) => values.map((value, row) => (sums[row] = (sums[row] ?? 0) + (value ?? 0))));
  return [[...at], ...stacked.reverse()] as [number[], ...Values[]];
}

function isWhole(value: Exact | null): boolean {
  return value === null || typeof value === "bigint" || Number.isInteger(value);
}

/** Steps of an axis of whole numbers: 1, 2, 5, 10, … */
const WHOLE_STEPS = Array.from({ length: 19 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

/** `last`: the time of the last value; later ticks have no label. `whole`: all values are whole numbers. */
function axes({
  colour,
  zone,
  say,
  last,
  whole,
}: {
  colour: (name: string) => string;
  zone: Zone;
  say: (value: number) => string;
  last: number;
  whole: boolean;
}): uPlot.Axis[] {
  const common = {
    stroke: colour("--faint"),
    font: `11px ${colour("--sans")}`,
    grid: { stroke: colour("--rule"), width: 1 },
    ticks: { show: false },
  };
  return [
    {
      ...common,
      grid: { show: false },
      space: 64,
      values: (_, splits, __, ___, step) => splits.map((at) => (at > last ? "" : tick(at, step, zone))),
    },
    { ...common, size: 64, ...(whole ? { incrs: WHOLE_STEPS } : {}), values: (_, splits) => splits.map(say) },
  ];
}

/** A tick of the time axis: the day at midnight, else the hour. */
function tick(at: number, step: number, zone: Zone): string {
  const whole = moment(at, zone);
  const [day, time] = [whole.slice(5, 10), whole.slice(11, 19)];
  if (step >= 28 * 86_400) return whole.slice(0, 7);
  if (step >= 86_400 || time === "00:00:00") return day;
  return step >= 60 ? time.slice(0, 5) : time;
}

function drawMark(plot: uPlot, mark: { at: number; name: string }, colour: string): void {
  const { ctx, bbox } = plot;
  const y = plot.valToPos(mark.at, "y", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = `${11 * devicePixelRatio}px sans-serif`;
  ctx.textAlign = "right";
  ctx.fillText(mark.name, bbox.left + bbox.width - 4, y - 5 * devicePixelRatio);
  ctx.restore();
}
