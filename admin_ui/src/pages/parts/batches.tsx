// Parts that pages about batches share: status, progress, and the columns of their lists.
import { useState } from "react";
import { type RowOf, useList } from "../../api";
import { Badge, type Column, Count, Money, Time, type Tone, count, iso, percent, rate } from "../../kit";
import { TenantText } from "./names";
import "./batches.css";

export type Batch = RowOf<"/v1/admin/batches">;
type BatchQuery = Partial<Record<"search" | "sort" | "status" | "tenant", string>>;

export const BATCH_STATUSES: readonly Batch["status"][] = [
  "validating",
  "in_progress",
  "finalizing",
  "completed",
  "failed",
  "expired",
  "cancelling",
  "cancelled",
];
const TONES: Record<Batch["status"], Tone> = {
  validating: "accent",
  in_progress: "accent",
  finalizing: "accent",
  completed: "good",
  failed: "bad",
  expired: "warn",
  cancelling: "warn",
  cancelled: "plain",
};
export const BATCH_POLL_MS = 5_000; // of one batch
const LIST_POLL_MS = 10_000;

export function hasEnded(batch: Batch): boolean {
  return batch.ended_at !== null;
}

/** A list of batches, refreshed while one of its batches has not ended. */
export function useBatches(query: BatchQuery, limit?: number) {
  const [running, setRunning] = useState(false);
  const asking = { ...(running ? { everyMs: LIST_POLL_MS } : {}), ...(limit === undefined ? {} : { limit }) };
  const list = useList("/v1/admin/batches", { query }, asking);
  const moving = list.rows.some((one) => !hasEnded(one));
  if (moving !== running) setRunning(moving);
  return list;
}

/** A batch that is expected to end after its deadline. */
export function isLate(batch: Batch): boolean {
  return batch.expected_end_at !== null && batch.expected_end_at > batch.deadline_at;
}

export function BatchStatus({ of }: { of: Batch }) {
  return (
    <>
      <Badge tone={TONES[of.status]}>{of.status.replace("_", " ")}</Badge>
      {isLate(of) && <Badge tone="bad">late</Badge>}
    </>
  );
}

/** Lines that ran and failed: `failed` of the API also counts the lines that were not run. */
export function failedLines(batch: Batch): number {
  return batch.failed - (batch.unrun ?? 0);
}

/** A bar of the lines that succeeded and failed, and how many lines were run. */
export function BatchProgress({ of, wide }: { of: Batch; wide?: boolean }) {
  const done = percent(of.succeeded, of.lines || 1);
  const failed = percent(failedLines(of), of.lines || 1);
  return (
    <span className={wide ? "batch-progress batch-progress-wide" : "batch-progress"}>
      <svg
        viewBox="0 0 100 6"
        preserveAspectRatio="none"
        role="progressbar"
        aria-label={`Lines of ${of.id} that were run`}
        aria-valuenow={Math.round(done + failed)}
        aria-valuemin={0}
        aria-valuemax={100}
      >
        <rect className="meter-all" width="100" height="6" />
        <rect className="batch-done" width={done} height="6" />
        <rect className="batch-failed" x={done} width={failed} height="6" />
      </svg>
      <span className="num">
        {count(of.succeeded + failedLines(of))} / {count(of.lines)}
      </span>
    </span>
  );
}

/** Lines per second; "–" for a batch of which no line ended in the last minute. */
export function rateText(batch: Batch): string {
  return batch.lines_per_s === 0 ? "–" : `${rate(batch.lines_per_s)}/s`;
}

const COST_PLACES = 6; // a batch of a few lines costs less than a cent

/** When a batch ended, or when it is expected to end. */
function End({ of }: { of: Batch }) {
  if (of.ended_at !== null) return <Time at={of.ended_at} absolute detail="minute" />;
  if (of.expected_end_at === null) return <span className="faint">–</span>;
  return (
    <span className="faint">
      expected <Time at={of.expected_end_at} absolute detail="minute" />
    </span>
  );
}

const TENANT_COLUMN: Column<Batch> = {
  id: "tenant",
  header: "Tenant",
  cell: (one) => <TenantText id={one.tenant_id} />,
  csv: (one) => one.tenant_id,
};

/** `tenant`: with the column of the tenant. */
export function batchColumns(tenant: boolean): readonly Column<Batch>[] {
  return [
    ...(tenant ? [TENANT_COLUMN] : []),
    {
      id: "created",
      header: "Created",
      sort: "created_at",
      cell: (one) => <Time at={one.created_at} />,
      csv: (one) => iso(one.created_at),
    },
    {
      id: "status",
      header: "Status",
      sort: "status",
      cell: (one) => <BatchStatus of={one} />,
      csv: (one) => one.status,
    },
    {
      id: "progress",
      header: "Lines",
      sort: "lines",
      cell: (one) => <BatchProgress of={one} />,
      csv: (one) => one.lines,
    },
    {
      id: "failed",
      header: "Failed",
      end: true,
      cell: (one) => <Count value={failedLines(one)} />,
      csv: failedLines,
    },
    { id: "unrun", header: "Not run", hidden: true, cell: () => null, csv: (one) => one.unrun },
    { id: "rate", header: "Rate", end: true, wide: true, cell: (one) => <span className="num">{rateText(one)}</span> },
    {
      id: "ended",
      header: "Ended",
      wide: true,
      cell: (one) => <End of={one} />,
      csv: (one) => iso(one.ended_at),
    },
    { id: "end", header: "Expected end", hidden: true, cell: () => null, csv: (one) => iso(one.expected_end_at) },
    {
      id: "deadline",
      header: "Deadline",
      sort: "deadline_at",
      wide: true,
      cell: (one) => <Time at={one.deadline_at} absolute detail="minute" />,
      csv: (one) => iso(one.deadline_at),
    },
    {
      id: "cost",
      header: "Cost",
      end: true,
      cell: (one) => <Money picos={one.cost_picos} currency={one.currency} places={COST_PLACES} />,
      csv: (one) => one.cost_picos,
    },
  ];
}
