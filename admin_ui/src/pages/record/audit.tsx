// The audit log: all administrative writes.
import { PageHead } from "../../kit";
import { AuditTable } from "../parts/auditTable";

export default function Audit() {
  return (
    <>
      <PageHead
        title="Audit log"
        note="Every administrative write, newest first: who changed what, with the values before and after. Days are in UTC."
      />
      <AuditTable />
    </>
  );
}
