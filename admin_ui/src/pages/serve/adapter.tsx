// One adapter: what is served under its name, where it is, its use, and its versions, to promote, roll back and remove.
import { useMemo, useState } from "react";
import { type AnswerOf, type RowOf, api, useGet, useList, useMay, useWrite } from "../../api";
import {
  Badge,
  Chart,
  type Column,
  ConfirmDialog,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Id,
  Link,
  Loaded,
  PageHead,
  Section,
  ShortId,
  Tabs,
  Time,
  brief,
  bytes,
  count,
  iso,
  place,
  toast,
  useGo,
  useParam,
} from "../../kit";
import { AdapterForm } from "./adapterForm";
import { useAdapterUse } from "./adapterUse";
import { Owner, Shared, Where } from "./adapters";
import { AuditTable } from "../parts/auditTable";

type Adapter = AnswerOf<"/v1/admin/adapters/{adapter}">;
type Version = RowOf<"/v1/admin/adapters/{adapter}/versions">;
export const ADAPTERS = ["/v1/admin/adapters", "/v1/admin/models", "/v1/admin/audit_log"];

export default function AdapterPage() {
  const adapter = useParam("adapter");
  const found = useGet("/v1/admin/adapters/{adapter}", { path: { adapter } });
  return (
    <Loaded of={found} lines={8}>
      {(one) => <Whole of={one} />}
    </Loaded>
  );
}

type Open = "edit" | "rollback" | "pin" | "remove" | null;

function Whole({ of: adapter }: { of: Adapter }) {
  const may = useMay();
  const go = useGo();
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const path = { adapter: adapter.id };
  const rollBack = useWrite(() => api.post("/v1/admin/adapters/{adapter}/rollback", { path }), ADAPTERS);
  const pin = useWrite(
    (pinned: boolean) => api.patch("/v1/admin/adapters/{adapter}", { path, body: { pinned } }),
    ADAPTERS,
  );
  const remove = useWrite(() => api.delete("/v1/admin/adapters/{adapter}", { path }), ADAPTERS, "none");
  const write = may("adapters:write");
  return (
    <>
      <PageHead
        title={adapter.name}
        trail={<Link to="/adapters">Adapters</Link>}
        note={
          <>
            version {adapter.version} is served {adapter.pinned && <Badge tone="accent">pinned</Badge>}{" "}
            {!adapter.active && <Badge tone="bad">removed</Badge>}
          </>
        }
      >
        {write && adapter.active && (
          <>
            <button type="button" className="button" onClick={() => setOpen("remove")}>
              Remove
            </button>
            <button type="button" className="button" onClick={() => setOpen("pin")}>
              {adapter.pinned ? "Unpin" : "Pin"}
            </button>
            <button type="button" className="button" onClick={() => setOpen("edit")}>
              Share
            </button>
            <button type="button" className="button" onClick={() => setOpen("rollback")}>
              Roll back
            </button>
            <Link to="/adapters/upload" query={{ of: adapter.id }} className="button button-main">
              Upload a version
            </Link>
          </>
        )}
      </PageHead>
      <Tabs
        label={`Of ${adapter.name}`}
        tabs={[
          { id: "about", label: "About", content: () => <About of={adapter} /> },
          { id: "versions", label: "Versions", content: () => <Versions of={adapter} /> },
          ...(may("audit:read")
            ? [{ id: "changes", label: "Changes", content: () => <AuditTable object={adapter.id} /> }]
            : []),
        ]}
      />
      <Dialog open={open === "edit"} onClose={close} title={`Who may call ${adapter.name}`} keep>
        <AdapterForm of={adapter} onDone={close} />
      </Dialog>
      <ConfirmDialog
        open={open === "rollback"}
        onClose={close}
        title={`Roll ${adapter.name} back?`}
        verb="Roll back"
        tone="plain"
        deed={async () => toast(`Version ${(await rollBack.mutateAsync()).version} is served.`)}
      >
        The version that version {adapter.version} replaced is served again, to every request that comes from now on.
        Those in flight end on what they began with.
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "pin"}
        onClose={close}
        title={adapter.pinned ? `Unpin ${adapter.name}?` : `Pin ${adapter.name}?`}
        verb={adapter.pinned ? "Unpin" : "Pin"}
        tone="plain"
        deed={() => pin.mutateAsync(!adapter.pinned)}
      >
        {adapter.pinned
          ? "It makes room for others again when it is not called."
          : "It stays in the engine's memory while it is not called, which others cannot use meanwhile."}
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "remove"}
        onClose={close}
        title={`Remove ${adapter.name}?`}
        verb="Remove"
        name={adapter.name}
        deed={async () => {
          await remove.mutateAsync();
          toast(`${adapter.name} is removed.`);
          go("/adapters");
        }}
      >
        Nobody may call it from now on. What runs on it ends as it began; then its files go.
      </ConfirmDialog>
    </>
  );
}

function About({ of: adapter }: { of: Adapter }) {
  const use = useAdapterUse(adapter.id, 30);
  const series = useMemo(
    () => (use === null ? null : [{ name: "Tokens", values: use.of.get(adapter.id) ?? use.at.map(() => 0) }]),
    [use, adapter.id],
  );
  return (
    <>
      <Facts
        facts={[
          ["Id", <Id value={adapter.id} />],
          ["Owner", <Owner of={adapter} />],
          ["May call it", <Shared of={adapter} />],
          ["Base model", <Link to={place("/models", adapter.base_model)}>{adapter.base_model}</Link>],
          ["Served content", <ShortId value={adapter.digest} />],
          ["Where", <Where digest={adapter.digest} />],
          ["Notes", adapter.notes ?? <span className="faint">none</span>],
          ["Created", <Time at={adapter.created_at} absolute />],
        ]}
      />
      {use !== null && series !== null && (
        <Section title="Use">
          <Chart
            title="Tokens each day"
            kind="bars"
            at={use.at}
            series={series}
            detail="day"
            say={count}
            brief={brief}
          />
        </Section>
      )}
    </>
  );
}

