// Exports: files of one month for finance, written in the background, each with its SHA-256.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import {
  type AnswerOf,
  ApiError,
  type BodyOf,
  type RowOf,
  api,
  fileAddress,
  useGet,
  useList,
  useMay,
  useSession,
  useWrite,
} from "../../api";
import {
  Badge,
  CodeBlock,
  type Column,
  ConfirmDialog,
  Copy,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Form,
  Id,
  Link,
  Loaded,
  LookupField,
  LookupFilter,
  Money,
  SelectField,
  TenantLookup,
  Time,
  bytes,
  exact,
  iso,
  picosOf,
  place,
  sum,
  toast,
  useForm,
  useNow,
  useView,
} from "../../kit";
import { monthsBefore } from "../parts/months";
import { TenantText } from "../parts/names";

type Export = RowOf<"/v1/admin/exports">;
type Body = BodyOf<"/v1/admin/exports", "post">;

/** The manifest of a file; amounts are decimals, as strings or numbers. */
interface Manifest {
  sha256: string;
  rows: number;
  provisional: boolean;
  billed: Record<string, string | number>;
  tokens: Record<string, number | bigint>;
  invoices: Record<string, { total: string | number; currency: string }>;
  ledger: { usage_rows: number; corrections: number };
}

const CHANGED = ["/v1/admin/exports", "/v1/admin/audit_log"];
const TONES = {
  queued: "accent",
  running: "accent",
  done: "good",
  failed: "bad",
  cancelled: "plain",
  removed: "plain",
} as const;
const BUSY_MS = 1_000;

export function Exports() {
  const view = useView({ tenant: "", open: "" });
  const [busy, setBusy] = useState(false);
  const list = useList(
    "/v1/admin/exports",
    { query: { tenant: view.values.tenant } },
    busy ? { everyMs: BUSY_MS } : {},
  );
  const moving = list.rows.some((one) => one.state === "queued" || one.state === "running");
  if (moving !== busy) setBusy(moving);
  const may = useMay()("exports:write");
  const bound = useSession().tenant !== null;
  const [making, setMaking] = useState(false);
  const [ending, setEnding] = useState<Export | null>(null);
  const end = useWrite(
    (id: string) => api.delete("/v1/admin/exports/{export_id}", { path: { export_id: id } }),
    CHANGED,
  );
  const make = may && (
    <button type="button" className="button button-main" onClick={() => setMaking(true)}>
      New export
    </button>
  );
  const columns: Column<Export>[] = [
    {
      id: "of",
      header: "Tenant",
      cell: (one) => (one.tenant_id === null ? <b>all tenants</b> : <TenantText id={one.tenant_id} />),
      csv: (one) => one.tenant_id,
    },
    { id: "month", header: "Month", cell: (one) => <span className="num">{one.month}</span>, csv: (one) => one.month },
    {
      id: "kind",
      header: "Format",
      cell: (one) => `${one.kind === "focus" ? "FOCUS" : "CloudEvents"}, ${one.format}`,
      csv: (one) => `${one.kind} ${one.format}`,
    },
    { id: "state", header: "State", cell: (one) => <State of={one} />, csv: (one) => one.state },
    { id: "rows", header: "Rows", end: true, cell: (one) => <Count value={one.rows} />, csv: (one) => one.rows },
    {
      id: "size",
      header: "Size",
      end: true,
      wide: true,
      cell: (one) => <span className="num">{one.size_bytes === null ? "–" : bytes(one.size_bytes)}</span>,
      csv: (one) => one.size_bytes,
    },
    { id: "made", header: "Requested", cell: (one) => <Time at={one.created_at} />, csv: (one) => iso(one.created_at) },
    {
      id: "file",
      header: "File",
      end: true,
      cell: (one) =>
        one.state === "done" ? (
          <a
            className="button"
            href={fileAddress("/v1/admin/exports/{export_id}/file", { path: { export_id: one.id } })}
            download={one.file ?? ""}
            aria-label={`Download ${one.file}`}
          >
            Download
          </a>
        ) : may && (one.state === "queued" || one.state === "running") ? (
          <button type="button" className="button" onClick={() => setEnding(one)}>
            Cancel
          </button>
        ) : null,
    },
  ];
  return (
    <>
      <DataTable
        label="Exports"
        list={list}
        columns={columns}
        id={(one) => one.id}
        view={view}
        csv
        detail={(one) => <More of={one} onEnd={may ? () => setEnding(one) : undefined} />}
        filters={
          <>
            {!bound && (
              <LookupFilter label="Tenant">
                <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
              </LookupFilter>
            )}
            {make}
          </>
        }
        empty={
          <EmptyState title="No export yet">
            <p>An export is a file of one month's usage, in FOCUS 1.2 or as CloudEvents, with control totals.</p>
            {make}
          </EmptyState>
        }
      />
      <Dialog
        open={making}
        onClose={() => setMaking(false)}
        title="New export"
        keep
        note="A closed month always gives the same file, byte for byte; an open month gives the usage so far."
      >
        <NewExport
          onDone={(id) => {
            setMaking(false);
            if (id !== null) view.set({ open: id });
          }}
        />
      </Dialog>
      <ConfirmDialog
        open={ending !== null}
        onClose={() => setEnding(null)}
        title={ending?.state === "done" ? "Delete the file?" : "Cancel this export?"}
        verb={ending?.state === "done" ? "Delete the file" : "Cancel the export"}
        action={() => end.mutateAsync(ending!.id)}
      >
        {ending?.state === "done"
          ? "The file is deleted from the disk. An export of a closed month can be repeated and gives the same file."
          : "The rows written so far are discarded."}
      </ConfirmDialog>
    </>
  );
}

