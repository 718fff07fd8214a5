// One tier of an SLA report: its days as a strip and a table, and the figures of all of them.
import { useGet, useMay } from "../../api";
import {
  Badge,
  type Column,
  Count,
  DataTable,
  EmptyState,
  Section,
  StatTile,
  Tiles,
  type Tone,
  count,
  wholeList,
} from "../../kit";
import { type Day, type Figures, type Group, type Targets, VERDICTS, ms, promised, share } from "./slaFigures";
import "./slaGroup.css";
import { DayStrip } from "./slaStrip";

const TONES: Record<Figures["verdict"], Tone> = {
  kept: "good",
  missed: "bad",
  not_measured: "warn",
  no_traffic: "plain",
};

/** Whether the promise was kept. */
export function Verdict({ of }: { of: Figures }) {
  return <Badge tone={TONES[of.verdict]}>{VERDICTS[of.verdict]}</Badge>;
}

/** The present targets by tier; empty for a role that may not read the tiers. */
export function useTargets(): ReadonlyMap<string, Targets> {
  const may = useMay()("engine:read");
  const tiers = useGet("/v1/admin/tiers", undefined, { enabled: may }).data?.data ?? [];
  return new Map(tiers.map((tier) => [tier.name, tier.targets]));
}

/** `zone`: of the days. `target`: the tier's present one. */
export function SlaGroupSection({ of: group, zone, target }: { of: Group; zone: string; target: Targets | undefined }) {
  const name = group.model === null ? group.tier : `${group.tier}, ${group.model}`;
  const { total } = group;
  const kept = group.days.filter((day) => day.verdict === "kept").length;
  const missed = group.days.filter((day) => day.verdict === "missed").length;
  return (
    <Section
      title={name}
      note={`${count(kept)} ${kept === 1 ? "day" : "days"} kept, ${count(missed)} missed, of ${count(group.days.length)}`}
      actions={<Verdict of={total} />}
    >
      {total.verdict === "no_traffic" ? (
        <p className="faint">No requests.</p>
      ) : (
        <>
          {/* The key chooses the last day with requests again when the interval changes. */}
          <DayStrip key={`${group.days[0]!.date} ${group.days.length}`} name={name} days={group.days} />
          {target !== undefined && <TargetText of={target} />}
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
              label={`Days of ${name}, ${zone}`}
              list={wholeList(group.days.filter((day) => day.verdict !== "no_traffic").reverse())}
              columns={DAYS}
              id={(day) => day.date}
              empty={<EmptyState title="No requests" />}
            />
          </details>
        </>
      )}
    </Section>
  );
}

/** The present targets of a tier in one line. */
export function TargetText({ of: target }: { of: Targets }) {
  const more = target.ttft_per_1k_prompt_tokens_ms;
  return (
    <p className="faint sla-target">
      Target now: first token within {ms(target.ttft_base_ms)}
      {more > 0 && <> plus {ms(more)} per 1,000 prompt tokens</>}; between tokens {ms(target.inter_token_ms)}.
    </p>
  );
}

/** The columns of figures. They follow the columns that name a row. */
export function figureColumns<Row extends Figures>(): readonly Column<Row>[] {
  return [
    { id: "verdict", header: "Promise", cell: (row) => <Verdict of={row} /> },
    { id: "requests", header: "Requests", end: true, cell: (row) => <Count value={row.requests} /> },
    {
      id: "ttft",
      header: "First token",
      end: true,
      cell: (row) => <Part within={row.ttft_within} of={promised(row)} />,
    },
    percentiles("ttft", "First p50 · p95 · p99"),
    {
      id: "itl",
      header: "Between tokens",
      end: true,
      cell: (row) => <Part within={row.itl_within} of={row.itl_measured} />,
    },
    percentiles("itl", "Between p50 · p95 · p99"),
    {
      id: "without",
      header: "No first token",
      end: true,
      wide: true,
      cell: (row) => (
        <span title={`${count(row.refused)} refused, ${count(row.unanswered)} unanswered`}>
          <Count value={row.refused + row.unanswered} />
        </span>
      ),
    },
    {
      id: "preemptions",
      header: "Preemptions",
      end: true,
      wide: true,
      cell: (row) => <Count value={row.preemptions} />,
    },
  ];
}

const DAYS: readonly Column<Day>[] = [
  { id: "date", header: "Day", cell: (day) => <span className="no-break num">{day.date}</span> },
  ...figureColumns<Day>(),
];

/** Three percentiles in one cell. */
function percentiles<Row extends Figures>(of: "ttft" | "itl", header: string): Column<Row> {
  return {
    id: `${of}-percentiles`,
    header,
    end: true,
    cell: (row) => (
      <span className="num no-break">
        {ms(row[`${of}_p50_ms`])} · {ms(row[`${of}_p95_ms`])} · {ms(row[`${of}_p99_ms`])}
      </span>
    ),
  };
}

function Part({ within, of }: { within: number; of: number }) {
  return (
    <span className="num no-break" title={`${count(within)} of ${count(of)}`}>
      {share(within, of)}
    </span>
  );
}
