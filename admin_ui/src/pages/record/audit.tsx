// The audit log: every administrative write there was.
import { PageHead } from "../../kit";
import { AuditTable } from "../parts/auditTable";

export default function Audit() {
  return (
    <>
      <PageHead
        title="Audit log"
        note="Every administrative write, the newest first: who, what, from what to what. Days are those of UTC."
      />
      <AuditTable />
    </>
  );
}
