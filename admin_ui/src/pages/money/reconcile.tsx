// Reconciliation: a badge on the pages of money, and its dialog with both sums, the last runs, and a button to
// reconcile now.
import { useState } from "react";
import { type RowOf, api, apiError, useGet, useList, useMay, useSession, useWrite } from "../../api";
import {
  Badge,
  type Column,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Loaded,
  Money,
  Problem,
  Time,
  count,
  duration,
  exact,
  toast,
} from "../../kit";
import "./billing.css";

type Result = RowOf<"/v1/admin/reconciliations">;

const COLUMNS: readonly Column<Result>[] = [
  { id: "at", header: "When", cell: (one) => <Time at={one.at} /> },
  {
    id: "kind",
    header: "Scope",
    cell: (one) => ({ minute: "since the last run", month: "a month", whole: "the whole ledger" })[one.kind],
  },
  {
    id: "sound",
    header: "Result",
    cell: (one) =>
      one.sound ? (
        <Badge tone="good">balanced</Badge>
      ) : (
        <Badge tone="bad">{`${one.imbalances.length + one.overshot.length} imbalances`}</Badge>
      ),
  },
  { id: "sums", header: "Owed = entered", end: true, cell: (one) => <Sums of={one} /> },
  {
    id: "took",
    header: "Duration",
    end: true,
    wide: true,
    cell: (one) => <span className="num">{duration(one.took_s)}</span>,
  },
];

/** Both sums of one result, by currency; equal sums are shown once. */
export function Sums({ of }: { of: Result }) {
  if (of.sums.length === 0) return <span className="faint">nothing new</span>;
  return of.sums.map((one) => (
    <div key={one.currency} className="sums">
      <Money picos={one.owed_picos} currency={one.currency} />
      {exact(one.owed_picos) !== exact(one.entered_picos) && (
        <span className="was">
          {" "}
          ≠ <Money picos={one.entered_picos} currency={one.currency} />
        </span>
      )}
    </div>
  ));
}

/** The badge; roles that may read the books can open the dialog. */
export function ReconcileBadge() {
  const bound = useSession().tenant !== null;
  const may = useMay()("billing:read") && !bound;
  const [open, setOpen] = useState(false);
  const latest = useGet("/v1/admin/reconciliations/standing", undefined, { enabled: may, everyMs: 30_000 });
  if (!may) return null;
  const imbalances = (latest.data?.imbalances ?? 0) + (latest.data?.overshot ?? 0);
  return (
    <>
      <button type="button" className="reconcile-badge" onClick={() => setOpen(true)} aria-haspopup="dialog">
        {latest.data === undefined ? (
          <Badge>{latest.error === null ? "Reconciling…" : "Not reconciled: no answer"}</Badge>
        ) : latest.data.at === null ? (
          <Badge tone="warn">Not reconciled yet</Badge>
        ) : (
          <>
            <Badge tone={imbalances === 0 ? "good" : "bad"}>
              {imbalances === 0 ? "Ledger balanced" : `${count(imbalances)} imbalances`}
            </Badge>
            <span className="faint">
              <Time at={latest.data.at} />
            </span>
          </>
        )}
      </button>
      <Dialog
        open={open}
        onClose={() => setOpen(false)}
        title="Reconciliation"
        wide
        note="Usage and corrections say what is owed. Their sums are compared with the double-entry ledger automatically every minute."
      >
        <Books />
      </Dialog>
    </>
  );
}

function Books() {
  const latest = useGet("/v1/admin/reconciliations/standing", undefined, { everyMs: 10_000 });
  const list = useList("/v1/admin/reconciliations", {}, { limit: 20 });
  const may = useMay()("billing:write");
  const run = useWrite((_: void) => api.post("/v1/admin/reconciliations"), ["/v1/admin/reconciliations"]);
  const whole = list.rows.find((one) => one.kind === "whole");
  const now = () =>
    run.mutate(undefined, {
      onSuccess: (result) =>
        toast(
          result.sound
            ? "The whole ledger is balanced."
            : `${result.imbalances.length + result.overshot.length} imbalances.`,
          !result.sound,
        ),
    });
  return (
    <div className="stack">
      <Loaded of={latest} lines={3}>
        {(data) => (
          <Facts
            facts={[
              [
                "Imbalances",
                <span className={data.imbalances > 0 ? "was" : ""}>
                  <Count value={data.imbalances} />
                </span>,
              ],
              ["Budgets exceeded", <Count value={data.overshot} />],
              ["Last compared", <Time at={data.at} absolute />],
              ...(whole === undefined ? [] : [["The whole ledger", <BothSums of={whole} />] as const]),
            ]}
          />
        )}
      </Loaded>
      {may && (
        <div className="row">
          <button type="button" className="button button-main" onClick={now} disabled={run.isPending}>
            {run.isPending ? "Reading every row…" : "Reconcile everything now"}
          </button>
          <span className="note">Reads the whole ledger in one snapshot.</span>
        </div>
      )}
      {run.error !== null && <Problem error={apiError(run.error)} />}
      {list.rows.some((one) => !one.sound) && <Wrong results={list.rows} />}
      <DataTable
        label="Reconciliation runs"
        list={list}
        columns={COLUMNS}
        id={(one) => String(one.number)}
        empty={<EmptyState title="Not reconciled yet" />}
      />
    </div>
  );
}

function BothSums({ of }: { of: Result }) {
  return (
    <div className="stack both-sums">
      {of.sums.map((one) => {
        const same = exact(one.owed_picos) === exact(one.entered_picos);
        return (
          <div key={one.currency}>
            <div>
              <span className="faint">usage and corrections</span>{" "}
              <Money picos={one.owed_picos} currency={one.currency} />
            </div>
            <div>
              <span className="faint">double-entry ledger</span>{" "}
              <Money picos={one.entered_picos} currency={one.currency} />
            </div>
            <div>
              <Badge tone={same ? "good" : "bad"}>{same ? "exactly equal" : "they differ"}</Badge>{" "}
              <span className="faint">
                {count(one.transactions)} transactions, <Time at={of.at} />
              </span>
            </div>
          </div>
        );
      })}
    </div>
  );
}

function Wrong({ results }: { results: readonly Result[] }) {
  const found = results
    .flatMap((result) => result.imbalances.map((one) => ({ ...one, number: result.number })))
    .slice(0, 20);
  return (
    <div className="problem" role="alert">
      {found.map((one, index) => (
        <p key={`${one.number} ${index}`}>
          {one.what} of <code>{one.where}</code>: expected {count(one.expected)}, found {count(one.found)}.
        </p>
      ))}
      {results
        .flatMap((result) => result.overshot)
        .slice(0, 20)
        .map((one, index) => (
          <p key={index}>
            The budget <code>{one}</code> is exceeded.
          </p>
        ))}
    </div>
  );
}
