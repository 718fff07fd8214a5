// One batch: its progress, cost so far, errors by code, files, and its cancellation.
import { useState } from "react";
import { api, useGet, useMay, useSession, useWrite } from "../../api";
import {
  type Column,
  ConfirmDialog,
  Count,
  DataTable,
  EmptyState,
  Facts,
  Id,
  Link,
  Loaded,
  Money,
  PageHead,
  Section,
  Time,
  count,
  toast,
  useParam,
  wholeList,
} from "../../kit";
import {
  BATCH_POLL_MS,
  type Batch,
  BatchProgress,
  BatchStatus,
  failedLines,
  hasEnded,
  isLate,
  rateText,
} from "../parts/batches";
import { FileDownload } from "../parts/files";
import { KeyName, TenantName } from "../parts/names";

const PATH = "/v1/admin/batches/{batch_id}";

export default function BatchPage() {
  const batch_id = useParam("batch");
  const found = useGet(PATH, { path: { batch_id } });
  const runs = found.data !== undefined && !hasEnded(found.data);
  useGet(PATH, { path: { batch_id } }, { enabled: runs, ...(runs ? { everyMs: BATCH_POLL_MS } : {}) });
  return (
    <>
      <PageHead
        title="Batch"
        trail={<Link to="/batches">Batches</Link>}
        note={
          <>
            <Id value={batch_id} /> {found.data !== undefined && <BatchStatus of={found.data} />}
          </>
        }
      >
        {found.data !== undefined && <Cancel batch={found.data} />}
      </PageHead>
      <Loaded of={found} lines={10}>
        {(batch) => <Details batch={batch} />}
      </Loaded>
    </>
  );
}

function Cancel({ batch }: { batch: Batch }) {
  const may = useMay()("batches:write");
  const [open, setOpen] = useState(false);
  const cancel = useWrite(
    () => api.post("/v1/admin/batches/{batch_id}/cancel", { path: { batch_id: batch.id } }),
    ["/v1/admin/batches", PATH, "/v1/admin/audit_log"],
  );
  if (!may || (batch.status !== "validating" && batch.status !== "in_progress")) return null;
  return (
    <>
      <button type="button" className="button" onClick={() => setOpen(true)}>
        Cancel the batch
      </button>
      <ConfirmDialog
        open={open}
        onClose={() => setOpen(false)}
        title="Cancel this batch?"
        decline="Keep it running"
        verb="Cancel the batch"
        action={async () => {
          await cancel.mutateAsync(undefined);
          toast("The batch is being cancelled.");
        }}
      >
        Lines that run now are aborted and not billed. The outputs so far remain, and the other lines get an error.
      </ConfirmDialog>
    </>
  );
}

