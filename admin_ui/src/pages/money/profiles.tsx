// Billing profiles: the issuer of documents, and each tenant as its documents name it.
import { useState } from "react";
import { type AnswerOf, type RowOf, useList, useMay } from "../../api";
import {
  Badge,
  type Column,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Link,
  Loaded,
  PageHead,
  Section,
  place,
  useView,
} from "../../kit";
import { Lines, taxText, useIssuer } from "./profile";
import { ProfileForm } from "./profileForm";

type Row = RowOf<"/v1/admin/billing_profiles">;
type Issuer = AnswerOf<"/v1/admin/issuer">;

const COLUMNS: readonly Column<Row>[] = [
  { id: "slug", header: "Tenant", sort: "slug", cell: (row) => <TenantLink of={row} />, csv: (row) => row.slug },
  {
    id: "name",
    header: "Name on documents",
    sort: "name",
    cell: (row) => row.legal_name ?? <span className="faint">{row.name}</span>,
    csv: (row) => row.legal_name ?? row.name,
  },
  {
    id: "state",
    header: "Profile",
    cell: (row) => <State of={row} />,
    csv: (row) => missingOf(row).join("; "),
    csvHeader: "Missing",
  },
  {
    id: "address",
    header: "Address",
    wide: true,
    cell: (row) => <Lines of={row.address} />,
    csv: (row) => row.address.join(", "),
  },
  {
    id: "tax-id",
    header: "Tax id",
    wide: true,
    cell: (row) => row.tax_id ?? <span className="faint">–</span>,
    csv: (row) => row.tax_id,
  },
  {
    id: "taxes",
    header: "Taxes",
    cell: (row) => <Lines of={row.taxes.map(taxText)} />,
    csv: (row) => row.taxes.map(taxText).join("; "),
  },
  {
    id: "days",
    header: "Due after",
    end: true,
    wide: true,
    cell: (row) =>
      row.payment_days === null ? (
        <span className="faint">default</span>
      ) : (
        <span className="num no-break">{row.payment_days} days</span>
      ),
    csv: (row) => row.payment_days,
    csvHeader: "Days until payment",
  },
  {
    id: "accounts",
    header: "Accounts",
    wide: true,
    cell: (row) => <Lines of={accountTexts(row)} />,
    csv: (row) => accountTexts(row).join("; "),
  },
];

export default function BillingProfiles() {
  const view = useView({ search: "", sort: "slug" });
  const list = useList("/v1/admin/billing_profiles", { query: view.values });
  const issuer = useIssuer();
  const may = useMay()("billing:write");
  const [edited, setEdited] = useState<Row | null>(null);
  const close = () => setEdited(null);
  const columns: Column<Row>[] = [...COLUMNS];
  if (may) {
    columns.push({
      id: "edit",
      header: "Edit",
      end: true,
      cell: (row) => (
        <span className="row-actions">
          <button
            type="button"
            className="button button-quiet"
            aria-label={`Edit the profile of ${row.slug}`}
            onClick={() => setEdited(row)}
          >
            Edit
          </button>
        </span>
      ),
    });
  }
  return (
    <>
      <PageHead
        title="Billing profiles"
        note="The two parties of invoices and credit notes: you as the issuer, and each tenant. A change is on documents that are issued later; issued documents do not change."
      />
      <Section
        title="Issuer"
        note="In the section [billing] of laneway.toml; a change takes effect when the gateways are restarted."
      >
        <Loaded of={issuer}>{(one) => <IssuerFacts of={one} />}</Loaded>
      </Section>
      <Section title="Tenants">
        <DataTable
          label="Billing profiles"
          list={list}
          columns={columns}
          id={(row) => row.tenant_id}
          view={view}
          search="Name, slug or id"
          csv
          empty={<EmptyState title="No tenant yet" />}
        />
      </Section>
      <Dialog open={edited !== null} onClose={close} title={`Billing profile of ${edited?.name ?? ""}`} keep>
        {edited !== null && (
          <ProfileForm profile={edited} name={edited.name} days={issuer.data?.payment_days} onDone={close} />
        )}
      </Dialog>
    </>
  );
}

function TenantLink({ of: row }: { of: Row }) {
  return (
    <Link to={place("/tenants", row.slug)} query={{ tab: "profile" }}>
      <b>{row.slug}</b>
    </Link>
  );
}

function IssuerFacts({ of: issuer }: { of: Issuer }) {
  return (
    <Facts
      facts={[
        ["Name (issuer_name)", issuer.name],
        ["Address (issuer_address)", <Lines of={issuer.address} />],
        ["Tax id (issuer_tax_id)", issuer.tax_id ?? <span className="faint">none</span>],
        ["Invoices (invoice_series)", <Series of={issuer.invoice_series} />],
        ["Credit notes (credit_series)", <Series of={issuer.credit_series} />],
        ["Due after (payment_days)", `${issuer.payment_days} days`],
      ]}
    />
  );
}

function Series({ of: series }: { of: string }) {
  return (
    <>
      series <code>{series}</code>
    </>
  );
}

/** The data that an invoice of the tenant would lack. */
function missingOf(row: Row): string[] {
  return [...(row.address.length === 0 ? ["address"] : []), ...(row.taxes.length === 0 ? ["taxes"] : [])];
}

function State({ of: row }: { of: Row }) {
  if (!row.is_set) return <Badge tone="warn">not set</Badge>;
  const missing = missingOf(row);
  return missing.length === 0 ? <Badge tone="good">complete</Badge> : <Badge>without {missing.join(", ")}</Badge>;
}

function accountTexts(row: Row): string[] {
  return Object.entries(row.accounts).map(([connector, account]) => `${connector}: ${account}`);
}
