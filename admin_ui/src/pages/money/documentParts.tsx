// The common parts of an invoice and a credit note: the parties, and the rounded amounts beside the exact one.
import type { AnswerOf } from "../../api";
import { Money, exact, minorText } from "../../kit";

export type Document = NonNullable<AnswerOf<"/v1/admin/invoices/{invoice_id}">["document"]>;
type Party = Document["issuer"];

export function Parties({ document }: { document: Document }) {
  return (
    <div className="parties">
      <PartyBlock label="From" party={document.issuer} />
      <PartyBlock label="To" party={document.customer} />
    </div>
  );
}

function PartyBlock({ label, party }: { label: string; party: Party }) {
  return (
    <address>
      <span className="tile-label">{label}</span>
      <b>{party.name}</b>
      {(party.address ?? []).map((line, index) => (
        <span key={index}>{line}</span>
      ))}
      {party.tax_id != null && <span>Tax id {party.tax_id}</span>}
    </address>
  );
}

/** Exact amount, rounding, taxes and total. Each is in its own row, and they add up to the last digit. */
export function Amounts({ document, label }: { document: Document; label: string }) {
  const { decimals, currency } = document;
  const say = (minor: number | bigint) => minorText(minor, decimals);
  const rounding = exact(document.net_minor) * 10n ** BigInt(12 - decimals) - exact(document.exact_picos);
  return (
    <table className="table table-small amounts">
      <caption className="sr-only">Amounts</caption>
      <tbody>
        <tr>
          <th scope="row">{label}, exact</th>
          <td className="end">
            <Money picos={document.exact_picos} />
          </td>
        </tr>
        <tr>
          <th scope="row">Rounding</th>
          <td className="end">
            <Money picos={rounding} />
          </td>
        </tr>
        <tr>
          <th scope="row">Net</th>
          <td className="end num">{say(document.net_minor)}</td>
        </tr>
        {document.taxes.map((tax, index) => (
          <tr key={index}>
            <th scope="row">
              {tax.name}, {tax.rate} %
            </th>
            <td className="end num">{say(tax.minor)}</td>
          </tr>
        ))}
        <tr className="grand">
          <th scope="row">Total, {currency}</th>
          <td className="end num">{say(document.total_minor)}</td>
        </tr>
      </tbody>
    </table>
  );
}