function Details({ batch }: { batch: Batch }) {
  const operator = useSession().tenant === null;
  const requests = useMay()("requests:read");
  const ended = hasEnded(batch);
  return (
    <>
      <Section title="Progress">
        <Facts
          facts={[
            ["Lines", <BatchProgress of={batch} wide />],
            ["Succeeded", <Count value={batch.succeeded} />],
            ["Failed", <Count value={failedLines(batch)} />],
            ...(ended ? ([["Not run", <Count value={batch.unrun ?? 0} />]] as const) : unendedFacts(batch)),
            ["Deadline", <Time at={batch.deadline_at} absolute detail="minute" />],
          ]}
        />
      </Section>
      <Section title={ended ? "Cost" : "Cost so far"}>
        <Facts
          facts={[
            ["Cost", <Money picos={batch.cost_picos} currency={batch.currency} />],
            [
              "Input tokens",
              <>
                <Count value={batch.prompt_tokens} />{" "}
                <span className="faint">{count(batch.cached_tokens)} from the cache</span>
              </>,
            ],
            ["Output tokens", <Count value={batch.completion_tokens} />],
            ...(requests
              ? [
                  [
                    "Requests",
                    <Link to="/requests" query={{ batch: batch.id }}>
                      View its settled lines
                    </Link>,
                  ] as const,
                ]
              : []),
          ]}
        />
      </Section>
      <Section title="Errors">
        <Errors batch={batch} />
      </Section>
      <Section title="Batch">
        <Facts
          facts={[
            ["Tenant", <TenantName id={batch.tenant_id} />],
            ["Key", <KeyName id={batch.key_id} />],
            ["Endpoint", <code>{batch.endpoint}</code>],
            ["API", batch.dialect === "anthropic" ? "Anthropic's Message Batches" : "OpenAI's Batches"],
            ["Completion window", batch.completion_window],
            ["Created", <Time at={batch.created_at} absolute />],
            ["First line began", <Moment at={batch.in_progress_at} />],
            ["Cancellation requested", <Moment at={batch.cancelling_at} />],
            ["Ended", <Moment at={batch.ended_at} />],
            ["Input file", <FileOf batch={batch} id={batch.input_file_id} name="input" />],
            ["Output file", <FileOf batch={batch} id={batch.output_file_id} name="output" />],
            ["Error file", <FileOf batch={batch} id={batch.error_file_id} name="error" />],
            ...(batch.metadata === null ? [] : [["Metadata", <Metadata of={batch.metadata} />] as const]),
          ]}
        />
        {operator && <p className="note">Only the tenant's own people and keys can read the contents of its files.</p>}
      </Section>
    </>
  );
}

function unendedFacts(batch: Batch) {
  return [
    ["Left", <Count value={batch.lines - batch.succeeded - batch.failed} />],
    ["Rate", <span className="num">{rateText(batch)}</span>],
    [
      "Expected end",
      batch.expected_end_at === null ? (
        "–"
      ) : (
        <>
          <Time at={batch.expected_end_at} absolute detail="minute" />
          {isLate(batch) && " – after the deadline"}
        </>
      ),
    ],
  ] as const;
}

/** What the batch's client attached to it; the API shows it only to the tenant's own people. */
function Metadata({ of: metadata }: { of: Readonly<Record<string, string>> }) {
  return Object.entries(metadata).map(([name, value]) => (
    <div key={name}>
      <code>{name}</code>: {value}
    </div>
  ));
}

function Moment({ at }: { at: number | null }) {
  return at === null ? <>–</> : <Time at={at} absolute />;
}

function FileOf({ batch, id, name }: { batch: Batch; id: string | null; name: string }) {
  if (id === null) return <>none</>;
  // The requests of a message batch were in the body of its creation.
  if (batch.dialect === "anthropic" && name === "input") return <>none</>;
  const filename = batch.filenames[id];
  if (filename === undefined) {
    return (
      <>
        <Id value={id} /> <span className="faint">deleted or expired</span>
      </>
    );
  }
  return (
    <span className="row">
      <Link to="/files" query={{ search: id }}>
        {filename}
      </Link>
      {!batch.deleted && <FileDownload id={id} tenant={batch.tenant_id} name={`${batch.id}_${name}.jsonl`} />}
    </span>
  );
}

interface ErrorRow {
  code: string;
  lines: number;
}
type ProblemRow = Batch["problems"][number];

const ERRORS: readonly Column<ErrorRow>[] = [
  { id: "code", header: "Code", cell: (one) => <code>{one.code}</code>, csv: (one) => one.code },
  { id: "lines", header: "Lines", end: true, cell: (one) => <Count value={one.lines} />, csv: (one) => one.lines },
];
const PROBLEMS: readonly Column<ProblemRow>[] = [
  { id: "line", header: "Line of the input", end: true, cell: (one) => (one.line === null ? "–" : count(one.line)) },
  { id: "code", header: "Code", cell: (one) => <code>{one.code}</code> },
  {
    id: "field",
    header: "Field",
    cell: (one) => (one.param === null ? <span className="faint">–</span> : <code>{one.param}</code>),
  },
  { id: "message", header: "Message", cell: (one) => one.message ?? "Only the tenant can read it" },
];

function Errors({ batch }: { batch: Batch }) {
  const errors = Object.entries(batch.errors).map(([code, lines]) => ({ code, lines }));
  errors.sort((one, other) => other.lines - one.lines);
  return (
    <>
      {batch.problems.length > 0 && (
        <DataTable
          label="Why the batch failed or ended early"
          list={wholeList(batch.problems)}
          columns={PROBLEMS}
          id={(one) => `${one.line} ${one.code}`}
          empty={null}
        />
      )}
      {(errors.length > 0 || batch.problems.length === 0) && (
        <DataTable
          label="Lines with an error, by code"
          list={wholeList(errors)}
          columns={ERRORS}
          id={(one) => one.code}
          empty={<EmptyState title="No line has an error" />}
        />
      )}
    </>
  );
}
