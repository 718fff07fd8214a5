// One adapter: the served version, its location, use and versions, with promote, roll back and remove.
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
import { useTenants } from "../parts/names";
import type { Alias } from "./aliasParts";
import { VersionsCompared } from "./arms";
import { Splits, SplitsRemain, armsOf, useSplits } from "./adapterSplits";
import { SplitForm } from "./splitForm";

type Adapter = AnswerOf<"/v1/admin/adapters/{adapter}">;
type Version = RowOf<"/v1/admin/adapters/{adapter}/versions">;
export const ADAPTERS = ["/v1/admin/adapters", "/v1/admin/models", "/v1/admin/audit_log"];

export default function AdapterPage() {
  const adapter = useParam("adapter");
  const found = useGet("/v1/admin/adapters/{adapter}", { path: { adapter } });
  return (
    <Loaded of={found} lines={8}>
      {(one) => <AdapterDetails of={one} />}
    </Loaded>
  );
}

type Open = "edit" | "rollback" | "pin" | "remove" | null;

function AdapterDetails({ of: adapter }: { of: Adapter }) {
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
  const splits = useSplits(adapter.name);
  const served = useList("/v1/admin/adapters/{adapter}/versions", { path }).rows.find(
    (version) => version.number === adapter.version,
  );
  const firstServed = served?.replaced === null;
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
              {" "}
              Edit
            </button>
            <button
              type="button"
              className="button"
              disabled={firstServed}
              title={firstServed ? `Version ${adapter.version} replaced no other version.` : undefined}
              onClick={() => setOpen("rollback")}
            >
              Roll back
            </button>
            <Link to="/adapters/upload" query={{ of: adapter.id }} className="button button-main">
              Upload a version
            </Link>
          </>
        )}
      </PageHead>
      <Tabs
        label={`Sections of ${adapter.name}`}
        tabs={[
          { id: "about", label: "About", content: () => <About of={adapter} /> },
          { id: "versions", label: "Versions", content: () => <Versions of={adapter} splits={splits} /> },
          ...(may("audit:read")
            ? [{ id: "changes", label: "Changes", content: () => <AuditTable object={adapter.id} /> }]
            : []),
        ]}
      />
      <Dialog open={open === "edit"} onClose={close} title={`Edit ${adapter.name}`} keep>
        <AdapterForm of={adapter} onDone={close} />
      </Dialog>
      <ConfirmDialog
        open={open === "rollback"}
        onClose={close}
        title={`Roll ${adapter.name} back?`}
        verb="Roll back"
        tone="plain"
        action={async () => toast(`Version ${(await rollBack.mutateAsync()).version} is served.`)}
      >
        New requests get {served == null ? "the replaced version" : `version ${served.replaced}`} instead of version{" "}
        {adapter.version}. Requests in flight finish on the version they started with.
        <SplitsRemain of={splits} />
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "pin"}
        onClose={close}
        title={adapter.pinned ? `Unpin ${adapter.name}?` : `Pin ${adapter.name}?`}
        verb={adapter.pinned ? "Unpin" : "Pin"}
        tone="plain"
        action={() => pin.mutateAsync(!adapter.pinned)}
      >
        {adapter.pinned
          ? "The engine may evict it again while no request uses it."
          : "It is never evicted from the engine's memory, so other adapters cannot use that memory even while it is idle."}
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "remove"}
        onClose={close}
        title={`Remove ${adapter.name}?`}
        verb="Remove"
        name={adapter.name}
        action={async () => {
          await remove.mutateAsync();
          toast(`${adapter.name} is removed.`);
          go("/adapters");
        }}
      >
        New requests that name it are refused. Requests in flight finish; then its files are deleted.
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
          ["Allowed tenants", <Shared of={adapter} />],
          ["Base model", <Link to={place("/models", adapter.base_model)}>{adapter.base_model}</Link>],
          ["Served digest", <ShortId value={adapter.digest} />],
          ["Location", <Where digest={adapter.digest} />],
          ["Notes", adapter.notes ?? <span className="faint">none</span>],
          ["Created", <Time at={adapter.created_at} absolute />],
        ]}
      />
      {use !== null && series !== null && (
        <Section title="Use">
          <Chart
            title="Tokens per day"
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

function Versions({ of: adapter, splits }: { of: Adapter; splits: readonly Alias[] }) {
  const path = { adapter: adapter.id };
  const list = useList("/v1/admin/adapters/{adapter}/versions", { path });
  const may = useMay()("adapters:write") && adapter.active;
  const [promoted, setPromoted] = useState<Version | null>(null);
  const [removed, setRemoved] = useState<Version | null>(null);
  const [split, setSplit] = useState<Version | null>(null);
  const maySplit = useMay()("models:write");
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
    { id: "where", header: "Location", wide: true, cell: (version) => <Where digest={version.digest} /> },
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
          <span className="row-actions">
            <TryLink of={adapter} version={version.number} />
            {maySplit && (
              <button
                type="button"
                className="button button-quiet"
                aria-label={`Split requests with version ${version.number}`}
                onClick={() => setSplit(version)}
              >
                Split
              </button>
            )}
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
      <Splits of={splits} />
      <Section title="Versions compared">
        <VersionsCompared adapter={adapter.id} served={adapter.version} split={armsOf(splits)} />
      </Section>
      <Dialog
        open={split !== null}
        onClose={() => setSplit(null)}
        title={`Split requests between versions ${adapter.version} and ${split?.number}`}
        keep
      >
        {split !== null && <SplitForm of={adapter} version={split.number} onDone={() => setSplit(null)} />}
      </Dialog>
      <ConfirmDialog
        open={promoted !== null}
        onClose={() => setPromoted(null)}
        title={`Serve version ${promoted?.number}?`}
        verb="Promote"
        tone="plain"
        action={async () => {
          if (promoted === null) return;
          await promote.mutateAsync(promoted.number);
          toast(`Version ${promoted.number} of ${adapter.name} is served.`);
        }}
      >
        New requests for {adapter.name} get it instead of version {adapter.version}. Requests in flight finish on the
        version they started with. A rollback reverts this.
        <SplitsRemain of={splits} />
        {promoted !== null && promoted.warnings.length > 0 && <Warnings of={promoted.warnings} />}
      </ConfirmDialog>
      <ConfirmDialog
        open={removed !== null}
        onClose={() => setRemoved(null)}
        title={`Remove version ${removed?.number}?`}
        verb="Remove"
        action={async () => removed !== null && remove.mutateAsync(removed.number)}
      >
        Its files are deleted. It can be served again only after another upload.
      </ConfirmDialog>
    </>
  );
}

/** The playground with this version beside the served one. */
function TryLink({ of: adapter, version }: { of: Adapter; version: number }) {
  const may = useMay()("keys:write");
  const owner = useTenants().get(adapter.tenant_id ?? "")?.slug ?? "";
  if (!may) return null;
  const query = { tenant: owner, model: `${adapter.name}@${version}`, beside: adapter.name };
  return (
    <Link to="/playground" query={query} className="button button-quiet" aria-label={`Try version ${version}`}>
      Try
    </Link>
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
          ["Trained for", version.trained_for ?? <span className="faint">not stated</span>],
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
              <>version {version.replaced}, which a rollback serves again</>
            ),
          ],
        ]}
      />
    </div>
  );
}
