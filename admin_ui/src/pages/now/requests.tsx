// Requests: running ones first, then ended ones, newest first. Prompts and completions are not stored.
import { type RowOf, useGet, useList, useMay } from "../../api";
import {
  Badge,
  type Column,
  DataTable,
  EmptyState,
  Link,
  Lookup,
  LookupFilter,
  Money,
  PageHead,
  SelectFilter,
  TenantLookup,
  TextFilter,
  Time,
  type Tone,
  count,
  decimal,
  duration,
  iso,
  place,
  useView,
} from "../../kit";
import { AnsweredBy, KeyLookup, TenantName, useAdapters, useTenants } from "../parts/names";
import "./requests.css";

export type Request = RowOf<"/v1/admin/requests">;

const STATUSES: Record<Request["status"], Tone> = {
  held: "accent",
  settled: "good",
  voided: "plain",
  expired: "warn",
  refused: "warn",
  failed: "bad",
};
const STATUS_WORDS: readonly (readonly [string, string])[] = [
  ["", "Any"],
  ["held", "running"],
  ["settled", "settled"],
  ["voided", "voided"],
  ["expired", "expired"],
];
const ENDINGS = ["stop", "length", "client_left", "cancelled", "engine_failed", "gateway_dead"];
/** Values of the filter `batch` that are no id, and their names. */
const BATCH_LINES = [
  ["any", "only"],
  ["none", "without"],
] as const;
const BAD_ENDINGS = new Set(["engine_failed", "client_left", "gateway_dead"]);

export function RequestStatus({ of }: { of: Pick<Request, "status" | "ending" | "error"> }) {
  if (of.status === "held") return <Badge tone="accent">running</Badge>;
  if (of.status === "refused" || of.status === "failed") {
    return (
      <Badge tone={STATUSES[of.status]}>
        {of.status}: {of.error?.code}
      </Badge>
    );
  }
  const tone =
    of.status === "settled" && BAD_ENDINGS.has(of.ending ?? "")
      ? of.ending === "engine_failed"
        ? "bad"
        : "warn"
      : STATUSES[of.status];
  return (
    <Badge tone={tone}>
      {of.status === "settled"
        ? (of.ending ?? "settled")
        : of.ending === null
          ? of.status
          : `${of.status}: ${of.ending}`}
    </Badge>
  );
}

export default function Requests() {
  const view = useView({
    search: "",
    outcome: "",
    code: "",
    status: "",
    ending: "",
    tenant: "",
    key_id: "",
    model: "",
    adapter: "",
    tier: "",
    batch: "",
    min_ttft_s: "",
    from: "",
    to: "",
  });
  const { from, to, min_ttft_s, ...narrowed } = view.values;
  const ofBatches = BATCH_LINES.some(([value]) => value === view.values.batch);
  const ofOneBatch = !ofBatches && view.values.batch !== "";
  const slowest = min_ttft_s === "" ? undefined : Number(min_ttft_s);
  const list = useList("/v1/admin/requests", {
    query: { ...narrowed, min_ttft_s: slowest, start_time: secondOf(from), end_time: secondOf(to) },
  });
  const engine = useMay()("engine:read");
  const models = useGet("/v1/admin/models", undefined, { enabled: engine }).data?.data;
  const tiers = useGet("/v1/admin/tiers", {}, { enabled: engine });
  const tierNames = tiers.data?.data.map((tier) => tier.name) ?? ["premium", "standard", "batch"];
  const filters = (
    <>
      <SelectFilter label="Outcome" view={view} name="outcome" options={[["", "Any"], "served", "refused", "failed"]} />
      <TextFilter label="Error code" view={view} name="code" />
      <SelectFilter label="Status" view={view} name="status" options={STATUS_WORDS} />
      <SelectFilter label="Ending" view={view} name="ending" options={[["", "Any"], ...ENDINGS]} />
      <LookupFilter label="Tenant">
        <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
      </LookupFilter>
      <LookupFilter label="Adapter">
        <Lookup
          path="/v1/admin/adapters"
          label="Adapter"
          placeholder="Any"
          value={view.values.adapter}
          onChange={(adapter) => view.set({ adapter })}
          choice={(one) => ({ value: one.id, said: one.name, note: one.base_model })}
        />
      </LookupFilter>
      {models === undefined ? (
        <TextFilter label="Model" view={view} name="model" />
      ) : (
        <SelectFilter
          label="Model"
          view={view}
          name="model"
          options={[["", "Any"], ...new Set([...models.map((model) => model.name), view.values.model].filter(Boolean))]}
        />
      )}
      <SelectFilter label="Tier" view={view} name="tier" options={[["", "Any"], ...tierNames]} />
      <TextFilter label="TTFT from, seconds" view={view} name="min_ttft_s" type="number" />
      <LookupFilter label="Key">
        <KeyLookup
          {...(view.values.tenant === "" ? {} : { tenant: view.values.tenant })}
          value={view.values.key_id}
          onChange={(key_id) => view.set({ key_id })}
        />
      </LookupFilter>
      <SelectFilter
        label="Batch lines"
        view={view}
        name="batch"
        options={[["", "all"], ...BATCH_LINES, ...(ofOneBatch ? [[view.values.batch, "of one batch"] as const] : [])]}
      />
      {!ofBatches && <TextFilter label="Batch" view={view} name="batch" />}
      <Moment label="Ended from (UTC)" value={from} onChange={(value) => view.set({ from: value })} />
      <Moment label="Ended until (UTC)" value={to} onChange={(value) => view.set({ to: value })} />
    </>
  );
  return (
    <>
      <PageHead
        title="Requests"
        note="Running requests first, then ended requests, newest first, with refused and failed ones. Prompts and completions are not stored; this list has their counts, timings and costs."
      />
      {(slowest !== undefined || ofBatches) && from === "" && (
        <p className="note table-note">
          {slowest === undefined
            ? "Requests of the last 7 days. Choose “Ended from” for older ones."
            : "Settled requests of the last 7 days with this time to the first token. Choose “Ended from” for older ones."}
        </p>
      )}
      <DataTable
        label="Requests"
        list={list}
        columns={useColumns()}
        id={(request) => request.request_id}
        to={(request) => place("/requests", request.request_id)}
        view={view}
        search="Full request id"
        filters={filters}
        csv
        empty={
          <EmptyState title="No request yet">
            <p>
              Every request of a tenant's key is listed here, also a refused one.{" "}
              <Link to="/playground">Playground</Link>
            </p>
          </EmptyState>
        }
      />
    </>
  );
}

