// A chart of values over time: stacked bars or lines, with the same numbers as a table and as a CSV, in UTC or local
// time.
import { Suspense, lazy, useMemo, useState, use } from "react";
import { moment } from "./amounts";
import type { ChartProps } from "./chartCanvas";
import { iso, saveCsv } from "./csv";
import { type Exact, count, exact, sum } from "./numbers";
import { EmptyState, Skeleton } from "./parts";
import { Swatch } from "./seriesMarks";
import { ZoneContext, setSetting, useShade, useZone } from "./settings";

export type { ChartProps, Series } from "./chartCanvas";

const Canvas = lazy(() => import("./chartCanvas"));

export function Chart(props: ChartProps) {
  const { title, at, series, detail = "minute", say = count } = props;
  const zone = useZone();
  const own = use(ZoneContext);
  const shade = useShade();
  const [asTable, setAsTable] = useState(false);
  const [off, setOff] = useState<ReadonlySet<string>>(new Set());
  const [cursor, setCursor] = useState<number | null>(null);
  const shown = useMemo(() => series.filter((one) => !off.has(one.name)), [series, off]);
  const total = props.kind === "bars" && shown.length > 1;
  const save = () => {
    const header = ["Time", ...shown.map((one) => one.name)];
    saveCsv(
      title.toLowerCase().replaceAll(/\W+/g, "-"),
      header,
      at.map((when, row) => [iso(when), ...shown.map((one) => one.values[row])]),
    );
  };
  const toggle = (name: string) =>
    setOff((now) => {
      const next = new Set(now);
      if (!next.delete(name)) next.add(name);
      return next;
    });
  if (at.length === 0 || series.length === 0)
    return (
      <figure className="chart">
        <figcaption>
          <h3>{title}</h3>
        </figcaption>
        <EmptyState title="No data in this time range" />
      </figure>
    );
  return (
    <figure className="chart">
      <figcaption>
        <h3>{title}</h3>
        <div className="actions">
          {own !== null ? (
            <span className="note">{own === "utc" ? "UTC" : own === "local" ? "Local time" : own}</span>
          ) : (
            <button
              type="button"
              className="button button-quiet"
              aria-pressed={zone === "utc"}
              onClick={() => setSetting("zone", zone === "utc" ? "local" : "utc")}
            >
              {zone === "utc" ? "UTC" : "Local time"}
            </button>
          )}
          <button
            type="button"
            className="button button-quiet"
            aria-pressed={asTable}
            onClick={() => setAsTable(!asTable)}
          >
            {asTable ? "Chart" : "Table"}
          </button>
          <button type="button" className="button button-quiet" onClick={save}>
            CSV
          </button>
        </div>
      </figcaption>
      {asTable ? (
        <ChartTable {...props} series={shown} total={total} />
      ) : (
        <>
          <Suspense fallback={<Skeleton lines={6} />}>
            <Canvas
              {...props}
              series={shown}
              colours={shown.map((one) => series.indexOf(one))}
              zone={zone}
              shade={shade}
              onCursor={setCursor}
            />
          </Suspense>
          <div className="legend">
            {series.map((one, index) => (
              <button
                key={one.name}
                type="button"
                className="legend-item"
                aria-pressed={!off.has(one.name)}
                onClick={() => toggle(one.name)}
              >
                <Swatch index={index} />
                {one.name}
                {cursor !== null && !off.has(one.name) && (
                  <span className="num"> {sayOf(one.values[cursor], say)}</span>
                )}
              </button>
            ))}
            <span className="legend-at num">{cursor === null ? "" : moment(at[cursor] ?? 0, zone, detail)}</span>
          </div>
        </>
      )}
    </figure>
  );
}

function sayOf(value: Exact | null | undefined, say: (value: Exact) => string): string {
  return value === null || value === undefined ? "–" : say(value);
}

function ChartTable({ title, at, series, detail = "minute", say = count, total }: ChartProps & { total: boolean }) {
  const zone = useZone();
  // Only integers are summed; fractions (seconds, percentages) get no sum.
  const whole = series.every((one) =>
    one.values.every((value) => value === null || typeof value === "bigint" || Number.isInteger(value)),
  );
  return (
    <div className="table-scroll chart-twin" tabIndex={0} role="region" aria-label={`${title}, as a table`}>
      <table className="table">
        <caption className="sr-only">{title}</caption>
        <thead>
          <tr>
            <th scope="col">Time</th>
            {series.map((one) => (
              <th key={one.name} scope="col" className="end">
                {one.name}
              </th>
            ))}
            {total && whole && (
              <th scope="col" className="end">
                Sum
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {at.map((when, row) => (
            <tr key={when}>
              <th scope="row" className="num">
                {moment(when, zone, detail)}
              </th>
              {series.map((one) => (
                <td key={one.name} className="end num">
                  {sayOf(one.values[row], say)}
                </td>
              ))}
              {total && whole && (
                <td className="end num">{say(sum(series.map((one) => exact(one.values[row] ?? 0))))}</td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
