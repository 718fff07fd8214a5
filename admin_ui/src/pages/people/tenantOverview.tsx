// The first tab of a tenant's page: the month so far, its keys and models, tokens per day, missing parts, settings.
import { useMemo } from "react";
import { type AnswerOf, useGet, useMay } from "../../api";
import {
  Count,
  Facts,
  Id,
  Link,
  Money,
  Problem,
  Section,
  Skeleton,
  StatTile,
  Tiles,
  Time,
  brief,
  count,
  exact,
  monthStart,
  percent,
  place,
  rounded,
  useNow,
} from "../../kit";
import { DailyTokens } from "../parts/dailyTokens";
import { AnsweredBy, KeyName } from "../parts/names";
import { missingOf, useSetup } from "./setup";

export type Tenant = AnswerOf<"/v1/admin/tenants/{tenant_id}">;
type UsageRow = AnswerOf<"/v1/organization/usage/completions">["data"][number]["results"][number];

const TOP = 5;

export function TenantOverview({ tenant }: { tenant: Tenant }) {
  const may = useMay();
  return (
    <>
      <SetupNote tenant={tenant} />
      {may("usage:read") && <Month tenant={tenant} />}
      {may("usage:read") && (
        <Section
          title="Usage"
          actions={
            <Link to="/usage" query={{ tenant: tenant.slug, by: "key" }}>
              Usage and costs
            </Link>
          }
        >
          <DailyTokens query={{ tenants: [tenant.id] }} />
        </Section>
      )}
      <Section title="Settings">
        <Settings tenant={tenant} />
      </Section>
    </>
  );
}

const SETUP_S = 30 * 86_400; // a new tenant is set up within this time

/** What the tenant lacks, for roles that can add it. */
function SetupNote({ tenant }: { tenant: Tenant }) {
  const setup = useSetup(tenant.slug);
  const may = useMay();
  const now = useNow();
  if (setup === null || !may("engine:write") || tenant.status !== "active") return null;
  const missing = missingOf(setup);
  // Budgets and rate limits of its own are optional: after the first month the note would be noise.
  const old = now - tenant.created_at > SETUP_S && setup.keys.length > 0;
  if (missing.length === 0 || old) return null;
  return (
    <div className="panel">
      <p>
        The tenant has no {missing.map((one) => one.replace(/^an? /, "")).join(", no ")}.{" "}
        <Link to="/new-customer" query={{ tenant: tenant.slug }}>
          Continue the setup
        </Link>
      </p>
    </div>
  );
}

function Month({ tenant }: { tenant: Tenant }) {
  const now = useNow();
  // The minute, so that the query changes once a minute.
  const end = Math.ceil(now / 60) * 60;
  const start = useMemo(() => monthStart(end, tenant.time_zone), [end, tenant.time_zone]);
  const query = { start_time: start, bucket_width: "all" as const, tenants: [tenant.id] };
  const usage = useGet("/v1/organization/usage/completions", {
    query: { ...query, group_by: ["api_key_id", "model", "adapter"] },
  });
  const owed = useGet("/v1/organization/costs", { query });
  const may = useMay();
  const last = useGet(
    "/v1/admin/requests",
    { query: { tenant: tenant.slug, limit: 1 } },
    { enabled: may("requests:read") },
  ).data?.data[0];
  if (usage.error !== null) return <Problem error={usage.error} again={() => void usage.refetch()} />;
  if (usage.data === undefined || owed.data === undefined) return <Skeleton lines={4} />;
  const rows = usage.data.data.flatMap((bucket) => bucket.results);
  const costs = owed.data.data.flatMap((bucket) => bucket.results);
  const month = new Intl.DateTimeFormat("en", { month: "long", timeZone: tenant.time_zone }).format(end * 1000);
  const requests = rows.reduce((all, row) => all + row.num_model_requests, 0);
  const tokens = rows.reduce((all, row) => all + row.input_tokens + row.output_tokens, 0);
  const inUsage = { tenant: tenant.slug, range: "month" };
  return (
    <>
      <Tiles>
        <StatTile
          label={`Owed for ${month} so far`}
          value={
            <>
              {rounded(costs.reduce((all, row) => all + exact(row.amount.picos), 0n))}{" "}
              <span className="unit">{tenant.currency}</span>
            </>
          }
          note={
            <Link to="/usage" query={{ ...inUsage, show: "owed", by: "key" }}>
              Month of {tenant.time_zone}
            </Link>
          }
        />
        <StatTile
          label="Requests"
          value={count(requests)}
          note={
            may("requests:read") && (
              <Link to="/requests" query={{ tenant: tenant.slug }}>
                View requests
              </Link>
            )
          }
        />
        <StatTile
          label="Tokens"
          value={brief(tokens)}
          note={
            <Link to="/usage" query={{ ...inUsage, show: "tokens", by: "model" }}>
              {count(tokens)}
            </Link>
          }
        />
        {may("money:read") && <FullestBudget tenant={tenant} />}
        {may("requests:read") && (
          <StatTile
            label="Last request"
            value={last === undefined ? "none" : <Time at={last.ended_at ?? last.started_at} />}
            note={last !== undefined && <Link to={place("/requests", last.request_id)}>Open it</Link>}
          />
        )}
      </Tiles>
      {rows.length > 0 && (
        <div className="tenant-two">
          <Top
            title="Keys with the highest cost"
            rows={rows}
            by={(row) => row.api_key_id ?? ""}
            name={(row) => <KeyName id={row.api_key_id ?? ""} />}
            link={{ ...inUsage, by: "key" }}
          />
          <Top
            title="Models with the highest cost"
            rows={rows}
            by={(row) => row.adapter ?? row.model ?? ""}
            name={(row) => <AnsweredBy model={row.model ?? ""} adapter={row.adapter ?? null} />}
            link={{ ...inUsage, by: "model" }}
          />
        </div>
      )}
    </>
  );
}

