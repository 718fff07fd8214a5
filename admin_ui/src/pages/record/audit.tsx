// The audit log: all administrative writes.
import { PageHead } from "../../kit";
import { AuditTable } from "../parts/auditTable";

export default function Audit() {
  return (
    <>
      <PageHead
        title="Audit log"
        note="Administrative writes and refused sign-ins with an admin key, newest first, with the actor and the values before and after. Days are in UTC."
      />
      <AuditTable />
    </>
  );
}
