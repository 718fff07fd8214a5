// SLA reports: whether each tier kept its promise, by day, for one tenant or for all together.
import { fileAddress, useGet, useMay, useSession } from "../../api";
import {
  Badge,
  type Column,
  Count,
  DataTable,
  EmptyState,
  Link,
  LookupFilter,
  PageHead,
  Problem,
  Section,
  SelectFilter,
  Skeleton,
  StatTile,
  TenantLookup,
  TextFilter,
  Tiles,
  Time,
  type Tone,
  type View,
  count,
  useView,
  wholeList,
} from "../../kit";
import "./sla.css";
import { type Answer, type Day, type Figures, type Group, VERDICTS, ms, promised, share } from "./slaFigures";
import { DayStrip } from "./slaStrip";

const TONES: Record<Figures["verdict"], Tone> = {
  kept: "good",
  missed: "bad",
  not_measured: "warn",
  no_traffic: "plain",
};
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
        answer.data.map((group) => <GroupSection key={`${group.tier} ${group.model}`} of={group} answer={answer} />)
      )}
    </>
  );
}

function GroupSection({ of: group, answer }: { of: Group; answer: Answer }) {
  const name = group.model === null ? group.tier : `${group.tier}, ${group.model}`;
  const { total } = group;
  const kept = group.days.filter((day) => day.verdict === "kept").length;
  const missed = group.days.filter((day) => day.verdict === "missed").length;
  return (
    <Section
      title={name}
      note={`${count(kept)} ${kept === 1 ? "day" : "days"} kept, ${count(missed)} missed, of ${count(group.days.length)}`}
      actions={<Badge tone={TONES[total.verdict]}>{VERDICTS[total.verdict]}</Badge>}
    >
      {total.verdict === "no_traffic" ? (
        <p className="faint">No requests.</p>
      ) : (
        <>
          <DayStrip name={name} days={group.days} />
          <Tiles>
            <StatTile
              label="First token in target"
              value={share(total.ttft_within, promised(total))}
              note={`${count(total.ttft_within)} of ${count(promised(total))}; p50 ${ms(total.ttft_p50_ms)}, p95 ${ms(total.ttft_p95_ms)}, p99 ${ms(total.ttft_p99_ms)}`}
            />
            <StatTile
              label="Between tokens in target"
              value={share(total.itl_within, total.itl_measured)}
              note={`${count(total.itl_within)} of ${count(total.itl_measured)}; p50 ${ms(total.itl_p50_ms)}, p95 ${ms(total.itl_p95_ms)}, p99 ${ms(total.itl_p99_ms)}`}
            />
            <StatTile
              label="Without a first token"
              value={count(total.refused + total.unanswered)}
              note={`${count(total.refused)} refused with a 503, ${count(total.unanswered)} failed, or their caller left`}
            />
            <StatTile
              label="Requests"
              value={count(total.requests)}
              note={`${count(total.preemptions)} ${total.preemptions === 1 ? "preemption" : "preemptions"}; longest pause p99 ${ms(total.pause_p99_ms)}`}
            />
          </Tiles>
          <details className="sla-days">
            <summary>Days of {name} as a table</summary>
            <DataTable
              label={`Days of ${name}, ${answer.time_zone}`}
              list={wholeList(group.days.filter((day) => day.verdict !== "no_traffic").reverse())}
              columns={COLUMNS}
              id={(day) => day.date}
              empty={<EmptyState title="No requests" />}
            />
          </details>
        </>
      )}
    </Section>
  );
}

const COLUMNS: readonly Column<Day>[] = [
  { id: "date", header: "Day", cell: (day) => <span className="no-break num">{day.date}</span> },
  {
    id: "verdict",
    header: "Promise",
    cell: (day) => <Badge tone={TONES[day.verdict]}>{VERDICTS[day.verdict]}</Badge>,
  },
  { id: "requests", header: "Requests", end: true, cell: (day) => <Count value={day.requests} /> },
  { id: "ttft", header: "First token", end: true, cell: (day) => <Part within={day.ttft_within} of={promised(day)} /> },
  ...(["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms"] as const).map((name) => ({
    id: name,
    header: name.slice(5, 8),
    end: true,
    wide: true,
    cell: (day: Day) => <span className="num no-break">{ms(day[name])}</span>,
  })),
  {
    id: "itl",
    header: "Between tokens",
    end: true,
    cell: (day) => <Part within={day.itl_within} of={day.itl_measured} />,
  },
  {
    id: "itl_p99_ms",
    header: "Between, p99",
    end: true,
    wide: true,
    cell: (day) => <span className="num no-break">{ms(day.itl_p99_ms)}</span>,
  },
  { id: "refused", header: "Refused", end: true, wide: true, cell: (day) => <Count value={day.refused} /> },
  { id: "unanswered", header: "Unanswered", end: true, wide: true, cell: (day) => <Count value={day.unanswered} /> },
  { id: "preemptions", header: "Preemptions", end: true, wide: true, cell: (day) => <Count value={day.preemptions} /> },
];

function Part({ within, of }: { within: number; of: number }) {
  return (
    <span className="num no-break" title={`${count(within)} of ${count(of)}`}>
      {share(within, of)}
    </span>
  );
}
