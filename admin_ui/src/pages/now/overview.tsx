// The first page: status, what needs attention, time to first token, spend against budgets, today's usage. Each part
// links to its page.
import { useMemo, useState } from "react";
import { type AnswerOf, useGet, useMay } from "../../api";
import {
  Badge,
  Chart,
  EmptyState,
  Link,
  Loaded,
  Meter,
  Money,
  PageHead,
  Section,
  Segments,
  StatTile,
  Tiles,
  Time,
  brief,
  count,
  decimal,
  duration,
  exact,
  moment,
  place,
  rounded,
  useZone,
} from "../../kit";
import type { components } from "../../api/schema";
import "./overview.css";

type Overview = AnswerOf<"/v1/admin/overview">;
type Attention = Overview["attention"][number];
type Spend = Overview["spend"][number];
type Tier = components["schemas"]["TierView"];

const EVERY_MS = 15_000;
const HOUR_S = 3600;
const SHARE_GOOD = 0.99;
const SOON_S = 3 * 24 * HOUR_S;
const UP = { ok: ["good", "Up"], degraded: ["warn", "Degraded"], down: ["bad", "Down"] } as const;

export default function OverviewPage() {
  const found = useGet("/v1/admin/overview", {}, { everyMs: EVERY_MS });
  const may = useMay();
  return (
    <>
      <PageHead
        title="Overview"
        note={
          found.data === undefined ? (
            "Status, spend and today's usage."
          ) : (
            <>
              As of <Time at={found.data.at} absolute />, refreshed every {EVERY_MS / 1000} seconds.
            </>
          )
        }
      >
        {may("engine:write") && (
          <Link to="/new-customer" className="button button-main">
            New customer
          </Link>
        )}
      </PageHead>
      <Loaded of={found} lines={10}>
        {(overview) => (
          <>
            {found.error !== null && (
              <div className="problem" role="alert">
                <p>
                  The gateway no longer responds. Its last answer is from <Time at={overview.at} />.
                </p>
              </div>
            )}
            <SummaryTiles overview={overview} />
            <div className="overview-two">
              <Section title="Needs attention">
                <AttentionList attention={overview.attention} />
              </Section>
              {may("engine:read") && <FirstTokens />}
            </div>
            {may("money:read") && (
              <Section
                title="Spend against budgets"
                note={
                  overview.money_budgets > overview.spend.length
                    ? `The ${overview.spend.length} of ${count(overview.money_budgets)} budgets closest to their limits.`
                    : "Closest to its limit first."
                }
                actions={<Link to="/budgets">All budgets</Link>}
              >
                <BudgetMeters spend={overview.spend} now={overview.at} />
              </Section>
            )}
            <Today today={overview.today} now={overview.at} />
          </>
        )}
      </Loaded>
    </>
  );
}

function SummaryTiles({ overview: { status, engines, today, attention, spend } }: { overview: Overview }) {
  const may = useMay();
  const [tone, words] = UP[status];
  const critical = attention.filter((one) => one.severity === "critical").length;
  const next = spend
    .filter((one) => one.run_out_at !== null)
    .sort((a, b) => (a.run_out_at ?? 0) - (b.run_out_at ?? 0))[0];
  const costs = Object.entries(today.cost_picos);
  return (
    <Tiles>
      <StatTile
        label="Status"
        tone={tone}
        value={words}
        note={
          may("engine:read") ? (
            <>
              <Link to="/health">
                {critical === 0 ? "Health of each part" : `${count(critical)} critical, see Health`}
              </Link>
              {engines !== null && (
                <>
                  ; <Link to="/engines">{enginesSaid(engines)}</Link>
                </>
              )}
            </>
          ) : undefined
        }
      />
      <StatTile
        label="Requests today (UTC)"
        value={count(today.requests)}
        note={<Link to="/requests">View requests</Link>}
      />
      <StatTile
        label="Tokens today"
        value={brief(today.tokens)}
        note={<Link to="/usage">{count(today.tokens)}</Link>}
      />
      <StatTile
        label="Cost today"
        value={
          costs.length === 0
            ? "0"
            : costs.map(([currency, picos]) => (
                <div key={currency}>
                  {rounded(picos)} <span className="unit">{currency}</span>
                </div>
              ))
        }
        note={
          <Link to="/usage">
            {costs.length === 0
              ? "Usage and costs"
              : costs.map(([currency, picos]) => `${decimal(picos)} ${currency}`).join(", ")}
          </Link>
        }
      />
      <StatTile
        label="Next budget to run out"
        tone={next === undefined ? "plain" : "warn"}
        value={next === undefined ? "None" : <RunOut at={next.run_out_at!} />}
        note={
          <Link to="/budgets">
            {next === undefined ? "in the current windows" : `${next.period} budget of ${next.tenant}`}
          </Link>
        }
      />
    </Tiles>
  );
}

