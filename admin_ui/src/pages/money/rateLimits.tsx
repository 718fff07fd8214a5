// Rate limits of tenants and keys, and quotas of tenants; the defaults are in laneway.toml.
import { type ReactNode, useState } from "react";
import { type AnswerOf, type RowOf, api, useGet, useList, useMay, useWrite } from "../../api";
import {
  type Column,
  ConfirmDialog,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  LookupFilter,
  TenantLookup,
  count,
  toast,
  useView,
} from "../../kit";
import { LIMITS, LimitsForm } from "./budgetForms";
import { ScopeOf } from "./budgetParts";

type Limits = RowOf<"/v1/admin/limits">;

type Meter = "requests_per_minute" | "tokens_per_minute" | "concurrency";
type Defaults = AnswerOf<"/v1/admin/limits/defaults">;

/** The limit of a row; the configured limit where the row has none. */
function LimitOf({ of, meter, defaults }: { of: Limits; meter: Meter; defaults: Defaults | undefined }) {
  if (of[meter] !== null) return <Count value={of[meter]} />;
  const configured = defaults?.[of.scope === "key" ? "key" : "tenant"][meter];
  return (
    <span className="faint">
      {configured === undefined ? "default" : <Count value={configured} />} {configured !== undefined && "(default)"}
    </span>
  );
}

type Quota = "files" | "total_file_bytes" | "batches" | "enqueued_tokens";
const QUOTAS: readonly { id: Quota; header: string }[] = [
  { id: "files", header: "Files" },
  { id: "total_file_bytes", header: "Bytes of files" },
  { id: "batches", header: "Unended batches" },
  { id: "enqueued_tokens", header: "Enqueued tokens" },
];

/** The quota of a tenant, or the configured quota; a key has none. */
function QuotaOf({ of, quota, defaults }: { of: Limits; quota: Quota; defaults: Defaults | undefined }) {
  if (of.scope === "key") return <span className="faint">–</span>;
  if (of[quota] !== null) return <Count value={of[quota]} />;
  return (
    <span className="faint">
      {defaults === undefined ? (
        "default"
      ) : (
        <>
          <Count value={defaults.quotas[quota]} /> (default)
        </>
      )}
    </span>
  );
}

/** The configured limits as text: of each key, and of each tenant. */
function DefaultsSaid({ of: defaults }: { of: Defaults }) {
  const said = (one: Defaults["key"]) =>
    `${count(one.requests_per_minute)} requests and ${count(one.tokens_per_minute)} tokens per minute, ${count(one.concurrency)} concurrent requests`;
  return (
    <p className="note table-note">
      Without limits of its own, a key has {said(defaults.key)}; a tenant, over all its keys, has{" "}
      {said(defaults.tenant)}, at most {count(defaults.quotas.files)} files of {count(defaults.quotas.total_file_bytes)}{" "}
      bytes together, and {count(defaults.quotas.batches)} batches that have not ended, with{" "}
      {count(defaults.quotas.enqueued_tokens)} enqueued tokens. laneway.toml sets them: [limits], [tenant_limits],
      [files] and [batches].
    </p>
  );
}

/** Limits of all tenants; with `tenant`, of it and its keys; with `key_id`, of this key. `action`: in place of the
 * button that sets limits. */
