// Files of batches: a list, and the download of a file, which only the tenant's own people have.
import { useState } from "react";
import { type RowOf, api, fileAddress, useList, useMay, useSession, useWrite } from "../../api";
import {
  type Column,
  ConfirmDialog,
  DataTable,
  EmptyState,
  Link,
  LookupFilter,
  SelectFilter,
  ShortId,
  TenantLookup,
  Time,
  bytes,
  iso,
  toast,
  useView,
} from "../../kit";
import { TenantText } from "./names";

export type StoredFile = RowOf<"/v1/admin/files">;

const PURPOSES: Record<StoredFile["purpose"], string> = { batch: "input", batch_output: "output" };

/** A link that downloads the content; nothing for operators, who cannot read it. */
export function FileDownload({ id, tenant, name }: { id: string; tenant: string; name: string }) {
  const own = useSession().tenant?.id === tenant;
  if (!own) return null;
  return (
    <a
      className="button"
      href={fileAddress("/v1/admin/files/{file_id}/content", { path: { file_id: id } })}
      download={name}
      aria-label={`Download ${name}`}
    >
      Download
    </a>
  );
}

export function FileTable({ of }: { of?: string }) {
  const view = useView({ search: "", sort: "-created_at", purpose: "", tenant: of ?? "" });
  const list = useList("/v1/admin/files", { query: of === undefined ? view.values : { ...view.values, tenant: of } });
  const bound = useSession().tenant !== null;
  const may = useMay()("batches:write");
  const [deleting, setDeleting] = useState<StoredFile | null>(null);
  const remove = useWrite(
    (id: string) => api.delete("/v1/admin/files/{file_id}", { path: { file_id: id } }),
    ["/v1/admin/files", "/v1/admin/audit_log"],
  );
  const tenant: Column<StoredFile> = {
    id: "tenant",
    header: "Tenant",
    cell: (one) => <TenantText id={one.tenant_id} />,
    csv: (one) => one.tenant_id,
  };
  const columns: readonly Column<StoredFile>[] = [
    {
      id: "name",
      header: "Name",
      sort: "filename",
      cell: (one) => <b className="wrap-anywhere">{one.filename}</b>,
      csv: (one) => one.filename,
    },

    ...(bound || of !== undefined ? [] : [tenant]),
    { id: "purpose", header: "Purpose", cell: (one) => PURPOSES[one.purpose], csv: (one) => one.purpose },
    {
      id: "size",
      header: "Size",
      sort: "bytes",
      end: true,
      cell: (one) => <span className="num">{bytes(one.bytes)}</span>,
      csv: (one) => one.bytes,
    },
    {
      id: "created",
      header: "Created",
      sort: "created_at",
      cell: (one) => <Time at={one.created_at} />,
      csv: (one) => iso(one.created_at),
    },
    {
      id: "expires",
      header: "Expires",
      wide: true,
      cell: (one) => <Time at={one.expires_at} absolute detail="minute" />,
      csv: (one) => iso(one.expires_at),
    },
    {
      id: "file",
      header: "File",
      wide: true,
      roomy: true,
      cell: (one) => <ShortId value={one.id} />,
      csv: (one) => one.id,
    },
    {
      id: "batches",
      header: "Batches",
      cell: (one) => (
        <Link to="/batches" query={{ search: one.id }} aria-label={`View batches of ${one.filename}`}>
          View
        </Link>
      ),
    },
    {
      id: "actions",
      header: "Actions",
      end: true,
      cell: (one) => (
        <span className="row">
          <FileDownload id={one.id} tenant={one.tenant_id} name={one.filename} />
          {may && (
            <button
              type="button"
              className="button"
              aria-label={`Delete ${one.filename}`}
              onClick={() => setDeleting(one)}
            >
              Delete
            </button>
          )}
        </span>
      ),
    },
  ];
  return (
    <>
      <DataTable
        label="Files"
        list={list}
        columns={columns}
        id={(one) => one.id}
        view={view}
        search="Name or id"
        csv
        filters={
          <>
            <SelectFilter
              label="Purpose"
              view={view}
              name="purpose"
              options={[
                ["", "Any"],
                ["batch", "input"],
                ["batch_output", "output"],
              ]}
            />
            {!bound && of === undefined && (
              <LookupFilter label="Tenant">
                <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
              </LookupFilter>
            )}
          </>
        }
        empty={
          <EmptyState title="No file">
            <p>Tenants upload the input of a batch to /v1/files. A batch that ends adds its output.</p>
          </EmptyState>
        }
      />
      <ConfirmDialog
        open={deleting !== null}
        onClose={() => setDeleting(null)}
        title="Delete this file?"
        verb="Delete the file"
        action={async () => {
          await remove.mutateAsync(deleting!.id);
          toast("The file is deleted.");
        }}
      >
        The tenant can no longer read {deleting?.filename}. A batch that uses the file is not affected.
      </ConfirmDialog>
    </>
  );
}
