// Billing: the months of each tenant, what was invoiced and corrected, the files for finance, and what a tier earns.
import { useMay, useSession } from "../../api";
import { PageHead, Tabs } from "../../kit";
import { Corrections } from "./corrections";
import { Exports } from "./exports";
import { Invoices } from "./invoices";
import { Margins } from "./margins";
import { Periods } from "./periods";
import { ReconcileBadge } from "./reconcile";

export default function Billing() {
  const may = useMay();
  const bound = useSession().tenant !== null;
  return (
    <>
      <PageHead
        title="Billing"
        note="A month is open until it is closed, for ever, into its invoice. What comes later is in the next one."
      >
        <ReconcileBadge />
      </PageHead>
      <Tabs
        label="Of billing"
        tabs={[
          { id: "periods", label: "Periods", content: () => <Periods /> },
          { id: "invoices", label: "Invoices", content: () => <Invoices /> },
          { id: "corrections", label: "Corrections", content: () => <Corrections /> },
          ...(may("exports:read") ? [{ id: "exports", label: "Exports", content: () => <Exports /> }] : []),
          ...(bound ? [] : [{ id: "margins", label: "Margins", content: () => <Margins /> }]),
        ]}
      />
    </>
  );
}
