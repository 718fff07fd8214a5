// Billing: periods, invoices, corrections, exports and margins.
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
        note="A month is open until you close it permanently, which creates its numbered invoice. A correction counts in its month while that month is open, or else in the current month."
      >
        <ReconcileBadge />
      </PageHead>
      <Tabs
        label="Billing sections"
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
