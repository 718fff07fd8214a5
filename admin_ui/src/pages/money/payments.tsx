// Payments of an invoice: the received amounts, and a form that records a payment.
import { useState } from "react";
import { type AnswerOf, type BodyOf, type RowOf, api, useMay, useSession, useWrite } from "../../api";
import {
  Badge,
  Dialog,
  Form,
  ShortId,
  TextField,
  Time,
  fieldError,
  minorOf,
  minorText,
  toast,
  useForm,
} from "../../kit";
import type { Document } from "./documentParts";

type Invoice = AnswerOf<"/v1/admin/invoices/{invoice_id}">;
type Body = BodyOf<"/v1/admin/invoices/{invoice_id}/payments", "post">;

const STATES = {
  unpaid: ["unpaid", "plain"],
  partly_paid: ["partly paid", "warn"],
  paid: ["paid", "good"],
  overdue: ["overdue", "bad"],
  nothing_due: ["nothing to pay", "plain"],
} as const;

export function PaymentBadge({ of }: { of: RowOf<"/v1/admin/invoices"> }) {
  if (of.payment === null) return <span className="faint">not tracked</span>;
  const [said, tone] = STATES[of.payment];
  return tone === "plain" ? <Badge>{said}</Badge> : <Badge tone={tone}>{said}</Badge>;
}

export function Payments({ invoice, document }: { invoice: Invoice; document: Document }) {
  const may = useMay()("billing:write");
  const bound = useSession().tenant !== null;
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  const say = (minor: number | bigint) => minorText(minor, document.decimals);
  return (
    <section className="payments" aria-label="Payments">
      <div className="section-head">
        <h2>Payments</h2>
        {may && !bound && invoice.payment !== "nothing_due" && (
          <button type="button" className="button" onClick={() => setOpen(true)}>
            Record a payment
          </button>
        )}
      </div>
      {invoice.payments.length === 0 ? (
        <p className="note">Nothing was received.</p>
      ) : (
        <table className="table table-small">
          <caption className="sr-only">Payments</caption>
          <tbody>
            {invoice.payments.map((one) => (
              <tr key={one.id}>
                <td>
                  <Time at={one.paid_at} absolute />
                </td>
                <td>{one.reference}</td>
                <td>
                  <ShortId value={one.actor} />
                </td>
                <td className="end num">{say(one.minor)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <p>
        Received <b className="num">{say(invoice.paid_minor)}</b> of{" "}
        <b className="num">
          {say(document.total_minor)} {document.currency}
        </b>
      </p>
      <Dialog
        open={open}
        onClose={close}
        title="Record a payment"
        keep
        note="A payment is never changed; a negative payment reverses it."
      >
        <NewPayment invoice={invoice} document={document} onDone={close} />
      </Dialog>
    </section>
  );
}

function NewPayment({ invoice, document, onDone }: { invoice: Invoice; document: Document; onDone: () => void }) {
  const left = BigInt(document.total_minor) - BigInt(invoice.paid_minor);
  const form = useForm({ amount_minor: minorText(left, document.decimals, false), reference: "" });
  const pay = useWrite(
    (body: Body) => api.post("/v1/admin/invoices/{invoice_id}/payments", { path: { invoice_id: invoice.id }, body }),
    ["/v1/admin/invoices", "/v1/admin/audit_log"],
  );
  return (
    <Form
      form={form}
      verb="Record"
      onCancel={onDone}
      save={async (values) => {
        const minor = minorOf(values.amount_minor, document.decimals);
        if (minor === null || minor === 0n)
          throw fieldError("amount_minor", `Enter an amount with at most ${document.decimals} decimal places.`);
        const reference = values.reference.trim();
        if (reference === "") throw fieldError("reference", "Enter a reference, for example of the bank transfer.");
        await pay.mutateAsync({ amount_minor: minor as unknown as number, reference, paid_at: null });
        toast(`${minorText(minor, document.decimals)} ${document.currency} is recorded.`);
        onDone();
      }}
    >
      <TextField form={form} name="amount_minor" label="Amount" type="number" hint={`In ${document.currency}`} />
      <TextField form={form} name="reference" label="Reference" />
    </Form>
  );
}
