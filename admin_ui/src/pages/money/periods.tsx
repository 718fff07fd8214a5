// Periods: the months of each tenant. One that is over can be closed, the oldest first, and stays so.
import { useState } from "react";
import { type AnswerOf, type RowOf, api, useGet, useList, useMay, useSession, useWrite } from "../../api";
import {
  Badge,
  type Column,
  ConfirmDialog,
  DataTable,
  EmptyState,
  Facts,
  Loaded,
  LookupFilter,
  Money,
  SelectFilter,
  ShortId,
  TenantLookup,
  Time,
  iso,
  moment,
  place,
  sum,
  toast,
  useGo,
  useNow,
  useView,
  useZone,
} from "../../kit";
import { monthOptions } from "../parts/months";
import { TenantText, useNames } from "../parts/names";

type Period = RowOf<"/v1/admin/periods">;

const CHANGED = [
  "/v1/admin/periods",
  "/v1/admin/invoices",
  "/v1/admin/corrections",
  "/v1/admin/audit_log",
  "/v1/admin/margins",
];

/** Those that can be closed now: over, and the oldest open one of their tenant among the rows. */
function closable(rows: readonly Period[], now: number): Set<string> {
  const first = new Map<string, Period>();
  for (const row of rows) {
    const before = first.get(row.tenant_id);
    if (row.state === "open" && (before === undefined || row.start_at < before.start_at)) first.set(row.tenant_id, row);
  }
  return new Set([...first.values()].filter((row) => row.end_at <= now).map((row) => row.id));
}

export function Periods() {
  const view = useView({ tenant: "", month: "", state: "open", open: "" });
  const { open: _, ...query } = view.values;
  const list = useList("/v1/admin/periods", { query: { ...query, state: query.state === "any" ? "" : query.state } });
  // What is open, whatever the list is narrowed to: only the oldest of a tenant can be closed.
  const standing = useList("/v1/admin/periods", { query: { state: "open", tenant: query.tenant } }, { limit: 500 });
  const may = useMay()("billing:write");
  const bound = useSession().tenant !== null;
  const now = useNow();
  const ready = closable(standing.rows, now);
  const [closing, setClosing] = useState<Period | null>(null);
  const columns: Column<Period>[] = [
    {
      id: "tenant",
      header: "Tenant",
      cell: (period) => <TenantText id={period.tenant_id} />,
      csv: (period) => period.tenant_id,
    },
    {
      id: "month",
      header: "Month",
      cell: (period) => <span className="num">{period.month}</span>,
      csv: (period) => period.month,
    },
    {
      id: "state",
      header: "State",
      cell: (period) => <State of={period} ready={ready.has(period.id)} now={now} />,
      csv: (period) => period.state,
    },
    { id: "end", header: "Ends", cell: (period) => <Time at={period.end_at} />, csv: (period) => iso(period.end_at) },
    {
      id: "zone",
      header: "By the clock of",
      wide: true,
      cell: (period) => period.time_zone,
      csv: (period) => period.time_zone,
    },
    {
      id: "closed",
      header: "Closed",
      wide: true,
      cell: (period) =>
        period.closed_at === null ? (
          <span className="faint">–</span>
        ) : (
          <>
            <Time at={period.closed_at} />{" "}
            <span className="faint">
              by <ShortId value={period.closed_by ?? ""} />
            </span>
          </>
        ),
      csv: (period) => iso(period.closed_at),
    },
    ...(may
      ? [
          {
            id: "close",
            header: "Close",
            end: true,
            cell: (period: Period) =>
              ready.has(period.id) ? (
                <button type="button" className="button" onClick={() => setClosing(period)}>
                  Close…
                </button>
              ) : null,
          },
        ]
      : []),
  ];
  const filters = (
    <>
      {!bound && (
        <LookupFilter label="Tenant">
          <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
        </LookupFilter>
      )}
      <SelectFilter label="Month" view={view} name="month" options={monthOptions(now, "Any")} />
      <SelectFilter label="State" view={view} name="state" options={["open", "closed", ["any", "Any"]]} />
    </>
  );
  return (
    <>
      <DataTable
        label="Periods"
        list={list}
        columns={columns}
        id={(period) => period.id}
        view={view}
        filters={filters}
        detail={(period) => <Within period={period} />}
        csv
        empty={
          <EmptyState title="No open month">
            <p>A tenant’s months begin with its first request.</p>
          </EmptyState>
        }
      />
      {closing !== null && <Closing period={closing} onClose={() => setClosing(null)} />}
    </>
  );
}