function State({ of }: { of: Export }) {
  if (of.state !== "running") return <Badge tone={TONES[of.state]}>{of.state}</Badge>;
  const share = Math.round(of.progress * 100);
  return (
    <span className="progress">
      <svg
        viewBox="0 0 100 6"
        preserveAspectRatio="none"
        role="progressbar"
        aria-label="Export progress"
        aria-valuenow={share}
        aria-valuemin={0}
        aria-valuemax={100}
      >
        <rect className="meter-all" width="100" height="6" />
        <rect className="progress-done" width={share} height="6" />
      </svg>
      <span className="num">{share} %</span>
    </span>
  );
}

function More({ of, onEnd }: { of: Export; onEnd: (() => void) | undefined }) {
  if (of.state === "failed")
    return (
      <div className="problem">
        <p>{of.error ?? "It failed without an error message."}</p>
        <p className="faint">after {of.attempts} attempts</p>
      </div>
    );
  if (of.state !== "done" || of.sha256 === null)
    return <p className="note">It has no file{of.state === "removed" ? " any more" : " yet"}.</p>;
  return (
    <div className="stack">
      <Facts
        facts={[
          ["File", <code>{of.file}</code>],
          [
            "SHA-256",
            <span className="hash">
              <code>{of.sha256}</code>
              <Copy text={of.sha256} label="Copy the hash" />
            </span>,
          ],
          ["Host", <code>{of.host}</code>],
          ["Export", <Id value={of.id} />],
        ]}
      />
      <CodeBlock label="Command that checks the file" text={`echo '${of.sha256}  ${of.file}' | sha256sum -c`} />
      <Totals of={of} />
      <div className="row">
        <a
          className="button"
          href={fileAddress("/v1/admin/exports/{export_id}/manifest", { path: { export_id: of.id } })}
          download={`${of.file}.manifest.json`}
        >
          Manifest
        </a>
        {onEnd !== undefined && (
          <button type="button" className="button button-quiet" onClick={onEnd}>
            Delete the file
          </button>
        )}
      </div>
    </div>
  );
}

