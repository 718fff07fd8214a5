// Periods: the months of each tenant. A past month can be closed permanently, the oldest first.
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
  useActionDialog,
  useGo,
  useNow,
  useView,
  useZone,
} from "../../kit";
import { monthOptions } from "../parts/months";
import { TenantText, useNames } from "../parts/names";
import { CHANGED, CloseAll } from "./closeAll";

type Period = RowOf<"/v1/admin/periods">;

/** The periods that can be closed now: past, and the oldest open period of their tenant among the rows. */
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
  // All open periods, regardless of the filters: only the oldest of a tenant can be closed.
  const open = useList("/v1/admin/periods", { query: { state: "open", tenant: query.tenant } }, { limit: 500 });
  const may = useMay()("billing:write");
  const bound = useSession().tenant !== null;
  const now = useNow();
  const ready = closable(open.rows, now);
  const [closing, setClosing] = useState<Period | null>(null);
  const [action, setAction] = useActionDialog(may && !bound ? ["close_month"] : []);
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
    { id: "end", header: "End", cell: (period) => <Time at={period.end_at} />, csv: (period) => iso(period.end_at) },
    {
      id: "zone",
      header: "Time zone",
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
      {may && !bound && (
        <button type="button" className="button" onClick={() => setAction("close_month")}>
          Close a month for all…
        </button>
      )}
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
            <p>A tenant’s first month begins with its first request.</p>
          </EmptyState>
        }
      />
      {closing !== null && <Closing period={closing} onClose={() => setClosing(null)} />}
      {action === "close_month" && <CloseAll onClose={() => setAction(null)} />}
    </>
  );
}

function State({ of, ready, now }: { of: Period; ready: boolean; now: number }) {
  if (of.state === "closed") return <Badge>closed</Badge>;
  if (ready) return <Badge tone="accent">can be closed</Badge>;
  return of.end_at <= now ? (
    <Badge tone="warn">over, an older month is open</Badge>
  ) : (
    <Badge tone="good">current</Badge>
  );
}

/** Usage and corrections of the period. */
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
        ["To (exclusive)", <span className="num">{moment(period.end_at, zone)}</span>],
        [
          "Usage and corrections",
          <Loaded of={found} lines={1}>
            {(data) => <Amounts of={data} />}
          </Loaded>,
        ],
        ...(period.state === "closed"
          ? ([
              [
                "Ledger rows",
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
      title={`Close ${period.month} of ${name} permanently?`}
      verb="Close permanently"
      name={`${name} ${period.month}`}
      action={async () => {
        const made = await close.mutateAsync();
        toast(`${period.month} of ${name} is closed. This is its invoice.`);
        go(place("/billing/invoices", made.id));
      }}
    >
      <p>
        Closing creates the numbered invoice, which never changes. Late requests and corrections of this month are on
        the next month’s invoice. A closed month cannot be reopened.
      </p>
      <div className="closing">
        <span>Usage and corrections of this month:</span>{" "}
        <b>
          <Loaded of={found} lines={1}>
            {(data) => <Amounts of={data} />}
          </Loaded>
        </b>
      </div>
    </ConfirmDialog>
  );
}