function enginesSaid({ ready, listed }: NonNullable<Overview["engines"]>): string {
  return `${count(ready)} of ${count(listed)} ${listed === 1 ? "engine" : "engines"} ready`;
}

function RunOut({ at }: { at: number }) {
  const zone = useZone();
  return <>{moment(at, zone, "day")}</>;
}

function AttentionList({ attention }: { attention: readonly Attention[] }) {
  if (attention.length === 0) return <EmptyState title="Nothing needs attention" />;
  return (
    <ul className="attention">
      {attention.map((one) => {
        const [to, query] = placeOf(one.link);
        return (
          <li key={`${one.kind}/${one.message}`} className={`attention-${one.severity}`}>
            <Badge tone={one.severity === "critical" ? "bad" : "warn"}>{one.severity}</Badge>
            <Link to={to} query={query}>
              {one.message}
            </Link>
          </li>
        );
      })}
    </ul>
  );
}

/** A link from the API, below /admin, as a path of the console. */
function placeOf(link: string): [string, Record<string, string>] {
  const url = new URL(link, location.origin);
  return [url.pathname.replace(/^\/admin/, "") || "/", Object.fromEntries(url.searchParams)];
}

const WINDOWS = ["5m", "1h", "24h"] as const;
const MEASURES = ["requests", "tokens", "cost"] as const;

