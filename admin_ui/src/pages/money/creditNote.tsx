// A credit note: the document of a credit, with a print layout.
import { type AnswerOf, useGet } from "../../api";
import { EmptyState, Facts, Id, Link, Loaded, PageHead, Time, useParam } from "../../kit";
import { TenantName } from "../parts/names";
import "./billing.css";
import { Amounts, Parties } from "./documentParts";

type Correction = AnswerOf<"/v1/admin/corrections/{correction_id}">;

export default function CreditNotePage() {
  const correction_id = useParam("correction");
  const found = useGet("/v1/admin/corrections/{correction_id}", { path: { correction_id } });
  return (
    <Loaded of={found} lines={6}>
      {(correction) => <CreditNote correction={correction} />}
    </Loaded>
  );
}

function CreditNote({ correction }: { correction: Correction }) {
  const { document } = correction;
  return (
    <div className="invoice">
      <PageHead
        title={document === null ? "Correction" : `Credit note ${document.number}`}
        trail={
          <Link to="/billing" query={{ tab: "corrections" }}>
            Corrections
          </Link>
        }
      >
        <button type="button" className="button" onClick={() => print()}>
          Print
        </button>
      </PageHead>
      {document === null ? (
        <EmptyState title="No credit note">
          <p>A charge, and a correction of a request, have none.</p>
        </EmptyState>
      ) : (
        <Parties document={document} />
      )}
      <div className="columns">
        <Facts
          facts={[
            ["Correction", <Id value={correction.id} />],
            ["Tenant", <TenantName id={correction.tenant_id} />],
            ["Month", <span className="num">{correction.month}</span>],
            ["Issued", <Time at={correction.created_at} absolute />],
            ["Reason", correction.reason],
          ]}
        />
        {document !== null && <Amounts document={document} label="Credit" />}
      </div>
      <p className="note">
        The credit is a line of the invoice of {correction.month}, before taxes. The taxes of that invoice are computed
        on its total after the credit.
      </p>
    </div>
  );
}
