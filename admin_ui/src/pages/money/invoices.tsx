// Invoices: what each tenant owes for each closed month.
import { type RowOf, useList, useSession } from "../../api";
import {
  type Column,
  DataTable,
  EmptyState,
  LookupFilter,
  Money,
  SelectFilter,
  ShortId,
  TenantLookup,
  Time,
  decimal,
  exact,
  iso,
  minorText,
  place,
  useNow,
  useView,
} from "../../kit";
import { monthOptions } from "../parts/months";
import { TenantText } from "../parts/names";
import { PaymentBadge } from "./payments";

type Invoice = RowOf<"/v1/admin/invoices">;

const text = (picos: number | bigint) => decimal(picos, false).replace("−", "-");

const COLUMNS: readonly Column<Invoice>[] = [
  {
    id: "tenant",
    header: "Tenant",
    cell: (invoice) => <TenantText id={invoice.tenant_id} />,
    csv: (invoice) => invoice.tenant_id,
  },
  {
    id: "number",
    header: "Number",
    cell: (invoice) => <span className="num">{invoice.document?.number ?? "–"}</span>,
    csv: (invoice) => invoice.document?.number,
  },
  {
    id: "month",
    header: "Month",
    cell: (invoice) => <span className="num">{invoice.period.month}</span>,
    csv: (invoice) => invoice.period.month,
  },
  {
    id: "usage",
    header: "Usage",
    end: true,
    wide: true,
    cell: (invoice) => <Money picos={invoice.usage_picos} short />,
    csv: (invoice) => text(invoice.usage_picos),
  },
  {
    id: "corrections",
    header: "Corrections",
    end: true,
    wide: true,
    cell: (invoice) =>
      exact(invoice.correction_picos) === 0n ? (
        <span className="faint">none</span>
      ) : (
        <Money picos={invoice.correction_picos} short />
      ),
    csv: (invoice) => text(invoice.correction_picos),
  },
  {
    id: "total",
    header: "Total before taxes",
    end: true,
    cell: (invoice) => (
      <b>
        <Money picos={invoice.total_picos} currency={invoice.currency} short />
      </b>
    ),
    csv: (invoice) => text(invoice.total_picos),
  },
  {
    id: "to-pay",
    header: "To pay",
    end: true,
    cell: (invoice) =>
      invoice.document === null ? (
        <span className="faint">–</span>
      ) : (
        <span className="num">
          {minorText(invoice.document.total_minor, invoice.document.decimals)} {invoice.currency}
        </span>
      ),
    csv: (invoice) =>
      invoice.document === null
        ? null
        : minorText(invoice.document.total_minor, invoice.document.decimals, false).replace("−", "-"),
  },
  {
    id: "payment",
    header: "Payment",
    cell: (invoice) => <PaymentBadge of={invoice} />,
    csv: (invoice) => invoice.payment,
  },
  {
    id: "due",
    header: "Due",
    wide: true,
    cell: (invoice) => <Time at={invoice.document?.due_at ?? null} absolute detail="day" />,
    csv: (invoice) => iso(invoice.document?.due_at),
  },
  {
    id: "currency",
    header: "Currency",
    hidden: true, // each amount has it
    cell: () => null,
    csv: (invoice) => invoice.currency,
  },
  {
    id: "issued",
    header: "Issued",
    cell: (invoice) => <Time at={invoice.issued_at} />,
    csv: (invoice) => iso(invoice.issued_at),
  },
  {
    id: "id",
    header: "Invoice",
    wide: true,
    roomy: true,
    cell: (invoice) => <ShortId value={invoice.id} />,
    csv: (invoice) => invoice.id,
  },
];

/** The invoices of all tenants, or of the tenant `of` (a slug). */
export function Invoices({ of }: { of?: string }) {
  const view = useView({ tenant: "", month: "" });
  const list = useList("/v1/admin/invoices", {
    query: of === undefined ? view.values : { ...view.values, tenant: of },
  });
  const bound = useSession().tenant !== null || of !== undefined;
  const now = useNow();
  return (
    <DataTable
      label="Invoices"
      list={list}
      columns={COLUMNS}
      id={(invoice) => invoice.id}
      to={(invoice) => place("/billing/invoices", invoice.id)}
      view={view}
      csv
      filters={
        <>
          {!bound && (
            <LookupFilter label="Tenant">
              <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
            </LookupFilter>
          )}
          <SelectFilter label="Month" view={view} name="month" options={monthOptions(now, "Any")} />
        </>
      }
      empty={
        <EmptyState title="No invoice yet">
          <p>Closing a month creates its invoice.</p>
        </EmptyState>
      }
    />
  );
}
