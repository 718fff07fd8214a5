// Batches: requests that tenants submit in a file, with the progress of each batch.
import { useMay, useSession } from "../../api";
import { DataTable, EmptyState, LookupFilter, PageHead, SelectFilter, TenantLookup, place, useView } from "../../kit";
import { BATCH_STATUSES, batchColumns, useBatches } from "../parts/batches";

export default function Batches() {
  return (
    <>
      <PageHead
        title="Batches"
        note="Requests that tenants submit in a file, or in the body of a message batch. Their lines run at the batch tier while the engines have idle capacity."
      />
      <BatchTable />
    </>
  );
}

function BatchTable() {
  const view = useView({ search: "", sort: "-created_at", status: "", tenant: "" });
  const bound = useSession().tenant !== null;
  const list = useBatches(view.values);
  const keys = useMay()("keys:read");
  return (
    <DataTable
      label="Batches"
      list={list}
      columns={batchColumns(!bound)}
      id={(one) => one.id}
      to={(one) => place("/batches", one.id)}
      view={view}
      search="Batch or input file"
      csv
      filters={
        <>
          <SelectFilter
            label="Status"
            view={view}
            name="status"
            options={[["", "Any"], ...BATCH_STATUSES.map((status) => [status, status.replace("_", " ")] as const)]}
          />
          {!bound && (
            <LookupFilter label="Tenant">
              <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
            </LookupFilter>
          )}
        </>
      }
      empty={
        <EmptyState title="No batch yet">
          <p>
            A batch is created with {keys ? "a tenant's key" : "a key"} at <code>/v1/batches</code> or{" "}
            <code>/v1/messages/batches</code>, or with <code>laneway batches submit</code>.
          </p>
        </EmptyState>
      }
    />
  );
}