function FirstTokens() {
  const [window, setWindow] = useState<(typeof WINDOWS)[number]>("1h");
  const found = useGet("/v1/admin/tiers", {}, { everyMs: EVERY_MS });
  const choose = (
    <Segments
      label="Time range"
      options={WINDOWS.map((one) => [one, one] as const)}
      value={window}
      onChange={setWindow}
    />
  );
  return (
    <Section title="Time to first token, by tier" actions={choose}>
      <Loaded of={found} lines={4}>
        {(tiers) => (
          <div className="table-scroll">
            <table className="table">
              <caption className="sr-only">Time to first token by tier, over the last {window}</caption>
              <thead>
                <tr>
                  <th scope="col">Tier</th>
                  <th scope="col" className="end">
                    Target
                  </th>
                  <th scope="col" className="end overview-more">
                    p50
                  </th>
                  <th scope="col" className="end">
                    p99
                  </th>
                  <th scope="col" className="end">
                    In target
                  </th>
                  <th scope="col" className="end">
                    Requests
                  </th>
                </tr>
              </thead>
              <tbody>
                {tiers.data.map((tier) => (
                  <FirstTokenRow key={tier.name} tier={tier} window={window} />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Loaded>
    </Section>
  );
}

function FirstTokenRow({ tier, window }: { tier: Tier; window: string }) {
  const one = tier.attainment.find((found) => found.window === window);
  const ms = (value: number | null | undefined) =>
    value === null || value === undefined ? "–" : duration(value / 1000);
  const share = one?.share_within_target ?? null;
  const { ttft_base_ms, ttft_per_1k_prompt_tokens_ms } = tier.targets;
  return (
    <tr>
      <th scope="row">
        <Link to="/tiers">{tier.name}</Link>
      </th>
      <td className="end num" title={`${ttft_base_ms} ms + ${ttft_per_1k_prompt_tokens_ms} ms per 1,000 prompt tokens`}>
        {ms(ttft_base_ms)} + {ms(ttft_per_1k_prompt_tokens_ms)}/k
      </td>
      <td className="end num overview-more">{ms(one?.ttft_p50_ms)}</td>
      <td className="end num">{ms(one?.ttft_p99_ms)}</td>
      <td className="end num">
        {share === null ? (
          <span className="faint">–</span>
        ) : (
          <Badge tone={share >= SHARE_GOOD ? "good" : "bad"}>{(share * 100).toFixed(1)} %</Badge>
        )}
      </td>
      <td className="end num">
        {count(one?.requests ?? 0)}
        {one !== undefined && one.refused_503 > 0 && (
          <span className="overview-refused"> {count(one.refused_503)} × 503</span>
        )}
      </td>
    </tr>
  );
}

function BudgetMeters({ spend, now }: { spend: readonly Spend[]; now: number }) {
  if (spend.length === 0)
    return (
      <EmptyState title="No money budgets">
        <p>
          Only rate limits bound what tenants spend. <Link to="/budgets">Budgets</Link>
        </p>
      </EmptyState>
    );
  return (
    <ul className="spends">
      {spend.map((one) => (
        <li key={one.budget}>
          <div className="spend-name">
            <Link to={place("/tenants", one.tenant)} query={{ tab: "budgets" }}>
              <b>{one.tenant}</b>
            </Link>
            <span className="faint">
              {one.scope === "tenant" ? "" : `${one.scope}, `}
              {one.kind}, {one.period}
            </span>
          </div>
          <Meter
            posted={one.posted_picos}
            held={one.held_picos}
            limit={one.limit_picos}
            say={(amount) => `${rounded(amount, 3)} ${one.currency}`}
            label={`The ${one.period} budget of ${one.tenant}`}
          />
          <div className="spend-end">
            <Outlook spend={one} now={now} />
          </div>
        </li>
      ))}
    </ul>
  );
}

function Outlook({ spend, now }: { spend: Spend; now: number }) {
  const link = (words: React.ReactNode) => (
    <Link to="/budgets" query={{ search: spend.budget }}>
      {words}
    </Link>
  );
  if (exact(spend.left_picos) <= 0n)
    return (
      <>
        <Badge tone={spend.kind === "hard" ? "bad" : "warn"}>{spend.kind === "hard" ? "refusing" : "over limit"}</Badge>{" "}
        {link("nothing left")}
      </>
    );
  if (spend.run_out_at !== null)
    return (
      <>
        <Badge tone={spend.run_out_at - now < SOON_S ? "bad" : "warn"}>runs out</Badge>{" "}
        {link(<Time at={spend.run_out_at} absolute detail="minute" />)}
      </>
    );
  return (
    <>
      <Badge tone="good">lasts</Badge>{" "}
      {link(
        spend.window_end === null ? (
          "at the current rate"
        ) : (
          <>
            until <Time at={spend.window_end} absolute detail="minute" />
          </>
        ),
      )}
    </>
  );
}

function Today({ today, now }: { today: Overview["today"]; now: number }) {
  const [what, setWhat] = useState<(typeof MEASURES)[number]>("requests");
  const hour = Math.floor(now / HOUR_S);
  const { at, series } = useMemo(() => {
    const midnight = hour - (hour % 24);
    const hours = Array.from({ length: 24 }, (_, index) => (midnight + index) * HOUR_S);
    const value = (start: number, found: number | bigint | undefined) => (start > hour * HOUR_S ? null : (found ?? 0)); // hours to come are null
    const by = new Map(today.series.map((one) => [one.start, one]));
    if (what === "cost") {
      return {
        at: hours,
        series: Object.keys(today.cost_picos).map((name) => ({
          name,
          values: hours.map((start) => value(start, by.get(start)?.cost_picos[name])),
        })),
      };
    }
    const name = what === "tokens" ? "Tokens" : "Requests";
    return {
      at: hours,
      series: [
        {
          name,
          values: hours.map((start) => value(start, by.get(start)?.[what === "tokens" ? "tokens" : "requests"])),
        },
      ],
    };
  }, [today.series, today.cost_picos, hour, what]);
  const choose = (
    <Segments label="Measure" options={MEASURES.map((one) => [one, one] as const)} value={what} onChange={setWhat} />
  );
  const money =
    what === "cost" ? { say: decimal, brief: (value: number) => rounded(BigInt(Math.round(value)), 3) } : {};
  return (
    <Section
      title="Today, by hour"
      note={
        <>
          Ended requests,{" "}
          {today.as_of === null ? (
            "not rolled up yet"
          ) : (
            <>
              rolled up <Time at={today.as_of} />
            </>
          )}
          . Days are in UTC.
        </>
      }
      actions={
        <>
          {choose}
          <Link to="/usage">Usage and costs</Link>
        </>
      }
    >
      {today.requests === 0 ? (
        <EmptyState title="No request has ended today">
          <p>
            <Link to="/playground">Playground</Link>
          </p>
        </EmptyState>
      ) : (
        <Chart
          title={`${what.charAt(0).toUpperCase()}${what.slice(1)} by hour`}
          kind="bars"
          at={at}
          series={series}
          {...money}
        />
      )}
      <p className="overview-total faint num">
        {count(today.requests)} requests, {count(today.tokens)} tokens
        {Object.entries(today.cost_picos).map(([currency, picos]) => (
          <span key={currency}>
            , <Money picos={picos} currency={currency} />
          </span>
        ))}
      </p>
    </Section>
  );
}
