// The audit log: all administrative writes.
import { PageHead } from "../../kit";
import { AuditTable } from "../parts/auditTable";

export default function Audit() {
  return (
    <>
      <PageHead
        title="Audit log"
        note="Every administrative write and every refused sign-in, newest first, with the actor and the values before and after. Days are in UTC."
      />
      <AuditTable />
    </>
  );
}
