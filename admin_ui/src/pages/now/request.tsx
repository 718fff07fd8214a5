// One request: timings, hold, usage, cost and its ledger entries.
import { type AnswerOf, useGet } from "../../api";
import {
  type Column,
  Count,
  DataTable,
  EmptyState,
  Facts,
  Id,
  Link,
  Loaded,
  Money,
  PageHead,
  Section,
  ShortId,
  Time,
  count,
  duration,
  sum,
  useParam,
  wholeList,
} from "../../kit";
import { AnsweredBy, KeyName, TenantName } from "../parts/names";
import { BudgetLink, ErrorFacts, Refused, Slowness } from "./requestParts";
import { RequestStatus } from "./requests";
import "./requests.css";

export type RequestView = AnswerOf<"/v1/admin/requests/{request_id}">;
type Entry = RequestView["entries"][number];
type Correction = RequestView["corrections"][number];
const RUNS_MS = 2_000;

export default function RequestPage() {
  const request_id = useParam("request");
  const found = useGet("/v1/admin/requests/{request_id}", { path: { request_id } });
  const runs = found.data?.status === "held";
  useGet(
    "/v1/admin/requests/{request_id}",
    { path: { request_id } },
    { enabled: runs, ...(runs ? { everyMs: RUNS_MS } : {}) },
  );
  return (
    <>
      <PageHead
        title="Request"
        trail={<Link to="/requests">Requests</Link>}
        note={
          <>
            <Id value={request_id} /> {found.data !== undefined && <RequestStatus of={found.data} />}
          </>
        }
      />
      <Loaded of={found} lines={10}>
        {(whole) => <Parts whole={whole} />}
      </Loaded>
    </>
  );
}

function Parts({ whole }: { whole: RequestView }) {
  if (whole.status === "refused" || whole.status === "failed") return <Refused whole={whole} error={whole.error} />;
  const { hold, usage } = whole;
  const currency = whole.currency ?? undefined;
  return (
    <>
      <Slowness whole={whole} />
      {whole.error !== null && (
        <Section title="Error" note="The error that the caller got.">
          <ErrorFacts error={whole.error} tenant_id={whole.tenant_id} />
        </Section>
      )}
      <div className="columns request-columns">
        <Section title="Request">
          <Facts
            facts={[
              ["Tenant", <TenantName id={whole.tenant_id} />],
              ["Key", <KeyName id={whole.key_id} />],
              ["Model or adapter", <AnsweredBy model={whole.model} adapter={whole.adapter} />],
              ...(whole.asked == null ? [] : [["Requested model", <code>{whole.asked}</code>] as const]),
              ...(whole.adapter_version == null
                ? []
                : [["Version of the adapter", <span className="num">{whole.adapter_version}</span>] as const]),
              ["Tier", <Link to="/tiers">{whole.tier}</Link>],
              [
                "Prompt",
                <>
                  <Count value={whole.prompt_tokens} /> tokens
                  {whole.cached_tokens !== null && whole.cached_tokens > 0 && (
                    <span className="faint">, {count(whole.cached_tokens)} of them cached</span>
                  )}
                </>,
              ],
              [
                "Completion",
                whole.completion_tokens === null ? (
                  <span className="faint">not counted yet</span>
                ) : (
                  <>
                    <Count value={whole.completion_tokens} /> tokens of at most {count(hold.max_tokens)}
                  </>
                ),
              ],
              ["Began", <Time at={whole.started_at} absolute />],
              [
                "Ended",
                whole.ended_at === null ? (
                  <span className="faint">still running</span>
                ) : (
                  <Time at={whole.ended_at} absolute />
                ),
              ],
              ["Text", <span className="faint">Not stored: Laneway keeps neither prompts nor completions.</span>],
            ]}
          />
        </Section>
        <Section title="Usage and cost">
          <Facts
            facts={[
              [
                "Cost",
                whole.cost_picos === null ? (
                  <span className="faint">{whole.status === "held" ? "known when it ends" : "nothing"}</span>
                ) : (
                  <b>
                    <Money picos={whole.cost_picos} currency={currency} />
                  </b>
                ),
              ],
              ["Hold", <Money picos={hold.hold_picos} currency={currency} />],
              ["Settled", <Money picos={hold.settled_picos} currency={currency} />],
              ["Price version", <ShortId value={hold.price_version_id} />],
              [
                "Budgets",
                hold.windows.length === 0 ? (
                  <span className="faint">none</span>
                ) : (
                  <ul>
                    {hold.windows.map((one) => (
                      <li key={one.budget_id}>
                        <BudgetLink id={one.budget_id} />
                      </li>
                    ))}
                  </ul>
                ),
              ],
              ...(usage === null
                ? []
                : ([
                    [
                      "Tokens made",
                      <>
                        <Count value={usage.made_tokens} /> tokens
                        {usage.discarded_tokens > 0 && (
                          <span className="faint">
                            , {count(usage.discarded_tokens)} discarded ({usage.discard_reason})
                          </span>
                        )}
                      </>,
                    ],
                    [
                      "Preemptions",
                      usage.preemptions === 0 ? (
                        <span className="faint">none</span>
                      ) : (
                        `${count(usage.preemptions)} times; ${count(usage.recomputed_tokens)} tokens recomputed, ${count(usage.swapped_tokens)} swapped`
                      ),
                    ],
                    ["Device time", duration(usage.device_s)],
                  ] as const)),
              ["Gateway", <ShortId value={hold.gateway_id} />],
              ...(whole.trace_id === null ? [] : ([["Trace", <ShortId value={whole.trace_id} />]] as const)),
            ]}
          />
        </Section>
      </div>
      <Section title="Ledger" note="The entries of one transaction add up to 0.">
        <Ledger entries={whole.entries} corrections={whole.corrections} />
      </Section>
    </>
  );
}

