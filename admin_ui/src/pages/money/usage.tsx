// Usage and costs over time, by tenant, key, model and so on, as a chart and as tables.
import { useMemo } from "react";
import { useGet, useMay, useSession } from "../../api";
import {
  Chart,
  EmptyState,
  type Exact,
  LookupFilter,
  PageHead,
  Problem,
  SelectFilter,
  Skeleton,
  StatTile,
  TenantLookup,
  TextFilter,
  Tiles,
  type View,
  type Zone,
  ZoneContext,
  brief,
  count,
  decimal,
  moment,
  rounded,
  useNow,
  useView,
  useZone,
} from "../../kit";
import { KeyLookup, useNames, useTenants } from "../parts/names";
import { ReconcileBadge } from "./reconcile";
import "./usage.css";
import {
  BYS,
  type By,
  type Measure,
  NONE,
  SOURCES,
  type Usage,
  measured,
  summed,
  tokensOf,
  useUsage,
} from "./usageData";
import { type Shown, SeriesTable, TimeTable } from "./usageTables";
import { PRESETS, type Unit, rangeOf, unitOf } from "./usageTime";

const MEASURES: readonly (readonly [Measure, string])[] = [
  ["cost", "Cost of usage"],
  ["owed", "Owed, with corrections"],
  ["tokens", "All tokens"],
  ["input", "Input tokens"],
  ["cached", "Cached input tokens"],
  ["output", "Output tokens"],
  ["embedding", "Embedding tokens"],
  ["requests", "Requests"],
];
/** The dimension shown after a click on a series. */
const INTO: Record<By, By> = {
  tenant: "project",
  project: "key",
  key: "model",
  model: "adapter",
  adapter: "key",
  tier: "tenant",
  source: "tenant",
};
const MISSING: Record<By, string> = {
  tenant: "no tenant",
  project: "no project",
  key: "no key",
  model: "no model",
  adapter: "no adapter",
  tier: "no tier",
  source: "no source",
};
const SOURCE_NAMES = new Map(Object.entries(SOURCES));
const DEFAULTS = {
  by: "tenant",
  show: "cost",
  range: "30d",
  unit: "",
  clock: "",
  from: "",
  to: "",
  top: "7",
  currency: "",
  table: "series",
  tenant: "",
  project: "",
  key: "",
  model: "",
  adapter: "",
  tier: "",
  source: "",
};

type Values = typeof DEFAULTS;

export default function UsagePage() {
  const bound = useSession().tenant !== null;
  const view = useView({ ...DEFAULTS, by: bound ? "project" : "tenant" });
  const { values } = view;
  const { zone, owner } = useClock(values.clock, values.tenant);
  const now = useNow();
  const range = rangeOf(values.range, values.from, values.to, now, zone);
  const by = (BYS as string[]).includes(values.by) ? (values.by as By) : "tenant";
  const measure = MEASURES.find(([name]) => name === values.show)?.[0] ?? "cost";
  const unit = range === null ? "day" : unitOf(values.unit, range[0], range[1]);
  const filters = Object.fromEntries(BYS.filter((one) => values[one] !== "").map((one) => [one, values[one]]));
  const top = ["7", "15", "31"].includes(values.top) ? Number(values.top) : 7;
  const found = useUsage(
    range === null
      ? null
      : { by, measure, top, currency: values.currency, filters, start: range[0], end: range[1], unit, zone },
  );
  return (
    <>
      <PageHead
        title="Usage and costs"
        note={`The chart and the tables show the same numbers, exact to the last digit. ${clockNote(zone, owner)}`}
      >
        <ReconcileBadge />
      </PageHead>
      <Bar view={view} usage={found.data} bound={bound} owner={owner} />
      <Chips view={view} />
      {range === null ? (
        <EmptyState title="Choose a date range">
          <p>Both days are included.</p>
        </EmptyState>
      ) : found.error !== null ? (
        <Problem error={found.error} again={() => void found.refetch()} />
      ) : found.data === undefined ? (
        <Skeleton lines={12} />
      ) : (
        <div className={found.isPlaceholderData ? "stack table-busy" : "stack"} aria-busy={found.isPlaceholderData}>
          <ZoneContext value={values.clock === "" && owner === null ? null : zone}>
            <UsageReport
              usage={found.data}
              by={found.data.by}
              measure={measure}
              unit={unit}
              range={range}
              view={view}
            />
          </ZoneContext>
        </div>
      )}
    </>
  );
}

interface Owner {
  slug: string;
  time_zone: string;
}

/** The clock of the page's days and months. By default a chosen tenant's own, which its invoices have too, and without
 * a tenant the console's. `owner`: the tenant whose clock can be chosen. */
