// One invoice: number, parties, rounded amounts and taxes, payments, and its lines, exact, with a check of their sum. It
// has a print layout.
import { type AnswerOf, useGet, useList } from "../../api";
import {
  Badge,
  Count,
  type Exact,
  Facts,
  Id,
  Link,
  Loaded,
  Money,
  PageHead,
  ShortId,
  Time,
  decimal,
  exact,
  minorText,
  moment,
  saveCsv,
  sum,
  useParam,
} from "../../kit";
import { alike } from "../parts/alike";
import "./billing.css";
import { KeyName, TenantName, useNames } from "../parts/names";
import { Amounts, Parties } from "./documentParts";
import { meterSaid } from "../parts/meters";
import { Payments, PaymentBadge } from "./payments";
import { ReconcileBadge } from "./reconcile";

type Invoice = AnswerOf<"/v1/admin/invoices/{invoice_id}">;
type Line = Invoice["lines"][number];

const PER = 1_000_000n;

export default function InvoicePage() {
  const invoice_id = useParam("invoice");
  const found = useGet("/v1/admin/invoices/{invoice_id}", { path: { invoice_id } });
  return (
    <Loaded of={found} lines={10}>
      {(invoice) => <InvoiceSheet invoice={invoice} />}
    </Loaded>
  );
}

function InvoiceSheet({ invoice }: { invoice: Invoice }) {
  const { period, currency, document } = invoice;
  const name = useNames("tenant", [invoice.tenant_id]).get(invoice.tenant_id) ?? "…";
  const clock = period.time_zone === "UTC" ? "utc" : period.time_zone;
  const lines = sum(invoice.lines.map((line) => line.picos));
  const same = lines === exact(invoice.total_picos);
  const save = () =>
    saveCsv(
      `invoice-${invoice.id}`,
      [
        "line",
        "kind",
        "model",
        "adapter",
        "tier",
        "meter",
        "tokens",
        `unit price, ${currency}`,
        `amount, ${currency}`,
        "correction",
      ],
      [
        ...invoice.lines.map((line) => [
          line.line,
          line.kind,
          line.model,
          line.adapter_name ?? line.adapter,
          line.tier,
          line.meter,
          line.tokens,
          line.unit_price_picos === null ? null : text(line.unit_price_picos),
          text(line.picos),
          line.correction_id,
        ]),
        ...(document === null
          ? []
          : [
              ["net, rounded", ...NOTHING, minorText(document.net_minor, document.decimals, false), null],
              ...document.taxes.map((tax) => [
                `${tax.name} ${tax.rate} %`,
                ...NOTHING,
                minorText(tax.minor, document.decimals, false),
                null,
              ]),
              ["to pay", ...NOTHING, minorText(document.total_minor, document.decimals, false), null],
            ].map((row) => row.map((cell) => (typeof cell === "string" ? cell.replace("−", "-") : cell)))),
        ["total", null, null, null, null, null, null, null, text(invoice.total_picos), null],
      ],
    );
  return (
    <div className="invoice">
      <PageHead
        title={`Invoice ${document === null ? "" : `${document.number} `}of ${name}, ${period.month}`}
        trail={
          <Link to="/billing" query={{ tab: "invoices" }}>
            Invoices
          </Link>
        }
      >
        <ReconcileBadge />
        <button type="button" className="button" onClick={save}>
          CSV
        </button>
        <button type="button" className="button" onClick={() => print()}>
          Print
        </button>
      </PageHead>
      {document !== null && <Parties document={document} />}
      <div className="columns">
        <Facts
          facts={[
            ["Invoice", <Id value={invoice.id} />],
            ...(document === null
              ? []
              : ([
                  ["Number", <b className="num">{document.number}</b>],
                  [
                    "Due",
                    document.due_at === null ? (
                      <span className="faint">nothing to pay</span>
                    ) : (
                      <span className="num">{moment(document.due_at, "utc", "day")}</span>
                    ),
                  ],
                  ["Payment", <PaymentBadge of={invoice} />],
                ] as const)),
            ["Tenant", <TenantName id={invoice.tenant_id} />],
            ["From", <span className="num">{moment(period.start_at, clock)}</span>],
            ["To (exclusive)", <span className="num">{moment(period.end_at, clock)}</span>],
            ["Time zone", period.time_zone],
            [
              "Issued",
              <>
                <Time at={invoice.issued_at} absolute />{" "}
                {period.closed_by !== null && (
                  <span className="faint">
                    by{" "}
                    {period.closed_by.startsWith("key_") ? (
                      <KeyName id={period.closed_by} />
                    ) : (
                      <ShortId value={period.closed_by} />
                    )}
                  </span>
                )}
              </>,
            ],
          ]}
        />
        <div className="stack">
          <div className="panel invoice-total">
            <div className="tile-label">Total before taxes, exact</div>
            <div className="tile-value num">
              <Money picos={invoice.total_picos} currency={currency} />
            </div>
            <div className="note">
              Usage <Money picos={invoice.usage_picos} /> and corrections <Money picos={invoice.correction_picos} />
            </div>
            <div>
              <Badge tone={same ? "good" : "bad"}>
                {same ? `equals the sum of its ${invoice.lines.length} lines` : `its lines add up to ${decimal(lines)}`}
              </Badge>
            </div>
          </div>
          {document !== null && <Amounts document={document} label="Total before taxes" />}
        </div>
      </div>
      {document !== null && <Payments invoice={invoice} document={document} />}
      <Lines invoice={invoice} />
    </div>
  );
}

