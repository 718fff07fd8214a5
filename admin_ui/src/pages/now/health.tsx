// What this gateway needs, part by part: how it stands, since when, and what to do where it does not stand well.
import { type AnswerOf, useGet } from "../../api";
import { Badge, Link, Loaded, PageHead, Time, type Tone } from "../../kit";
import "./health.css";

type Report = AnswerOf<"/v1/admin/health">;
type Item = Report["data"][number];

const EVERY_MS = 5_000;
const TONES: Record<Item["status"], Tone> = { ok: "good", degraded: "warn", down: "bad" };
const RANK: Record<Item["status"], number> = { down: 0, degraded: 1, ok: 2 };

/** What each part is for, what to do when it is not well, and where one acts. */
const PARTS: Record<string, { title: string; what: string; remedy: string; to?: readonly [string, string] }> = {
  database: {
    title: "Database",
    what: "The truth: tenants, keys, budgets, holds, usage.",
    remedy:
      "See that it runs and that this host reaches it. Until it is back nothing new is admitted; what runs goes on, and its settlements wait in the journal.",
  },
  redis: {
    title: "Redis",
    what: "Rate limits that gateways share; never the truth.",
    remedy: "See that it runs. Until it is back each gateway limits by itself, and remembers what it admitted.",
  },
  engine: {
    title: "Engine",
    what: "Makes the tokens.",
    remedy:
      "Read the engine's log: a lost device or a model that does not load ends it, and its supervisor starts it again. Requests get 503 until then.",
    to: ["/live", "Live engine"],
  },
  gateways: {
    title: "Gateways",
    what: "All that serve from this database, by their leases.",
    remedy:
      "A gateway that does not renew its lease is dead or cut off. What it held is freed as the lease expires; start it again, or take it out of what balances the load.",
  },
  workers: {
    title: "Workers",
    what: "The processes of this host.",
    remedy: "A worker that does not answer is replaced by its keeper. If it stays so, restart this gateway.",
  },
  journal: {
    title: "Journal",
    what: "Settlements that wait for the database.",
    remedy:
      "It empties by itself once the database is back. Keep the disk it is on: it is what finished requests cost.",
  },
  books: {
    title: "Books",
    what: "Whether all sums agree.",
    remedy: "Reconcile by hand and look at what differs before the month is closed.",
    to: ["/billing", "Billing"],
  },
  exports: {
    title: "Exports",
    what: "Files for finance.",
    remedy: "Read why it failed, and ask for it again. If they wait, see that `python -m billing` runs.",
    to: ["/billing", "Billing"],
  },
};
const WORDS = {
  ok: "All is well",
  degraded: "It serves, and something is not well",
  down: "Something that is needed is down",
} as const;

export default function Health() {
  const found = useGet("/v1/admin/health", {}, { everyMs: EVERY_MS });
  return (
    <>
      <PageHead
        title="Health"
        note="Each part that the gateway which answers needs, asked now and every five seconds."
      />
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
            The gateway does not answer any more; this is what it said <Time at={report.at} />.
          </p>
        </div>
      )}
      <p className={`health-whole health-${report.status}`} role="status">
        <b>{WORDS[report.status]}.</b>{" "}
        <span className="faint num">
          Asked <Time at={report.at} absolute />
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
        <p>{item.detail.charAt(0).toUpperCase() + item.detail.slice(1)}.</p>
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