export function RateLimits({ tenant, key_id, action }: { tenant?: string; key_id?: string; action?: ReactNode }) {
  const view = useView({ tenant: "" });
  const all = useList("/v1/admin/limits", { query: tenant === undefined ? view.values : { tenant } }, { limit: 500 });
  const list = key_id === undefined ? all : { ...all, rows: all.rows.filter((one) => one.subject_id === key_id) };
  const may = useMay()("limits:write");
  const defaults = useGet("/v1/admin/limits/defaults").data;
  const [edited, setEdited] = useState<Limits | "new" | null>(null);
  const [removed, setRemoved] = useState<Limits | null>(null);
  const remove = useWrite(
    (limits_id: string) => api.delete("/v1/admin/limits/{limits_id}", { path: { limits_id } }),
    LIMITS,
  );
  const columns: Column<Limits>[] = [
    {
      id: "of",
      header: "Scope",
      cell: (limits) => <ScopeOf of={{ ...limits, scope_id: limits.subject_id }} />,
      csv: (limits) => limits.subject_id,
    },
    {
      id: "requests",
      header: "Requests per minute",
      end: true,
      cell: (limits) => <LimitOf of={limits} meter="requests_per_minute" defaults={defaults} />,
      csv: (limits) => limits.requests_per_minute,
    },
    {
      id: "tokens",
      header: "Tokens per minute",
      end: true,
      cell: (limits) => <LimitOf of={limits} meter="tokens_per_minute" defaults={defaults} />,
      csv: (limits) => limits.tokens_per_minute,
    },
    {
      id: "concurrency",
      header: "Concurrent requests",
      end: true,
      cell: (limits) => <LimitOf of={limits} meter="concurrency" defaults={defaults} />,
      csv: (limits) => limits.concurrency,
    },
    ...QUOTAS.map(({ id, header }): Column<Limits> => ({
      id,
      header,
      end: true,
      wide: true,
      cell: (limits) => <QuotaOf of={limits} quota={id} defaults={defaults} />,
      csv: (limits) => limits[id],
    })),
  ];
  if (may) {
    columns.push({
      id: "do",
      header: "Change",
      end: true,
      cell: (limits) => (
        <span className="row-actions">
          <button
            type="button"
            className="button button-quiet"
            aria-label={`Edit the limits of ${limits.subject_id}`}
            onClick={() => setEdited(limits)}
          >
            Edit
          </button>
          <button
            type="button"
            className="button button-quiet"
            aria-label={`Remove the limits of ${limits.subject_id}`}
            onClick={() => setRemoved(limits)}
          >
            Remove
          </button>
        </span>
      ),
    });
  }
  const close = () => setEdited(null);
  return (
    <>
      {defaults !== undefined && <DefaultsSaid of={defaults} />}
      <DataTable
        label="Limits"
        list={list}
        columns={columns}
        id={(limits) => limits.id}
        view={view}
        csv
        filters={
          <>
            {tenant === undefined && (
              <LookupFilter label="Tenant">
                <TenantLookup value={view.values.tenant} onChange={(slug) => view.set({ tenant: slug })} />
              </LookupFilter>
            )}
            {action}
            {may && action === undefined && (
              <button type="button" className="button button-main" onClick={() => setEdited("new")}>
                Set limits
              </button>
            )}
          </>
        }
        empty={
          <EmptyState title="No limits set">
            <p>The configured limits apply.</p>
          </EmptyState>
        }
      />
      <Dialog
        open={edited !== null}
        onClose={close}
        title={edited === "new" ? "Limits of a tenant or a key" : "Edit the limits"}
        note={
          edited !== null &&
          edited !== "new" && (
            <>
              Limits of <ScopeOf of={{ ...edited, scope_id: edited.subject_id }} />.
            </>
          )
        }
        keep
      >
        {edited !== null && (
          <LimitsForm
            {...(edited === "new" ? {} : { of: edited })}
            tenant={tenant ?? view.values.tenant}
            onDone={close}
          />
        )}
      </Dialog>
      <ConfirmDialog
        open={removed !== null}
        onClose={() => setRemoved(null)}
        title="Remove these limits?"
        verb="Remove"
        action={async () => {
          if (removed === null) return;
          await remove.mutateAsync(removed.id);
          toast("The configured limits apply again.");
        }}
      >
        {removed !== null && (
          <>
            The configured limits apply again to <ScopeOf of={{ ...removed, scope_id: removed.subject_id }} />, within a
            second.
          </>
        )}
      </ConfirmDialog>
    </>
  );
}