/** The control totals of the manifest, compared with the invoices. */
function Totals({ of }: { of: Export }) {
  const found = useQuery<Manifest, ApiError>({
    queryKey: ["/v1/admin/exports/{export_id}/manifest", of.id, of.sha256],
    queryFn: ({ signal }) =>
      api.get("/v1/admin/exports/{export_id}/manifest", {
        path: { export_id: of.id },
        signal,
      }) as Promise<unknown> as Promise<Manifest>,
    staleTime: Infinity,
  });
  return (
    <Loaded of={found} lines={3}>
      {(manifest) => {
        const invoices = Object.entries(manifest.invoices);
        return (
          <div className="stack">
            {manifest.provisional && (
              <p className="note">
                <Badge tone="warn">provisional</Badge> It has an open month: a later export may contain more.
              </p>
            )}
            {manifest.sha256 !== of.sha256 && (
              <p className="problem">The manifest has a different hash: {manifest.sha256}</p>
            )}
            <Facts
              facts={[
                [
                  "Rows",
                  <>
                    <Count value={manifest.rows} />{" "}
                    <span className="faint">
                      from <Count value={manifest.ledger.usage_rows} /> requests and{" "}
                      <Count value={manifest.ledger.corrections} /> corrections
                    </span>
                  </>,
                ],
                ...Object.entries(manifest.billed).map(
                  ([currency, amount]) =>
                    [
                      `Billed, ${currency}`,
                      <Billed currency={currency} amount={amount} invoices={invoices} />,
                    ] as const,
                ),
              ]}
            />
            {invoices.length > 0 && (
              <div className="table-scroll" tabIndex={0} role="region" aria-label="The file compared with its invoices">
                <table className="table table-small">
                  <caption className="sr-only">The file compared with its invoices</caption>
                  <thead>
                    <tr>
                      <th scope="col">Invoice</th>
                      <th scope="col" className="end">
                        In this file
                      </th>
                      <th scope="col" className="end">
                        On the invoice
                      </th>
                      <th scope="col">Result</th>
                    </tr>
                  </thead>
                  <tbody>
                    {invoices.map(([id, one]) => (
                      <Beside key={id} id={id} total={one.total} currency={one.currency} />
                    ))}
                  </tbody>
                </table>
              </div>
            )}
          </div>
        );
      }}
    </Loaded>
  );
}

function Billed({
  currency,
  amount,
  invoices,
}: {
  currency: string;
  amount: string | number;
  invoices: [string, { total: string | number; currency: string }][];
}) {
  const picos = picosOf(String(amount));
  const own = invoices.filter(([, one]) => one.currency === currency).map(([, one]) => picosOf(String(one.total)));
  if (picos === null) return <span className="num">{String(amount)}</span>;
  const all = own.every((one) => one !== null) ? sum(own) : null;
  return (
    <>
      <Money picos={picos} currency={currency} />
      {own.length > 0 && all !== null && (
        <>
          {" "}
          <Badge tone={all === picos ? "good" : "warn"}>
            {all === picos ? "equal to its invoices" : "not fully invoiced"}
          </Badge>
        </>
      )}
    </>
  );
}

function Beside({ id, total, currency }: { id: string; total: string | number; currency: string }) {
  const invoice = useGet("/v1/admin/invoices/{invoice_id}", { path: { invoice_id: id } });
  const picos = picosOf(String(total));
  const data: AnswerOf<"/v1/admin/invoices/{invoice_id}"> | undefined = invoice.data;
  const same = data !== undefined && picos !== null && exact(data.total_picos) === picos;
  return (
    <tr>
      <td>
        <Link to={place("/billing/invoices", id)}>{id}</Link>
      </td>
      <td className="end num">{picos === null ? String(total) : <Money picos={picos} currency={currency} />}</td>
      <td className="end num">
        {data === undefined ? "…" : <Money picos={data.total_picos} currency={data.currency} />}
      </td>
      <td>{data === undefined ? null : <Badge tone={same ? "good" : "bad"}>{same ? "equal" : "not equal"}</Badge>}</td>
    </tr>
  );
}

function NewExport({ onDone }: { onDone: (id: string | null) => void }) {
  const months = monthsBefore(useNow());
  const bound = useSession().tenant !== null;
  const form = useForm({ what: "focus csv", month: months[1] ?? "", tenant: "" });
  const make = useWrite((body: Body) => api.post("/v1/admin/exports", { body }), CHANGED);
  return (
    <Form
      form={form}
      verb="Create export"
      onCancel={() => onDone(null)}
      save={async (values) => {
        const [kind, format] = values.what.split(" ") as [Body["kind"], Body["format"]];
        const made = await make.mutateAsync({ month: values.month, kind, format, tenant: values.tenant || null });
        toast("The export is created. Its row shows when the file can be downloaded.");
        onDone(made.id);
      }}
    >
      <div className="field-row">
        <SelectField form={form} name="month" label="Month" options={months} />
        <SelectField
          form={form}
          name="what"
          label="Format"
          options={[
            ["focus csv", "FOCUS 1.2, CSV"],
            ["focus jsonl", "FOCUS 1.2, JSON lines"],
            ["focus parquet", "FOCUS 1.2, Parquet"],
            ["events jsonl", "CloudEvents, JSON lines"],
          ]}
        />
      </div>
      {!bound && (
        <LookupField
          form={form}
          name="tenant"
          label="Tenant"
          optional
          hint="Blank: all tenants, each in its own time zone."
          control={(props) => <TenantLookup {...props} placeholder="All tenants" />}
        />
      )}
    </Form>
  );
}