const NOTHING = [null, null, null, null, null, null, null];

function text(picos: number | bigint): string {
  return decimal(picos, false).replace("−", "-");
}

function Lines({ invoice }: { invoice: Invoice }) {
  const some = invoice.lines.some((line) => line.kind === "correction");
  const corrections = useList(
    "/v1/admin/corrections",
    { query: { tenant: invoice.tenant_id } },
    { limit: 500, enabled: some },
  );
  const reasons = new Map(corrections.rows.map((one) => [one.id, one.reason]));
  const say = alike([...invoice.lines.map((line) => line.picos), invoice.usage_picos, invoice.correction_picos]);
  return (
    <section className="section" aria-label="Lines">
      <div className="section-head">
        <h2>Lines</h2>
        <span className="note">Amount = tokens × price, not rounded. Prices are per million tokens.</span>
      </div>
      <div
        className="table-scroll table-block invoice-lines"
        tabIndex={0}
        role="region"
        aria-label="The lines of the invoice"
      >
        <table className="table table-small">
          <caption className="sr-only">The lines of the invoice</caption>
          <thead>
            <tr>
              <th scope="col" className="end">
                #
              </th>
              <th scope="col">Model or adapter</th>
              <th scope="col">Tier</th>
              <th scope="col">Meter</th>
              <th scope="col" className="end">
                Tokens
              </th>
              <th scope="col" className="end">
                Price per 1M
              </th>
              <th scope="col" className="end">
                Amount, {invoice.currency}
              </th>
            </tr>
          </thead>
          <tbody>
            {invoice.lines.map((line) => (
              <LineRow key={line.line} line={line} say={say} reason={reasons.get(line.correction_id ?? "")} />
            ))}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row" colSpan={6}>
                Usage
              </th>
              <td className="end num">{say(invoice.usage_picos)}</td>
            </tr>
            <tr>
              <th scope="row" colSpan={6}>
                Corrections
              </th>
              <td className="end num">{say(invoice.correction_picos)}</td>
            </tr>
            <tr className="grand">
              <th scope="row" colSpan={6}>
                Total
              </th>
              <td className="end num">{say(invoice.total_picos)}</td>
            </tr>
          </tfoot>
        </table>
      </div>
    </section>
  );
}

function LineRow({ line, say, reason }: { line: Line; say: (picos: Exact) => string; reason: string | undefined }) {
  const correction = line.kind === "correction";
  const what = line.adapter_name ?? line.adapter ?? line.model;
  return (
    <tr className={correction ? "correction" : undefined}>
      <td data-label="Line" className="end num faint">
        {line.line}
      </td>
      <td data-label="Model or adapter">
        {correction && (
          <>
            <Badge tone="warn">correction</Badge>{" "}
          </>
        )}
        {what !== null && <b>{what}</b>}
        {line.adapter !== null && line.model !== null && <span className="faint"> on {line.model}</span>}
        {correction && reason !== undefined && <div className="note">{reason}</div>}
      </td>
      <td data-label="Tier">{line.tier ?? <span className="faint">–</span>}</td>
      <td data-label="Meter">{line.meter === null ? <span className="faint">–</span> : meterSaid(line.meter)}</td>
      <td data-label="Tokens" className="end">
        {correction && line.tokens === 0 ? <span className="faint">–</span> : <Count value={line.tokens} />}
      </td>
      <td data-label="Price per 1M" className="end">
        {line.unit_price_picos === null ? (
          <span className="faint">–</span>
        ) : (
          <>
            <Money picos={exact(line.unit_price_picos) * PER} />
            {line.price_from !== null && <div className="note num">since {moment(line.price_from, "utc", "day")}</div>}
          </>
        )}
      </td>
      <td data-label="Amount" className="end num">
        {say(line.picos)}
      </td>
    </tr>
  );
}