const ENTRIES: readonly Column<Entry>[] = [
  { id: "account", header: "Account", cell: (one) => <b>{one.account}</b>, csv: (one) => one.account },
  {
    id: "meter",
    header: "Meter",
    cell: (one) => one.meter ?? <span className="faint">–</span>,
    csv: (one) => one.meter,
  },
  {
    id: "amount",
    header: "Amount",
    end: true,
    cell: (one) => <Money picos={one.amount_picos} currency={one.currency} />,
    csv: (one) => one.amount_picos,
  },
  {
    id: "transaction",
    header: "Transaction",
    wide: true,
    cell: (one) => <ShortId value={one.transaction_id} />,
    csv: (one) => one.transaction_id,
  },
  { id: "at", header: "Recorded", cell: (one) => <Time at={one.recorded_at} absolute /> },
];

const CORRECTIONS: readonly Column<Correction>[] = [
  { id: "id", header: "Correction", cell: (one) => <ShortId value={one.id} /> },
  { id: "reason", header: "Reason", cell: (one) => one.reason },
  { id: "tokens", header: "Tokens", end: true, cell: (one) => <Count value={one.tokens} /> },
  { id: "amount", header: "Amount", end: true, cell: (one) => <Money picos={one.picos} currency={one.currency} /> },
  { id: "actor", header: "By", cell: (one) => <ShortId value={one.actor} /> },
  { id: "at", header: "Created", cell: (one) => <Time at={one.created_at} absolute /> },
];

function Ledger({ entries, corrections }: { entries: readonly Entry[]; corrections: readonly Correction[] }) {
  return (
    <div className="stack">
      <DataTable
        label="Ledger entries"
        list={wholeList(entries)}
        columns={ENTRIES}
        id={(one) => `${one.transaction_id}/${one.account}/${one.meter}`}
        empty={
          <EmptyState title="No entries yet">
            <p>Entries are written when a request is settled.</p>
          </EmptyState>
        }
      />
      {entries.length > 0 && (
        <p className="faint">
          Sum: <Money picos={sum(entries.map((one) => one.amount_picos))} currency={entries[0]?.currency} />
        </p>
      )}
      {corrections.length > 0 && (
        <DataTable
          label="Corrections"
          list={wholeList(corrections)}
          columns={CORRECTIONS}
          id={(one) => one.id}
          empty={null}
        />
      )}
    </div>
  );
}