/** The largest sums of a dimension, of rows in several dimensions. */
function Top({
  title,
  rows,
  by,
  name,
  link,
}: {
  title: string;
  rows: readonly UsageRow[];
  by: (row: UsageRow) => string;
  name: (row: UsageRow) => React.ReactNode;
  link: Record<string, string>;
}) {
  const sums = new Map<string, { row: UsageRow; picos: bigint; requests: number }>();
  for (const row of rows) {
    const sum = sums.get(by(row)) ?? { row, picos: 0n, requests: 0 };
    sums.set(by(row), {
      row,
      picos: sum.picos + exact(row.cost_picos),
      requests: sum.requests + row.num_model_requests,
    });
  }
  const largest = [...sums.values()].sort((a, b) => (b.picos > a.picos ? 1 : b.picos < a.picos ? -1 : 0)).slice(0, TOP);
  return (
    <Section
      title={title}
      actions={
        <Link to="/usage" query={link} aria-label={`${title}: all`}>
          All
        </Link>
      }
    >
      <ul className="tenant-top">
        {largest.map(({ row, picos, requests }) => (
          <li key={by(row)}>
            <span>{name(row)}</span>
            <span className="faint num">
              {count(requests)} {requests === 1 ? "request" : "requests"}
            </span>
            <Money picos={picos} currency={row.currency} short />
          </li>
        ))}
      </ul>
    </Section>
  );
}

function FullestBudget({ tenant }: { tenant: Tenant }) {
  const { data } = useGet("/v1/admin/budgets", { query: { tenant: tenant.slug, limit: 50 } });
  const shares = (data?.data ?? []).map((budget) =>
    percent(exact(budget.used) + exact(budget.held), budget.limit_amount),
  );
  const most = Math.max(...shares);
  const tone = most >= 100 ? "bad" : most >= 80 ? "warn" : "plain";
  return (
    <StatTile
      label="Budget closest to its limit"
      tone={shares.length === 0 ? "plain" : tone}
      value={data === undefined ? "…" : shares.length === 0 ? "no budget" : `${Math.round(most)} %`}
      note={
        <Link to={place("/tenants", tenant.slug)} query={{ tab: "budgets" }}>
          Budgets
        </Link>
      }
    />
  );
}

function Settings({ tenant }: { tenant: Tenant }) {
  return (
    <Facts
      facts={[
        ["Id", <Id value={tenant.id} />],
        ["Base URL", <Id value={`${location.origin}/t/${tenant.slug}/v1`} />],
        ["Highest tier", tenant.tier],
        ["Share weight", <span className="num">{tenant.share_weight}</span>],
        ["Currency", tenant.currency],
        ["Time zone", tenant.time_zone],
        [
          "Default max_tokens",
          tenant.default_max_tokens === null ? (
            <span className="faint">the model's</span>
          ) : (
            <Count value={tenant.default_max_tokens} />
          ),
        ],
        [
          "Choice in aliases",
          tenant.cheapest ? (
            <>the cheapest model that can serve, where the alias allows it</>
          ) : (
            <span className="faint">by weight, the default</span>
          ),
        ],
        [
          "Stored responses",
          tenant.store_responses_s === null ? (
            <span className="faint">none: no text is stored</span>
          ) : (
            <>for {tenant.store_responses_s / (24 * 3600)} days, encrypted</>
          ),
        ],
        [
          "Addresses",
          tenant.allowed_ips == null ? (
            <span className="faint">every address</span>
          ) : (
            <code>{tenant.allowed_ips.join(" ")}</code>
          ),
        ],
        [
          "Batch lines that no budget covers",
          tenant.on_budget === null ? (
            <span className="faint">the gateways’ setting</span>
          ) : tenant.on_budget === "wait" ? (
            "wait for the budget"
          ) : (
            "fail"
          ),
        ],
        ["Created", <Time at={tenant.created_at} absolute />],
      ]}
    />
  );
}