function Versions({ of: adapter }: { of: Adapter }) {
  const path = { adapter: adapter.id };
  const list = useList("/v1/admin/adapters/{adapter}/versions", { path });
  const may = useMay()("adapters:write") && adapter.active;
  const [promoted, setPromoted] = useState<Version | null>(null);
  const [removed, setRemoved] = useState<Version | null>(null);
  const promote = useWrite(
    (version: number) => api.post("/v1/admin/adapters/{adapter}/promote", { path, body: { version } }),
    ADAPTERS,
  );
  const remove = useWrite(
    (version: number) =>
      api.delete("/v1/admin/adapters/{adapter}/versions/{version}", { path: { ...path, version: String(version) } }),
    ADAPTERS,
  );
  const columns: Column<Version>[] = [
    {
      id: "number",
      header: "Version",
      cell: (version) => (
        <span className="row">
          <b className="num">{version.number}</b>
          {version.number === adapter.version ? (
            <Badge tone="good">served</Badge>
          ) : (
            version.removed_at !== null && <Badge>removed</Badge>
          )}
        </span>
      ),
      csv: (version) => version.number,
    },
    {
      id: "digest",
      header: "Digest",
      cell: (version) => <ShortId value={version.digest} />,
      csv: (version) => version.digest,
    },
    {
      id: "rank",
      header: "Rank",
      end: true,
      cell: (version) => <Count value={version.rank_max} />,
      csv: (version) => version.rank_max,
    },
    {
      id: "size",
      header: "Size",
      end: true,
      cell: (version) =>
        version.bytes === null ? (
          <span className="faint">–</span>
        ) : (
          <span className="num" title={`${count(version.bytes)} bytes`}>
            {bytes(version.bytes)}
          </span>
        ),
      csv: (version) => version.bytes,
    },
    {
      id: "parameters",
      header: "Parameters",
      end: true,
      wide: true,
      cell: (version) => <Count value={version.parameters} />,
      csv: (version) => version.parameters,
    },
    {
      id: "warnings",
      header: "Warnings",
      cell: (version) =>
        version.warnings.length === 0 ? (
          <span className="faint">none</span>
        ) : (
          <Badge tone="warn">{version.warnings.length}</Badge>
        ),
      csv: (version) => version.warnings.join("; "),
    },
    { id: "where", header: "Where", wide: true, cell: (version) => <Where digest={version.digest} /> },
    {
      id: "created",
      header: "Uploaded",
      cell: (version) => <Time at={version.created_at} />,
      csv: (version) => iso(version.created_at),
    },
  ];
  if (may) {
    columns.push({
      id: "do",
      header: "Change",
      end: true,
      cell: (version) =>
        version.number !== adapter.version &&
        version.removed_at === null && (
          <span className="row-deeds">
            <button
              type="button"
              className="button button-quiet"
              aria-label={`Promote version ${version.number}`}
              onClick={() => setPromoted(version)}
            >
              Promote
            </button>
            <button
              type="button"
              className="button button-quiet"
              aria-label={`Remove version ${version.number}`}
              onClick={() => setRemoved(version)}
            >
              Remove
            </button>
          </span>
        ),
    });
  }
  return (
    <>
      <DataTable
        label={`Versions of ${adapter.name}`}
        list={list}
        columns={columns}
        id={(version) => String(version.number)}
        csv
        detail={(version) => <AboutVersion of={version} />}
        empty={<EmptyState title="No version" />}
      />
      <ConfirmDialog
        open={promoted !== null}
        onClose={() => setPromoted(null)}
        title={`Serve version ${promoted?.number}?`}
        verb="Promote"
        tone="plain"
        deed={async () => {
          if (promoted === null) return;
          await promote.mutateAsync(promoted.number);
          toast(`Version ${promoted.number} of ${adapter.name} is served.`);
        }}
      >
        Every request that comes from now on gets it in place of version {adapter.version}. Those in flight end on what
        they began with; a rollback leads back.
        {promoted !== null && promoted.warnings.length > 0 && <Warnings of={promoted.warnings} />}
      </ConfirmDialog>
      <ConfirmDialog
        open={removed !== null}
        onClose={() => setRemoved(null)}
        title={`Remove version ${removed?.number}?`}
        verb="Remove"
        deed={async () => removed !== null && remove.mutateAsync(removed.number)}
      >
        Its files go. It can be served no more, unless it is uploaded again.
      </ConfirmDialog>
    </>
  );
}

export function Warnings({ of: warnings }: { of: readonly string[] }) {
  return (
    <ul className="warnings">
      {warnings.map((one) => (
        <li key={one}>{one}</li>
      ))}
    </ul>
  );
}

function AboutVersion({ of: version }: { of: Version }) {
  return (
    <div className="stack">
      {version.warnings.length > 0 && <Warnings of={version.warnings} />}
      <Facts
        facts={[
          ["Digest", <Id value={version.digest} />],
          ["Trained for", version.trained_for ?? <span className="faint">it does not say</span>],
          [
            "Modules",
            version.targets.length === 0 ? (
              <span className="faint">unknown</span>
            ) : (
              <code>{version.targets.join(", ")}</code>
            ),
          ],
          [
            "Replaced",
            version.replaced === null ? (
              <span className="faint">nothing</span>
            ) : (
              <>version {version.replaced}, where a rollback leads</>
            ),
          ],
        ]}
      />
    </div>
  );
}