function useClock(clock: string, tenant: string): { zone: Zone; owner: Owner | null } {
  const set = useZone();
  const bound = useSession().tenant;
  const which = bound?.id ?? (tenant === "" || tenant === NONE ? null : tenant);
  const reading = useMay()("people:read");
  const found = useGet(
    "/v1/admin/tenants/{tenant_id}",
    { path: { tenant_id: which ?? "-" } },
    { enabled: which !== null && reading },
  );
  const owner = which === null || found.data === undefined ? null : found.data;
  if (clock === "utc" || clock === "local") return { zone: clock, owner };
  return { zone: owner === null ? set : owner.time_zone === "UTC" ? "utc" : owner.time_zone, owner };
}

function clockNote(zone: Zone, owner: Owner | null): string {
  const name = zone === "utc" ? "UTC" : zone === "local" ? "this browser’s time zone" : zone;
  const own = owner !== null && (owner.time_zone === zone || (owner.time_zone === "UTC" && zone === "utc"));
  return own
    ? `Days and months are those of ${name}, as on ${owner.slug}’s invoices.`
    : `Days and months are those of ${name}; a tenant’s invoices have the months of its own time zone.`;
}

function Bar({
  view,
  usage,
  bound,
  owner,
}: {
  view: View<Values>;
  usage: Usage | undefined;
  bound: boolean;
  owner: Owner | null;
}) {
  const may = useMay();
  const currencies = usage?.currencies ?? [];
  return (
    <div className="table-bar usage-bar" role="search" aria-label="Chart settings">
      <SelectFilter label="Show" view={view} name="show" options={MEASURES} />
      <SelectFilter label="By" view={view} name="by" options={BYS.filter((one) => !(bound && one === "tenant"))} />
      <SelectFilter label="Time range" view={view} name="range" options={PRESETS} />
      {view.values.range === "custom" && <TextFilter label="From" view={view} name="from" type="date" />}
      {view.values.range === "custom" && <TextFilter label="To (inclusive)" view={view} name="to" type="date" />}
      <SelectFilter label="Bucket" view={view} name="unit" options={[["", "Automatic"], "hour", "day", "month"]} />
      <SelectFilter
        label="Time zone of days"
        view={view}
        name="clock"
        options={[
          ["", owner === null ? "The console’s time zone" : `${owner.slug}’s: ${owner.time_zone}`],
          ["utc", "UTC"],
          ["local", "This browser’s"],
        ]}
      />
      <SelectFilter label="Top" view={view} name="top" options={["7", "15", "31"]} />
      {currencies.length > 1 && (
        <SelectFilter
          label="Currency"
          view={view}
          name="currency"
          options={[["", currencies[0]!], ...currencies.slice(1)]}
        />
      )}
      {!bound && may("people:read") && (
        <LookupFilter label="Tenant">
          <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
        </LookupFilter>
      )}
      {may("keys:read") && (
        <LookupFilter label="Key">
          <KeyLookup
            {...(view.values.tenant === "" ? {} : { tenant: view.values.tenant })}
            value={view.values.key}
            onChange={(key) => view.set({ key })}
          />
        </LookupFilter>
      )}
    </div>
  );
}

/** The active filters, each with a button to remove it. */
function Chips({ view }: { view: View<Values> }) {
  const named = {
    tenant: useNames("tenant", [view.values.tenant].filter(isId)),
    project: useNames("project", [view.values.project].filter(isId)),
    key: useNames("key", [view.values.key].filter(isId)),
    adapter: useNames("adapter", [view.values.adapter].filter(isId)),
    source: SOURCE_NAMES,
  } as Partial<Record<By, Map<string, string>>>;
  const set = BYS.filter((one) => view.values[one] !== "");
  if (set.length === 0) return null;
  return (
    <div className="row chips" role="group" aria-label="Filtered by">
      <span className="note">Filtered by</span>
      {set.map((one) => {
        const value = view.values[one];
        const said = value === NONE ? MISSING[one] : (named[one]?.get(value) ?? value);
        return (
          <button
            key={one}
            type="button"
            className="chip"
            onClick={() => view.set({ [one]: "" })}
            aria-label={`Remove the filter ${one} ${said}`}
          >
            <span className="faint">{one}</span> {said} <span aria-hidden="true">×</span>
          </button>
        );
      })}
      {set.length > 1 && (
        <button
          type="button"
          className="button button-quiet"
          onClick={() => view.set(Object.fromEntries(set.map((one) => [one, ""])))}
        >
          Clear all
        </button>
      )}
    </div>
  );
}

function isId(value: string): boolean {
  return value !== "" && value !== NONE;
}

