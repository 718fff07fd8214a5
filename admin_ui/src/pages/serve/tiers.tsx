// Tiers: their targets, and attainment over five minutes, an hour and a day. They are configured in laneway.toml.
import { type AnswerOf, useGet } from "../../api";
import {
  Badge,
  type Column,
  Count,
  DataTable,
  EmptyState,
  Link,
  Loaded,
  PageHead,
  Section,
  Time,
  duration,
  percent,
  wholeList,
} from "../../kit";
import "./tiers.css";

type Answer = AnswerOf<"/v1/admin/tiers">;
type Tier = Answer["data"][number];
type Attainment = Tier["attainment"][number];

const SAID: Record<Attainment["window"], string> = { "5m": "5 min", "1h": "1 h", "24h": "24 h" };
const ms = (value: number | null) => (value === null ? "–" : duration(value / 1000));

export default function Tiers() {
  const found = useGet("/v1/admin/tiers", undefined, { everyMs: 10_000 });
  return (
    <>
      <PageHead
        title="Tiers"
        note="Highest tier first. Requests of a higher tier are scheduled before those of lower tiers. Each tier has a target for its time to first token."
      />
      <Loaded of={found} lines={10}>
        {(answer) => <TierList of={answer} />}
      </Loaded>
    </>
  );
}

function TierList({ of: answer }: { of: Answer }) {
  return (
    <>
      <p className="faint">
        {answer.recorded_since === null ? (
          "No first token has been recorded yet."
        ) : (
          <>
            Recorded since <Time at={answer.recorded_since} absolute detail="minute" />.
          </>
        )}
      </p>
      {answer.data.map((tier) => (
        <TierSection key={tier.name} of={tier} />
      ))}
    </>
  );
}

function TierSection({ of: tier }: { of: Tier }) {
  const { ttft_base_ms: base, ttft_per_1k_prompt_tokens_ms: more } = tier.targets;
  // TierSection scale for all three intervals, with the target well inside.
  const scale = Math.max(base * 1.5, ...tier.attainment.map((one) => (one.ttft_p99_ms ?? 0) * 1.05));
  return (
    <Section
      title={tier.name}
      note={
        <>
          first token within {ms(base)}
          {more > 0 && <> plus {ms(more)} per 1,000 prompt tokens</>}; then one token every{" "}
          {ms(tier.targets.inter_token_ms)}
        </>
      }
      actions={
        <>
          {tier.preemptible ? <Badge>preemptible</Badge> : <Badge tone="accent">not preemptible</Badge>}
          <Link to="/sla" query={{ tier: tier.name }}>
            SLA by day
          </Link>
        </>
      }
    >
      <div className="tier-grid">
        <div>
          <DataTable
            label={`Attainment of ${tier.name}`}
            list={wholeList(tier.attainment)}
            columns={columnsOf(base, scale)}
            id={(one) => one.window}
            empty={<EmptyState title="No data yet" />}
          />
          <p className="key-row" aria-hidden="true">
            {(["p50", "p95", "p99"] as const).map((name) => (
              <span key={name}>
                <svg className="attained" viewBox="0 0 14 10">
                  <rect className={name} width="14" height="10" />
                </svg>
                {name}
              </span>
            ))}
            <span>
              <svg className="attained over" viewBox="0 0 14 10">
                <rect className="p99" width="14" height="10" />
              </svg>
              p99 over the target
            </span>
            <span>
              <svg className="attained" viewBox="0 0 14 10">
                <line className="target" x1="7" x2="7" y1="0" y2="10" />
              </svg>
              target, without its part per prompt token
            </span>
          </p>
        </div>
        <Settings of={tier} />
      </div>
    </Section>
  );
}

function columnsOf(target: number, scale: number): readonly Column<Attainment>[] {
  return [
    {
      id: "window",
      header: "Last",
      cell: (one) => (
        <span className="no-break" title={`Reports of gateways arrive within ${duration(one.late_s_max)}.`}>
          {SAID[one.window]}
        </span>
      ),
    },
    { id: "share", header: "In target", end: true, cell: (one) => <Share of={one} /> },
    { id: "drawn", header: "First token", cell: (one) => <AttainmentBar of={one} target={target} scale={scale} /> },
    ...(["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms"] as const).map((name) => ({
      id: name,
      header: name.slice(5, 8),
      end: true,
      cell: (one: Attainment) => <span className="num no-break">{ms(one[name])}</span>,
    })),
    { id: "requests", header: "Requests", end: true, cell: (one) => <Count value={one.requests} /> },
    {
      id: "refused",
      header: "503",
      end: true,
      cell: (one) =>
        one.refused_503 === 0 ? (
          <span className="faint num">0</span>
        ) : (
          <span className="share-bad num">{one.refused_503}</span>
        ),
    },
  ];
}

function Share({ of: one }: { of: Attainment }) {
  if (one.share_within_target === null) return <span className="faint">–</span>;
  const share = one.share_within_target * 100;
  const tone = share >= 99 ? "good" : share >= 95 ? "warn" : "bad";
  return (
    <span
      className={`num share-${tone}`}
      title={`${one.within_target} of ${one.requests}, ${percent(one.within_target, one.requests).toFixed(3)} %`}
    >
      {share === 100 ? "100" : share.toFixed(1)} %
    </span>
  );
}

function AttainmentBar({ of: one, target, scale }: { of: Attainment; target: number; scale: number }) {
  const at = (value: number | null) => Math.min(100, ((value ?? 0) / scale) * 100);
  const over = (one.ttft_p99_ms ?? 0) > target;
  return (
    <svg
      className={over ? "attained over" : "attained"}
      viewBox="0 0 100 26"
      preserveAspectRatio="none"
      role="img"
      aria-label={`First token: p50 ${ms(one.ttft_p50_ms)}, p95 ${ms(one.ttft_p95_ms)}, p99 ${ms(one.ttft_p99_ms)}; target ${ms(target)}`}
    >
      <rect className="all" y="8" width="100" height="10" />
      <rect className="p99" y="8" width={at(one.ttft_p99_ms)} height="10" />
      <rect className="p95" y="8" width={at(one.ttft_p95_ms)} height="10" />
      <rect className="p50" y="8" width={at(one.ttft_p50_ms)} height="10" />
      <line className="target" x1={at(target)} x2={at(target)} y1="1" y2="25" vectorEffect="non-scaling-stroke" />
    </svg>
  );
}

/** The settings of the tier, as in laneway.toml. */
function Settings({ of: tier }: { of: Tier }) {
  const rows: readonly (readonly [string, string])[] = [
    ["name", tier.name],
    ["service_tier", tier.service_tier],
    ["floor", String(tier.floor)],
    ["ttft_base_ms", String(tier.targets.ttft_base_ms)],
    ["ttft_per_1k_prompt_tokens_ms", String(tier.targets.ttft_per_1k_prompt_tokens_ms)],
    ["inter_token_ms", String(tier.targets.inter_token_ms)],
    ["preemptible", String(tier.preemptible)],
    ["preemptions_max", String(tier.preemptions_max)],
    ["queue_max", String(tier.queue_max)],
    ["queue_target_ms", tier.queue_target_ms === null ? "not set" : String(tier.queue_target_ms)],
  ];
  return (
    <table className="settings">
      <caption className="sr-only">Settings of {tier.name} in laneway.toml</caption>
      <thead>
        <tr>
          <th scope="col">
            <code>[[tiers]]</code>
          </th>
          <td className="faint">in laneway.toml</td>
        </tr>
      </thead>
      <tbody>
        {rows.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">
              <code>{name}</code>
            </th>
            <td className="mono">{value}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
