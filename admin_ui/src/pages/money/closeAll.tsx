// Closing a month of all tenants: the periods to close, the periods that remain open, and the new invoices.
import { useState } from "react";
import { type AnswerOf, type RowOf, api, useList, useWrite } from "../../api";
import {
  ConfirmDialog,
  Dialog,
  EmptyState,
  Money,
  Problem,
  Skeleton,
  count,
  exact,
  sum,
  toast,
  useNow,
} from "../../kit";
import { monthsBefore } from "../parts/months";
import { TenantText } from "../parts/names";

type Closable = RowOf<"/v1/admin/periods/closable">;
type Closed = AnswerOf<"/v1/admin/periods/close_all", "post">;

export const CHANGED = [
  "/v1/admin/periods",
  "/v1/admin/invoices",
  "/v1/admin/corrections",
  "/v1/admin/audit_log",
  "/v1/admin/margins",
];
const SHOWN = 8;

export function CloseAll({ onClose }: { onClose: () => void }) {
  const past = monthsBefore(useNow(), 13).slice(1);
  // Periods are listed by their start. Months are closed in order, so the oldest open month is the first to close.
  const oldest = useList("/v1/admin/periods", { query: { state: "open" } }, { limit: 1 });
  const first = oldest.rows.map((one) => one.month).find((one) => one <= past[0]!) ?? past[0]!;
  const months = past.includes(first) ? past : [...past, first];
  const [chosen, setMonth] = useState<string | null>(null);
  const month = chosen ?? first;
  const [refused, setRefused] = useState<Closed["refused"] | null>(null);
  const list = useList("/v1/admin/periods/closable", { query: { month } }, { limit: 500, enabled: !oldest.loading });
  const ready = list.rows.filter((one) => one.reason === null);
  const close = useWrite(
    (after: string | null) => api.post("/v1/admin/periods/close_all", { body: { month, after } }),
    CHANGED,
  );
  const run = async () => {
    let made = 0;
    const open: Closed["refused"] = [];
    for (let after: string | null = null; ;) {
      const answer: Closed = await close.mutateAsync(after);
      made += answer.closed.length;
      open.push(...answer.refused);
      if (answer.next == null) break;
      after = answer.next;
    }
    toast(`${month}: ${count(made)} invoices were made.`);
    if (open.length > 0) {
      setRefused(open);
      throw new Error(`${count(open.length)} tenants stay open.`);
    }
  };
  if (refused !== null) return <Refused month={month} refused={refused} onClose={onClose} />;
  return (
    <ConfirmDialog
      open
      onClose={onClose}
      title="Close a month for all tenants permanently?"
      verb={`Close ${month} permanently`}
      name={`${month} all`}
      action={run}
    >
      <p>Each tenant gets its numbered invoice. A closed month cannot be reopened.</p>
      <label className="filter">
        <span>Month</span>
        <select value={month} onChange={(event) => setMonth(event.target.value)}>
          {months.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      </label>
      {list.error !== null ? (
        <Problem error={list.error} again={list.again} />
      ) : list.loading ? (
        <Skeleton lines={3} />
      ) : (
        <Summary ready={ready} rows={list.rows} more={list.hasMore} month={month} />
      )}
    </ConfirmDialog>
  );
}

function Summary({
  ready,
  rows,
  more,
  month,
}: {
  ready: readonly Closable[];
  rows: readonly Closable[];
  more: boolean;
  month: string;
}) {
  if (rows.length === 0)
    return (
      <EmptyState title={`No tenant has ${month} open`}>
        <p>Choose another month.</p>
      </EmptyState>
    );
  const currencies = [...new Set(ready.map((one) => one.currency))].sort();
  const kept = rows.filter((one) => one.reason !== null);
  return (
    <>
      <p>
        <b>
          {count(ready.length)}
          {more ? "+" : ""} {ready.length === 1 ? "tenant" : "tenants"}
        </b>{" "}
        can be closed{ready.length === 0 ? "." : ""}
        {currencies.map((currency) => (
          <span key={currency}>
            ,{" "}
            <Money
              picos={sum(
                ready
                  .filter((one) => one.currency === currency)
                  .map((one) => exact(one.usage_picos) + exact(one.correction_picos)),
              )}
              currency={currency}
              short
            />
          </span>
        ))}
        {ready.length > 0 && " before taxes."}
      </p>
      {kept.length > 0 && (
        <>
          <p>
            {count(kept.length)} {kept.length === 1 ? "tenant" : "tenants"} cannot be closed yet:
          </p>
          <ul>
            {kept.slice(0, SHOWN).map((one) => (
              <li key={one.period.id}>
                <TenantText id={one.period.tenant_id} />: {one.reason}
              </li>
            ))}
            {kept.length > SHOWN && <li>and {count(kept.length - SHOWN)} more</li>}
          </ul>
        </>
      )}
    </>
  );
}

function Refused({ month, refused, onClose }: { month: string; refused: Closed["refused"]; onClose: () => void }) {
  return (
    <Dialog open onClose={onClose} title={`${month}: ${count(refused.length)} tenants stay open`}>
      <ul>
        {refused.map((one) => (
          <li key={one.tenant_id}>
            <TenantText id={one.tenant_id} />: {one.reason}
          </li>
        ))}
      </ul>
      <div className="form-end">
        <button type="button" className="button button-main" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