function UsageReport({
  usage,
  by,
  measure,
  unit,
  range,
  view,
}: {
  usage: Usage;
  by: By;
  measure: Measure;
  unit: Unit;
  range: readonly [number, number];
  view: View<Values>;
}) {
  const zone = useZone();
  const kind = by === "model" || by === "tier" || by === "source" ? "tenant" : by;
  const tenants = useTenants();
  const found = useNames(kind, kind === by ? usage.series.map((one) => one.id) : [], tenants);
  const names = by === "source" ? SOURCE_NAMES : found;
  const money = measure === "cost" || measure === "owed";
  const known = [...names.values()].join();
  // eslint-disable-next-line react-hooks/exhaustive-deps -- `names` is a new map at every render; `known` is its content
  const shown = useMemo(() => seriesOf(usage, by, names), [usage, by, known]);
  const series = useMemo(
    () => shown.map((one) => ({ name: one.name, values: one.cells.map((cell) => measured(cell, measure)) })),
    [shown, measure],
  );
  const say = (value: Exact) => (money ? decimal(value) : count(value));
  const whole = summed(shown.flatMap((one) => one.cells));
  const title = `${MEASURES.find(([name]) => name === measure)![1]} by ${by}${money ? `, ${usage.currency}` : ""}`;
  if (shown.length === 0)
    return (
      <EmptyState title="No usage in this time range">
        <p>
          {moment(range[0], zone, "day")} to {moment(range[1] - 1, zone, "day")}. Choose another time range or fewer
          filters.
        </p>
      </EmptyState>
    );
  const into = (id: string | null) =>
    view.set({
      [by]: id === null ? NONE : (by === "tenant" && names.get(id)) || id,
      by: view.values[by] === "" ? INTO[by] : view.values.by,
    });
  const bySeries = view.values.table !== "time";
  return (
    <>
      <Totals cell={whole} measure={measure} currency={usage.currency} />
      <Chart
        title={title}
        kind="bars"
        at={usage.at}
        series={series}
        say={say}
        brief={money ? axisOf(series) : brief}
        detail={unit === "hour" ? "minute" : "day"}
        height={280}
      />
      <section className="stack usage-tables" aria-label="Tables">
        <div className="row">
          <div className="row" role="group" aria-label="Rows of the table">
            <button
              type="button"
              className="button button-quiet"
              aria-pressed={bySeries}
              onClick={() => view.set({ table: "series" })}
            >
              By {by}
            </button>
            <button
              type="button"
              className="button button-quiet"
              aria-pressed={!bySeries}
              onClick={() => view.set({ table: "time" })}
            >
              By {unit}
            </button>
          </div>
          {usage.others !== null && (
            <span className="note">
              The largest {usage.series.length} of {usage.series.length + usage.others.number}; “others” is the rest, so
              the sums cover everything.
            </span>
          )}
        </div>
        {bySeries ? (
          <SeriesTable title={title} by={by} shown={shown} measure={measure} currency={usage.currency} into={into} />
        ) : (
          <TimeTable title={title} at={usage.at} unit={unit} shown={shown} measure={measure} say={say} />
        )}
      </section>
    </>
  );
}

function Totals({ cell, measure, currency }: { cell: ReturnType<typeof summed>; measure: Measure; currency: string }) {
  const tokens = tokensOf(cell);
  if (measure === "owed") {
    return (
      <Tiles>
        <StatTile
          label={`Owed in this time range, ${currency}`}
          value={decimal(cell.picos)}
          note="Usage and corrections, exact."
        />
      </Tiles>
    );
  }
  return (
    <Tiles>
      <StatTile label={`Cost, ${currency}`} value={rounded(cell.picos)} note={decimal(cell.picos)} />
      <StatTile label="Requests" value={count(cell.requests)} />
      <StatTile label="Tokens" value={brief(tokens)} note={count(tokens)} />
      <StatTile
        label="Cached input"
        value={`${cell.input + cell.cached === 0n ? 0 : (Number((cell.cached * 1000n) / (cell.input + cell.cached)) / 10).toFixed(1)} %`}
        note={`${count(cell.cached)} of ${count(cell.input + cell.cached)}`}
      />
    </Tiles>
  );
}

/** Money at the axis, with the decimal places that the highest value needs. */
function axisOf(series: readonly { values: readonly bigint[] }[]): (value: number) => string {
  const highest = Math.max(
    0,
    ...(series[0]?.values ?? []).map((_, row) => series.reduce((all, one) => all + Number(one.values[row]), 0)),
  );
  const places = highest >= 10e12 ? 0 : highest >= 1e12 ? 1 : highest >= 1e11 ? 2 : highest >= 1e9 ? 3 : 6;
  return (value) => rounded(BigInt(Math.round(value)), places);
}

/** The series with unique names: two keys may have the same name. */
function seriesOf(usage: Usage, by: By, names: Map<string, string>): Shown[] {
  const seen = new Map<string, number>();
  const shown: Shown[] = usage.series.map(({ id, cells }) => {
    const name =
      id === null ? MISSING[by] : (names.get(id) ?? (id.length > 24 ? `${id.slice(0, 9)}…${id.slice(-4)}` : id));
    const times = (seen.get(name) ?? 0) + 1;
    seen.set(name, times);
    return { id, name: times > 1 ? `${name} (${id?.slice(-4) ?? times})` : name, cells, others: false };
  });
  if (usage.others !== null)
    shown.push({ id: null, name: `others (${count(usage.others.number)})`, cells: usage.others.cells, others: true });
  return shown;
}