const COST_PLACES = 6;

function useColumns(): readonly Column<Request>[] {
  const tenants = useTenants();
  const adapters = useAdapters();
  return [
    {
      id: "request",
      header: "Request",
      cell: (one) => (
        <code className="no-break" title={one.request_id}>
          {one.request_id.slice(0, 9)}…{one.request_id.slice(-4)}
        </code>
      ),
      csv: (one) => one.request_id,
    },
    {
      id: "status",
      header: "Status",
      cell: (one) => <RequestStatus of={one} />,
      csv: (one) => one.ending ?? one.status,
    },
    { id: "outcome", header: "Outcome", hidden: true, cell: () => null, csv: (one) => one.outcome },
    { id: "code", header: "Error code", hidden: true, cell: () => null, csv: (one) => one.error?.code ?? null },
    {
      id: "message",
      header: "Error message",
      hidden: true,
      cell: () => null,
      csv: (one) => one.error?.message ?? null,
    },
    {
      id: "tenant",
      header: "Tenant",
      cell: (one) => <TenantName id={one.tenant_id} />,
      csv: (one) => tenants.get(one.tenant_id)?.slug ?? one.tenant_id,
    },
    { id: "tenant_id", header: "Tenant id", hidden: true, cell: () => null, csv: (one) => one.tenant_id },
    { id: "key", header: "Key id", hidden: true, cell: () => null, csv: (one) => one.key_id },
    {
      id: "model",
      header: "Model or adapter",
      cell: (one) =>
        one.model === "" ? <span className="faint">–</span> : <AnsweredBy model={one.model} adapter={one.adapter} />,
      csv: (one) => (one.adapter === null ? one.model : (adapters.get(one.adapter)?.name ?? one.adapter)),
    },
    { id: "tier", header: "Tier", cell: (one) => one.tier, csv: (one) => one.tier },
    {
      id: "prompt",
      header: "Prompt",
      end: true,
      wide: true,
      roomy: true,
      cell: (one) => (
        <span
          className="num"
          title={one.cached_tokens === null ? undefined : `${count(one.cached_tokens)} of them cached`}
        >
          {count(one.prompt_tokens)}
        </span>
      ),
      csv: (one) => one.prompt_tokens,
    },
    {
      id: "made",
      header: "Completion",
      end: true,
      wide: true,
      roomy: true,
      cell: (one) => <span className="num">{one.completion_tokens === null ? "–" : count(one.completion_tokens)}</span>,
      csv: (one) => one.completion_tokens,
    },
    {
      id: "ttft",
      header: "TTFT",
      csvHeader: "TTFT s",
      end: true,
      cell: (one) => <span className="num">{one.ttft_s === null ? "–" : duration(one.ttft_s)}</span>,
      csv: (one) => one.ttft_s,
    },
    { id: "queue", header: "Queue s", hidden: true, cell: () => null, csv: (one) => one.queue_s },
    {
      id: "duration",
      header: "Duration",
      csvHeader: "Duration s",
      end: true,
      wide: true,
      cell: (one) => <span className="num">{one.duration_s === null ? "–" : duration(one.duration_s)}</span>,
      csv: (one) => one.duration_s,
    },
    {
      id: "cost",
      header: "Cost",
      end: true,
      cell: (one) =>
        one.cost_picos === null ? (
          <span className="faint">–</span>
        ) : (
          <Money picos={one.cost_picos} currency={one.currency ?? undefined} places={COST_PLACES} />
        ),
      csv: (one) => (one.cost_picos === null ? null : decimal(one.cost_picos, false)),
    },
    { id: "currency", header: "Currency", hidden: true, cell: () => null, csv: (one) => one.currency },
    { id: "started", header: "Began", hidden: true, cell: () => null, csv: (one) => iso(one.started_at) },
    {
      id: "ended",
      header: "Ended",
      end: true,
      cell: (one) =>
        one.ended_at === null ? (
          <span className="faint">
            running since <Time at={one.started_at} />
          </span>
        ) : (
          <Time at={one.ended_at} absolute />
        ),
      csv: (one) => iso(one.ended_at),
    },
  ];
}

/** A filter by time in UTC, to the minute. */
function Moment({ label, value, onChange }: { label: string; value: string; onChange: (value: string) => void }) {
  return (
    <label className="filter filter-moment">
      <span>{label}</span>
      <input type="datetime-local" value={value} onChange={(event) => onChange(event.target.value)} />
    </label>
  );
}

function secondOf(text: string): number | undefined {
  const at = Date.parse(`${text}Z`);
  return Number.isNaN(at) ? undefined : Math.floor(at / 1000);
}
