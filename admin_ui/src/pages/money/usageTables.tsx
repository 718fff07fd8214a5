// The numbers of the usage chart as tables, with their exact sums, and as the CSV of what is shown.
import { type Exact, Swatch, count, decimal, iso, moment, saveCsv, useZone } from "../../kit";
import { alike } from "../parts/alike";
import { type By, type Cell, type Measure, measured, summed } from "./usageData";
import type { Unit } from "./usageTime";

export interface Shown {
  id: string | null;
  name: string;
  cells: readonly Cell[];
  /** The sum of the series beside the largest ones; the page cannot be filtered by it. */
  others: boolean;
}

interface Amount {
  name: string;
  of: (cell: Cell) => bigint;
  say: (value: Exact) => string;
  money?: boolean;
}

const METERS: readonly Amount[] = [
  { name: "Requests", of: (cell) => cell.requests, say: count },
  { name: "Input", of: (cell) => cell.input, say: count },
  { name: "Cached input", of: (cell) => cell.cached, say: count },
  { name: "Output", of: (cell) => cell.output, say: count },
  { name: "Embedding", of: (cell) => cell.embedding, say: count },
];

function share(part: bigint, whole: bigint): string {
  return whole === 0n ? "–" : `${(Number((part * 10_000n) / whole) / 100).toFixed(1)} %`;
}

/** A row for each series: its usage by meter and its cost. A click on its name filters the page. */
export function SeriesTable({
  title,
  by,
  shown,
  measure,
  currency,
  into,
}: {
  title: string;
  by: By;
  shown: readonly Shown[];
  measure: Measure;
  currency: string;
  into: (id: string | null) => void;
}) {
  const sums = shown.map((one) => summed(one.cells));
  const money: Amount = {
    name: `${measure === "owed" ? "Owed" : "Cost"}, ${currency}`,
    of: (cell) => cell.picos,
    say: alike(sums.map((one) => one.picos)),
    money: true,
  };
  const amounts = measure === "owed" ? [money] : [...METERS, money];
  const whole = summed(sums);
  const save = () =>
    saveCsv(
      title.toLowerCase().replaceAll(/\W+/g, "-"),
      [by, `${by} id`, ...amounts.map((one) => one.name)],
      [
        ...shown.map((one, row) => [one.name, one.id, ...amounts.map((amount) => plain(amount, sums[row]!))]),
        ["sum", null, ...amounts.map((amount) => plain(amount, whole))],
      ],
    );
  return (
    <div className="table-block usage-block">
      <SaveButton save={save} />
      <div className="table-scroll" tabIndex={0} role="region" aria-label={`${title}, by ${by}`}>
        <table className="table table-small">
          <caption className="sr-only">{title}</caption>
          <thead>
            <tr>
              <th scope="col">{by[0]!.toUpperCase() + by.slice(1)}</th>
              {amounts.map((one) => (
                <th key={one.name} scope="col" className={one.money ? "end" : "end wide-only"}>
                  {one.name}
                </th>
              ))}
              <th scope="col" className="end">
                Share
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((one, row) => (
              <tr key={one.id ?? one.name}>
                <th scope="row">
                  <span className="swatched">
                    <Swatch index={row} />
                    {one.others ? (
                      one.name
                    ) : (
                      <button
                        type="button"
                        className="into"
                        title={`Filter by ${one.name}`}
                        onClick={() => into(one.id)}
                      >
                        {one.name}
                      </button>
                    )}
                  </span>
                </th>
                {amounts.map((amount) => (
                  <td key={amount.name} className={amount.money ? "end num" : "end num wide-only"}>
                    {amount.say(amount.of(sums[row]!))}
                  </td>
                ))}
                <td className="end num">{share(measured(sums[row]!, measure), measured(whole, measure))}</td>
              </tr>
            ))}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">Sum</th>
              {amounts.map((amount) => (
                <td key={amount.name} className={amount.money ? "end num" : "end num wide-only"}>
                  {amount.say(amount.of(whole))}
                </td>
              ))}
              <td />
            </tr>
          </tfoot>
        </table>
      </div>
    </div>
  );
}

/** A row for each bucket, a column for each series. */
export function TimeTable({
  title,
  at,
  unit,
  shown,
  measure,
  say,
}: {
  title: string;
  at: readonly number[];
  unit: Unit;
  shown: readonly Shown[];
  measure: Measure;
  say: (value: Exact) => string;
}) {
  const zone = useZone();
  const when = (one: number) =>
    unit === "month" ? moment(one, zone, "day").slice(0, 7) : moment(one, zone, unit === "day" ? "day" : "minute");
  const money = measure === "cost" || measure === "owed";
  const text = (value: bigint) => (money ? decimal(value, false).replace("−", "-") : value);
  const rows = at.map((_, row) => shown.map((one) => measured(one.cells[row]!, measure)));
  const ends = shown.map((one) => measured(summed(one.cells), measure));
  const told = money ? alike(rows.flat()) : say;
  const total = (values: readonly bigint[]) => values.reduce((sum, one) => sum + one, 0n);
  const save = () =>
    saveCsv(
      `${title}-by-${unit}`.toLowerCase().replaceAll(/\W+/g, "-"),
      [unit === "hour" ? unit : `${unit} (${zone === "utc" ? "UTC" : zone})`, ...shown.map((one) => one.name), "sum"],
      [
        // An hour is written as a time; a day and a month as dates in the chosen zone.
        ...rows.map((values, row) => [
          unit === "hour" ? iso(at[row]) : when(at[row]!),
          ...values.map(text),
          text(total(values)),
        ]),
        ["sum", ...ends.map(text), text(total(ends))],
      ],
    );
  return (
    <div className="table-block usage-block">
      <SaveButton save={save} />
      <div className="table-scroll usage-time" tabIndex={0} role="region" aria-label={`${title}, by ${unit}`}>
        <table className="table table-small">
          <caption className="sr-only">{title}</caption>
          <thead>
            <tr>
              <th scope="col">{unit[0]!.toUpperCase() + unit.slice(1)}</th>
              {shown.map((one) => (
                <th key={one.name} scope="col" className="end">
                  {one.name}
                </th>
              ))}
              <th scope="col" className="end">
                Sum
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map((values, row) => (
              <tr key={at[row]}>
                <th scope="row" className="num">
                  {when(at[row]!)}
                </th>
                {values.map((value, index) => (
                  <td key={shown[index]!.name} className="end num">
                    {value === 0n ? <span className="faint">0</span> : told(value)}
                  </td>
                ))}
                <td className="end num">
                  <b>{told(total(values))}</b>
                </td>
              </tr>
            ))}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">Sum</th>
              {ends.map((value, index) => (
                <td key={shown[index]!.name} className="end num">
                  {told(value)}
                </td>
              ))}
              <td className="end num">{told(total(ends))}</td>
            </tr>
          </tfoot>
        </table>
      </div>
    </div>
  );
}

function plain(amount: Amount, cell: Cell): string | bigint {
  const value = amount.of(cell);
  return amount.money ? decimal(value, false).replace("−", "-") : value;
}

function SaveButton({ save }: { save: () => void }) {
  return (
    <button type="button" className="button usage-save" onClick={save}>
      CSV
    </button>
  );
}
