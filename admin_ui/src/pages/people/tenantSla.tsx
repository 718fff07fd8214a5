// The SLA tab of a tenant's page: whether its promises were kept by month and by day, against the tiers' targets.
import { type AnswerOf, useGet } from "../../api";
import {
  type Column,
  DataTable,
  EmptyState,
  Link,
  Loaded,
  Section,
  SelectFilter,
  Time,
  useView,
  wholeList,
} from "../../kit";
import type { Figures } from "../parts/slaFigures";
import { SlaGroupSection, figureColumns, useTargets } from "../parts/slaGroup";
import type { Tenant } from "./tenantOverview";

type Answer = AnswerOf<"/v1/admin/sla">;

const PERIODS = [
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["90d", "90 days"],
  ["this_month", "This month"],
  ["last_month", "Last month"],
] as const;
const MONTHS = ["this_month", "last_month"] as const;

interface MonthRow extends Figures {
  month: string;
  tier: string;
}

export function TenantSla({ tenant }: { tenant: Tenant }) {
  const view = useView({ period: "30d" });
  const period = PERIODS.find(([name]) => name === view.values.period)?.[0] ?? "30d";
  const found = useGet("/v1/admin/sla", { query: { tenant: tenant.slug, period } });
  return (
    <>
      <Months tenant={tenant} />
      <Section
        title="Days"
        note="A request counts against the targets in force at its first token."
        actions={
          <>
            <SelectFilter label="Time range" view={view} name="period" options={PERIODS} />
            <Link to="/sla" query={{ tenant: tenant.slug, period }}>
              SLA by model, and files
            </Link>
          </>
        }
      >
        <Loaded of={found} lines={8}>
          {(answer) => <Days of={answer} />}
        </Loaded>
      </Section>
    </>
  );
}

/** This month and the last one: a row for each tier with requests. */
function Months({ tenant }: { tenant: Tenant }) {
  const [now, last] = MONTHS.map((period) => ({ query: { tenant: tenant.slug, period } }));
  const current = useGet("/v1/admin/sla", now);
  const before = useGet("/v1/admin/sla", last);
  return (
    <Section title="Months" note={`in ${tenant.time_zone}; this month until now`}>
      <Loaded of={current}>
        {(one) => (
          <Loaded of={before}>
            {(other) => (
              <DataTable
                label={`Months of ${tenant.name}`}
                list={wholeList([...rowsOf(one), ...rowsOf(other)])}
                columns={COLUMNS}
                id={(row) => `${row.month} ${row.tier}`}
                empty={<EmptyState title="No requests in this month or the last one" />}
              />
            )}
          </Loaded>
        )}
      </Loaded>
    </Section>
  );
}

function rowsOf(answer: Answer): MonthRow[] {
  const month = answer.start_date.slice(0, 7);
  return answer.data
    .filter((group) => group.total.verdict !== "no_traffic")
    .map((group) => ({ ...group.total, month, tier: group.tier }));
}

const COLUMNS: readonly Column<MonthRow>[] = [
  { id: "month", header: "Month", cell: (row) => <span className="no-break num">{row.month}</span> },
  { id: "tier", header: "Tier", cell: (row) => row.tier },
  ...figureColumns<MonthRow>(),
];

function Days({ of: answer }: { of: Answer }) {
  const targets = useTargets();
  const groups = answer.data.filter((group) => group.total.verdict !== "no_traffic");
  if (groups.length === 0)
    return (
      <EmptyState title="No requests in this time range">
        <p>
          {answer.start_date} to {answer.end_date}. A request appears within a minute of its end.
        </p>
      </EmptyState>
    );
  return (
    <>
      {answer.as_of !== null && (
        <p className="faint">
          As of <Time at={answer.as_of} absolute detail="minute" />.
        </p>
      )}
      {groups.map((group) => (
        <SlaGroupSection key={group.tier} of={group} zone={answer.time_zone} target={targets.get(group.tier)} />
      ))}
    </>
  );
}
