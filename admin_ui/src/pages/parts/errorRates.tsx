// Error rates over time: refused and failed requests by code, of all tenants, one tenant or one key.
import { useMemo, useState } from "react";
import { type AnswerOf, useGet } from "../../api";
import { Chart, EmptyState, Link, Loaded, Segments, StatTile, Tiles, count } from "../../kit";
import "./errorRates.css";

type Rates = AnswerOf<"/v1/admin/error_rates">;
type Width = "1h" | "1d";

const WIDTHS: readonly (readonly [Width, string])[] = [
  ["1h", "24 hours"],
  ["1d", "30 days"],
];
const EVERY_MS = 30_000;
/** Codes with a series of their own; the chart has eight colours. */
const CODES_MAX = 7;

export function ErrorRates({ tenant, keyId }: { tenant?: string; keyId?: string }) {
  const [width, setWidth] = useState<Width>("1h");
  const which = { ...(tenant ? { tenant } : {}), ...(keyId ? { key_id: keyId } : {}) };
  const found = useGet("/v1/admin/error_rates", { query: { ...which, width } }, { everyMs: EVERY_MS });
  return (
    <div className="stack">
      <div>
        <Segments label="Time range" options={WIDTHS} value={width} onChange={setWidth} />
      </div>
      <Loaded of={found} lines={8}>
        {(rates) => <Drawn rates={rates} which={which} detail={width === "1h" ? "minute" : "day"} />}
      </Loaded>
    </div>
  );
}

function Drawn({ rates, which, detail }: { rates: Rates; which: Record<string, string>; detail: "minute" | "day" }) {
  const series = useMemo(() => seriesOf(rates), [rates]);
  const { total } = rates;
  return (
    <>
      <Tiles>
        <StatTile label="Requests" value={count(total.requests)} note={`${count(total.settled)} with usage`} />
        <StatTile
          label="Refused"
          value={share(total.refused_share)}
          note={
            <Link to="/requests" query={{ ...which, outcome: "refused" }}>
              {count(total.refused)} refused
            </Link>
          }
        />
        <StatTile
          label="Failed"
          value={share(total.failed_share)}
          tone={total.failed > 0 ? "bad" : "plain"}
          note={
            <Link to="/requests" query={{ ...which, outcome: "failed" }}>
              {count(total.failed)} failed
            </Link>
          }
        />
      </Tiles>
      {series.length === 0 ? (
        <EmptyState title="No refused and no failed request in this time range" />
      ) : (
        <>
          <Chart
            title="Refused and failed requests by code"
            kind="bars"
            at={rates.data.map((bucket) => bucket.start_time)}
            series={series}
            detail={detail}
            say={count}
          />
          <table className="table error-codes">
            <caption className="sr-only">Requests by code</caption>
            <thead>
              <tr>
                <th scope="col">Code</th>
                <th scope="col">Outcome</th>
                <th scope="col" className="end">
                  Requests
                </th>
              </tr>
            </thead>
            <tbody>
              {total.errors.map((one) => (
                <tr key={`${one.outcome} ${one.code}`}>
                  <th scope="row">
                    <Link to="/requests" query={{ ...which, code: one.code }}>
                      <code>{one.code}</code>
                    </Link>
                  </th>
                  <td>{one.outcome}</td>
                  <td className="end num">{count(one.requests)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
      <p className="note">
        All requests of known keys are counted. At most 10 refused or failed requests a second of one tenant are listed
        one by one.
      </p>
    </>
  );
}

function share(part: number | null): string {
  return part === null ? "–" : `${(part * 100).toLocaleString("en", { maximumSignificantDigits: 3 })} %`;
}

/** A series for each of the most frequent codes, and one for all others. */
function seriesOf(rates: Rates) {
  const codes = [...new Set(rates.total.errors.map((one) => one.code))];
  const named = codes.slice(0, codes.length > CODES_MAX + 1 ? CODES_MAX : codes.length);
  const of = (has: (code: string) => boolean) =>
    rates.data.map((bucket) =>
      bucket.errors.filter((one) => has(one.code)).reduce((all, one) => all + one.requests, 0),
    );
  const series = named.map((code) => ({ name: code, values: of((one) => one === code) }));
  if (named.length < codes.length) series.push({ name: "other", values: of((one) => !named.includes(one)) });
  return series;
}
