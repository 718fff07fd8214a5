// The parts that this gateway depends on: state, since when, and what to do about a fault.
import { type AnswerOf, useGet } from "../../api";
import { Badge, Link, Loaded, PageHead, Time, type Tone } from "../../kit";
import "./health.css";

type Report = AnswerOf<"/v1/admin/health">;
type Item = Report["data"][number];

const EVERY_MS = 5_000;
const TONES: Record<Item["status"], Tone> = { ok: "good", degraded: "warn", down: "bad" };
const RANK: Record<Item["status"], number> = { down: 0, degraded: 1, ok: 2 };

/** For each part: its purpose, what to do about a fault, and the page for it. */
const PARTS: Record<string, { title: string; what: string; remedy: string; to?: readonly [string, string] }> = {
  database: {
    title: "Database",
    what: "The system of record: tenants, keys, budgets, holds and usage.",
    remedy:
      "Check that it runs and that this host can reach it. While it is down, new requests are refused; running requests finish, and their settlements wait in the journal.",
  },
  models: {
    title: "Models",
    what: "The base models that the engines serve.",
    remedy:
      "Read why the engine refuses the model. Correct its files or its settings; the engine retries automatically.",
    to: ["/models", "Models"],
  },
  redis: {
    title: "Redis",
    what: "Rate limits that all gateways share; no durable data.",
    remedy:
      "Check that it runs. While it is down, each gateway enforces the rate limits on its own and remembers what it admitted.",
  },
  engine: {
    title: "Engines",
    what: "Compute the tokens.",
    remedy:
      "Read the log of each engine that is not ready. A lost device or a model that fails to load ends an engine; its supervisor restarts it. While no engine is ready, requests get 503. An engine that drains serves again when you say so.",
    to: ["/engines", "Engines"],
  },
  gateways: {
    title: "Gateways",
    what: "All gateways of this database, by their leases.",
    remedy:
      "A gateway that does not renew its lease has stopped or cannot reach the database. Its holds expire with the lease. Restart the gateway, or remove it from the load balancer.",
  },
  workers: {
    title: "Workers",
    what: "The gateway processes of this host.",
    remedy: "The supervisor replaces a worker that does not respond. If the fault persists, restart this gateway.",
  },
  journal: {
    title: "Journal",
    what: "Settlements that wait for the database.",
    remedy:
      "It is written to the database once the database is back. Do not delete its files: they hold the cost of finished requests.",
  },
  disk: {
    title: "Disk",
    what: "The disk of the journal.",
    remedy: "Free disk space, or move the data directory to a larger disk. Below the reserve, new requests get 503.",
  },
  certificates: {
    title: "Certificates",
    what: "The certificates between this gateway and its engines.",
    remedy: "Renew the certificate that expires first. Changed files are read at the next connection.",
  },
  drain: {
    title: "Drain",
    what: "Whether this gateway drains.",
    remedy: "Wait for the requests that still run, or stop the gateway: after its grace time what is left is cut.",
  },
  books: {
    title: "Books",
    what: "Whether usage and ledger agree.",
    remedy: "Reconcile now, and resolve the imbalances before you close the month.",
    to: ["/billing", "Billing"],
  },
  connectors: {
    title: "Connectors",
    what: "Usage for Stripe and OpenMeter.",
    remedy:
      "Read why the receiver refused the usage: `laneway connectors`. Usage is sent again; an amount that is stuck needs `laneway connectors release`.",
    to: ["/connectors", "Connectors"],
  },
  exports: {
    title: "Exports",
    what: "Files for finance.",
    remedy:
      "Read why the export failed, then request it again. If exports stay queued, check that `python -m billing` runs.",
    to: ["/billing", "Billing"],
  },
  traces: {
    title: "Traces",
    what: "Spans of requests, for an OpenTelemetry collector.",
    remedy: "Check the collector, its address and its token (telemetry in laneway.toml). Requests do not depend on it.",
  },
};
const WORDS = {
  ok: "All parts are up",
  degraded: "Serving, but a part is degraded",
  down: "A required part is down",
} as const;

export default function Health() {
  const found = useGet("/v1/admin/health", {}, { everyMs: EVERY_MS });
  return (
    <>
      <PageHead
        title="Health"
        note="The parts that this gateway depends on, checked every 5 seconds. The time beside a status is when this gateway first found it."
      >
        <Link to="/sla">SLA by day</Link>
      </PageHead>
      <Loaded of={found} lines={8}>
        {(report) => <Parts report={report} stale={found.error !== null} />}
      </Loaded>
    </>
  );
}

function Parts({ report, stale }: { report: Report; stale: boolean }) {
  const items = [...report.data].sort((a, b) => RANK[a.status] - RANK[b.status]);
  return (
    <div className="stack">
      {stale && (
        <div className="problem" role="alert">
          <p>
            The gateway no longer responds. Its last answer is from <Time at={report.at} />.
          </p>
        </div>
      )}
      <p className={`health-whole health-${report.status}`} role="status">
        <b>{WORDS[report.status]}.</b>{" "}
        <span className="faint num">
          Checked <Time at={report.at} absolute />
        </span>
      </p>
      <ul className="health">
        {items.map((item) => (
          <Part key={item.name} item={item} />
        ))}
      </ul>
    </div>
  );
}

/** The detail with a capital and a full stop; a setting's name at the beginning stays as it is written. */
function sentence(detail: string): string {
  const [first = ""] = detail.split(" ");
  return `${/^[a-z]+$/.test(first) ? detail.charAt(0).toUpperCase() + detail.slice(1) : detail}.`;
}

function Part({ item }: { item: Item }) {
  const part = PARTS[item.name] ?? { title: item.name, what: "", remedy: "" };
  const well = item.status === "ok";
  return (
    <li className={`health-part health-${item.status}`}>
      <div className="health-name">
        <h2>{part.title}</h2>
        <span className="faint">{part.what}</span>
      </div>
      <div className="health-says">
        <p>
          <Badge tone={TONES[item.status]}>{item.status}</Badge>{" "}
          <span className="faint">
            since <Time at={item.since} absolute />
          </span>
        </p>
        <p>{sentence(item.detail)}</p>
        {!well && part.remedy !== "" && (
          <p className="health-remedy">
            <b>What to do:</b> {part.remedy}
          </p>
        )}
        {part.to !== undefined && (
          <p>
            <Link to={part.to[0]}>{part.to[1]}</Link>
          </p>
        )}
      </div>
    </li>
  );
}