function State({ of, ready, now }: { of: Period; ready: boolean; now: number }) {
  if (of.state === "closed") return <Badge>closed</Badge>;
  if (ready) return <Badge tone="accent">can be closed</Badge>;
  return of.end_at <= now ? <Badge tone="warn">over; an older one is open</Badge> : <Badge tone="good">running</Badge>;
}

/** What was used and corrected between its bounds. */
function useWithin(period: Period) {
  return useGet("/v1/organization/costs", {
    query: {
      start_time: period.start_at,
      end_time: period.end_at,
      bucket_width: "all",
      tenants: [period.tenant_id],
      limit: 1,
    },
  });
}

function Amounts({ of }: { of: AnswerOf<"/v1/organization/costs"> }) {
  const rows = of.data.flatMap((bucket) => bucket.results);
  if (rows.length === 0) return <span className="faint">nothing</span>;
  return rows.map((row) => (
    <div key={row.amount.currency}>
      <Money picos={row.amount.picos} currency={row.amount.currency.toUpperCase()} />
      {sum([row.correction_picos]) !== 0n && (
        <span className="faint">
          {" "}
          of which corrections <Money picos={row.correction_picos} />
        </span>
      )}
    </div>
  ));
}

function Within({ period }: { period: Period }) {
  const zone = useZone();
  const found = useWithin(period);
  return (
    <Facts
      facts={[
        ["From", <span className="num">{moment(period.start_at, zone)}</span>],
        ["To, without it", <span className="num">{moment(period.end_at, zone)}</span>],
        [
          "Used and corrected in it",
          <Loaded of={found} lines={1}>
            {(data) => <Amounts of={data} />}
          </Loaded>,
        ],
        ...(period.state === "closed"
          ? ([
              [
                "Rows of the ledger",
                <span className="num">
                  {period.sequence_min === null ? "none" : `${period.sequence_min} to ${period.sequence_max}`}
                </span>,
              ],
            ] as const)
          : []),
      ]}
    />
  );
}

function Closing({ period, onClose }: { period: Period; onClose: () => void }) {
  const name = useNames("tenant", [period.tenant_id]).get(period.tenant_id) ?? period.tenant_id;
  const found = useWithin(period);
  const go = useGo();
  const close = useWrite(
    () => api.post("/v1/admin/periods/close", { body: { tenant: period.tenant_id, month: period.month } }),
    CHANGED,
  );
  return (
    <ConfirmDialog
      open
      onClose={onClose}
      title={`Close ${period.month} of ${name}, for ever?`}
      verb="Close it for ever"
      name={`${name} ${period.month}`}
      deed={async () => {
        const made = await close.mutateAsync();
        toast(`${period.month} of ${name} is closed; this is its invoice.`);
        go(place("/billing/invoices", made.id));
      }}
    >
      <p>
        Its invoice is made now and never changes. What still comes of this month, a late request or a correction, is on
        the invoice of the next one. There is no way to open it again.
      </p>
      <div className="closing">
        <span>Used and corrected between its bounds:</span>{" "}
        <b>
          <Loaded of={found} lines={1}>
            {(data) => <Amounts of={data} />}
          </Loaded>
        </b>
      </div>
    </ConfirmDialog>
  );
}
