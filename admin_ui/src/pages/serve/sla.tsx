// SLA reports: whether each tier kept its promise, by day, for one tenant or for all together.
import { fileAddress, useGet, useMay, useSession } from "../../api";
import {
  EmptyState,
  Link,
  LookupFilter,
  PageHead,
  Problem,
  SelectFilter,
  Skeleton,
  TenantLookup,
  TextFilter,
  Time,
  type View,
  useView,
} from "../../kit";
import type { Answer } from "../parts/slaFigures";
import { SlaGroupSection, useTargets } from "../parts/slaGroup";
import "./sla.css";

const PERIODS = [
  ["yesterday", "Yesterday"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["90d", "90 days"],
  ["this_month", "This month"],
  ["last_month", "Last month"],
  ["custom", "Custom"],
] as const;
const BYS = [
  ["tier", "Tier"],
  ["model", "Tier and model"],
] as const;
const DEFAULTS = { tenant: "", tier: "", model: "", period: "30d", from: "", to: "", by: "tier" };
type Values = typeof DEFAULTS;

export default function Sla() {
  const view = useView(DEFAULTS);
  const query = queryOf(view.values);
  const found = useGet("/v1/admin/sla", { query: query ?? {} }, { enabled: query !== null });
  return (
    <>
      <PageHead
        title="SLA"
        note="Whether each tier kept its promise: 99 % of its requests within the target for the first token, and 99 % within the target between tokens, each against the targets in force at that moment."
      />
      <Bar view={view} answer={found.data} />
      {query === null ? (
        <EmptyState title="Choose a date range">
          <p>Both days are included.</p>
        </EmptyState>
      ) : found.error !== null ? (
        <Problem error={found.error} again={() => void found.refetch()} />
      ) : found.data === undefined ? (
        <Skeleton lines={12} />
      ) : (
        <Report of={found.data} />
      )}
    </>
  );
}

/** The query of the API; null: the custom range lacks a day. */
function queryOf({ tenant, tier, model, period, from, to, by }: Values) {
  if (period === "custom" && (from === "" || to === "")) return null;
  const days =
    period === "custom"
      ? { start_date: from, end_date: to }
      : { period: (PERIODS.find(([name]) => name === period)?.[0] ?? "30d") as "30d" };
  return {
    ...days,
    ...(tenant === "" ? {} : { tenant }),
    ...(tier === "" ? {} : { tier }),
    ...(model === "" ? {} : { model }),
    ...(by === "model" ? { by: "model" as const } : {}),
  };
}

function Bar({ view, answer }: { view: View<Values>; answer: Answer | undefined }) {
  const may = useMay();
  const bound = useSession().tenant !== null;
  const engine = may("engine:read");
  const tiers = useGet("/v1/admin/tiers", undefined, { enabled: engine }).data?.data.map((one) => one.name);
  const models = useGet("/v1/admin/models", undefined, { enabled: may("models:read") }).data?.data;
  const tierNames = tiers ?? [...new Set(answer?.data.map((one) => one.tier))];
  const query = queryOf(view.values);
  return (
    <div className="table-bar sla-bar" role="search" aria-label="Report settings">
      {!bound && may("people:read") && (
        <LookupFilter label="Tenant">
          <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
        </LookupFilter>
      )}
      <SelectFilter
        label="Tier"
        view={view}
        name="tier"
        options={[["", "Any"], ...new Set([...tierNames, view.values.tier].filter(Boolean))]}
      />
      {models === undefined ? (
        <TextFilter label="Model" view={view} name="model" />
      ) : (
        <SelectFilter
          label="Model"
          view={view}
          name="model"
          options={[["", "Any"], ...new Set([...models.map((one) => one.name), view.values.model].filter(Boolean))]}
        />
      )}
      <SelectFilter label="Time range" view={view} name="period" options={PERIODS} />
      {view.values.period === "custom" && <TextFilter label="From" view={view} name="from" type="date" />}
      {view.values.period === "custom" && <TextFilter label="To (inclusive)" view={view} name="to" type="date" />}
      <SelectFilter label="By" view={view} name="by" options={BYS} />
      {view.narrowed && (
        <button type="button" className="button button-quiet" onClick={view.clear}>
          Clear
        </button>
      )}
      {query !== null && (
        <span className="sla-files">
          {(["csv", "json"] as const).map((format) => (
            <a
              key={format}
              className="button"
              href={fileAddress("/v1/admin/sla/export", { query: { ...query, format } })}
              download
            >
              Export {format.toUpperCase()}
            </a>
          ))}
        </span>
      )}
    </div>
  );
}

function Report({ of: answer }: { of: Answer }) {
  const targets = useTargets();
  const empty = answer.data.every((group) => group.total.verdict === "no_traffic");
  return (
    <>
      <p className="faint">
        {answer.tenant === null ? "All tenants together" : answer.tenant}, days of {answer.time_zone}
        {answer.as_of !== null && (
          <>
            , as of <Time at={answer.as_of} absolute detail="minute" />
          </>
        )}
        {answer.recorded_since !== null && (
          <>
            ; recorded since <Time at={answer.recorded_since} absolute detail="minute" />
          </>
        )}
        .
      </p>
      {empty ? (
        <EmptyState title="No requests in this time range">
          <p>
            {answer.start_date} to {answer.end_date}. A request appears within a minute of its end. Choose another time
            range or fewer filters, or look at the last hour on <Link to="/tiers">Tiers</Link>.
          </p>
        </EmptyState>
      ) : (
        answer.data.map((group) => (
          <SlaGroupSection
            key={`${group.tier} ${group.model}`}
            of={group}
            zone={answer.time_zone}
            target={targets.get(group.tier)}
          />
        ))
      )}
    </>
  );
}
