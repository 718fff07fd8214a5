// The arms of an alias, or the versions of an adapter, compared by the requests that they served.
import { type AnswerOf, useGet, useMay } from "../../api";
import {
  Badge,
  type Column,
  type Exact,
  DataTable,
  EmptyState,
  Link,
  Money,
  Problem,
  Skeleton,
  Time,
  count,
  decimal,
  duration,
  exact,
  place,
  rounded,
  wholeList,
} from "../../kit";
import { useNames } from "../parts/names";
import { shareSaid } from "../parts/shares";
import type { Alias } from "./aliasParts";

type Answer = AnswerOf<"/v1/admin/adapters/{adapter}/use">;
type Arm = Answer["data"][number];
interface Found {
  data: Answer | undefined;
  error: Parameters<typeof Problem>[0]["error"] | null;
  refetch: () => unknown;
}

const DAYS = 7;

/** Requests that settle while the page is open are counted after at most this time. */
const REFRESH_MS = 10_000;

/** The arms of an alias. */
export function AliasArms({ of: alias }: { of: Alias }) {
  const may = useMay()("models:read");
  const query = { days: DAYS };
  const found = useGet(
    "/v1/admin/alias_use/{alias}",
    { path: { alias: alias.name }, query },
    { enabled: may, everyMs: REFRESH_MS },
  );
  const arms = alias.models.filter((target) => target.weight > 0).map((target) => target.model);
  return <Arms label={`Arms of ${alias.name}`} found={found} arms={arms} />;
}

/** The versions of an adapter. `served`: the number of the served version. `split`: names of versions that get a part
 * of an alias's requests. */
export function VersionsCompared({
  adapter,
  served,
  split,
}: {
  adapter: string;
  served: number;
  split: readonly string[];
}) {
  const path = { adapter };
  const found = useGet("/v1/admin/adapters/{adapter}/use", { path, query: { days: DAYS } }, { everyMs: REFRESH_MS });
  return <Arms label="Versions compared" found={found} served={served} arms={split} />;
}

/** `arms`: the names of the arms now; arms without a settled request are named too. */
function Arms({
  label,
  found,
  served,
  arms,
}: {
  label: string;
  found: Found;
  served?: number;
  arms: readonly string[];
}) {
  const names = useNames("adapter", found.data?.data.map((arm) => arm.adapter ?? null) ?? []);
  if (found.error !== null) return <Problem error={found.error} again={() => void found.refetch()} />;
  if (found.data === undefined) return <Skeleton lines={3} />;
  const { data, start_time } = found.data;
  const all = data.reduce((sum, arm) => sum + arm.requests, 0);
  const name = (arm: Arm) =>
    arm.adapter == null ? arm.model : `${names.get(arm.adapter) ?? arm.adapter}@${arm.adapter_version ?? "?"}`;
  const idle = arms.filter((one) => !data.some((arm) => name(arm) === one));
  const columns: readonly Column<Arm>[] = [
    {
      id: "arm",
      header: "Served by",
      cell: (arm) => (
        <span className="row">
          <Link to={arm.adapter == null ? place("/models", arm.model) : place("/adapters", arm.adapter)}>
            <b>{name(arm)}</b>
          </Link>
          {served !== undefined && arm.adapter_version === served && <Badge tone="good">served</Badge>}
        </span>
      ),
      csv: name,
    },
    {
      id: "requests",
      header: "Requests",
      end: true,
      cell: (arm) => (
        <span className="num">
          {count(arm.requests)} <span className="faint">{shareSaid(arm.requests, all)}</span>
        </span>
      ),
      csv: (arm) => arm.requests,
    },
    {
      id: "failed",
      header: "Failed",
      end: true,
      cell: (arm) => (
        <span className={arm.failed > 0 ? "num warn-word" : "num"}>
          {count(arm.failed)} <span className="faint">{shareSaid(arm.failed, arm.requests)}</span>
        </span>
      ),
      csv: (arm) => arm.failed,
    },
    {
      id: "p50",
      header: "TTFT, p50",
      csvHeader: "TTFT p50 s",
      end: true,
      cell: (arm) => <Seconds of={arm.ttft_p50_s} />,
      csv: (arm) => arm.ttft_p50_s,
    },
    {
      id: "p95",
      header: "TTFT, p95",
      csvHeader: "TTFT p95 s",
      end: true,
      cell: (arm) => <Seconds of={arm.ttft_p95_s} />,
      csv: (arm) => arm.ttft_p95_s,
    },
    {
      id: "device",
      header: "Device time per token",
      csvHeader: "Device s per token",
      end: true,
      wide: true,
      cell: (arm) => <Micros of={arm.device_s_per_token} />,
      csv: (arm) => arm.device_s_per_token,
    },
    {
      id: "tokens",
      header: "Completion tokens",
      end: true,
      wide: true,
      cell: (arm) => <span className="num">{count(arm.completion_tokens)}</span>,
      csv: (arm) => arm.completion_tokens,
    },
    {
      id: "cost_per_million",
      header: "Cost per 1M tokens",
      end: true,
      cell: (arm) =>
        Object.entries(arm.cost_picos).map(([currency, picos]) => (
          <div key={currency} className="num">
            {perMillionTokens(arm, picos)} <span className="unit">{currency}</span>
          </div>
        )),
      csv: (arm) =>
        Object.entries(arm.cost_picos)
          .map(([currency, picos]) => `${perMillionTokens(arm, picos)} ${currency}`)
          .join("; "),
    },
    {
      id: "cost",
      header: "Cost",
      end: true,
      wide: true,
      cell: (arm) =>
        Object.entries(arm.cost_picos).map(([currency, picos]) => (
          <div key={currency}>
            <Money picos={picos} currency={currency} />
          </div>
        )),
      csv: (arm) =>
        Object.entries(arm.cost_picos)
          .map(([currency, picos]) => `${decimal(picos, false)} ${currency}`)
          .join("; "),
    },
  ];
  return (
    <>
      <p className="note">
        Settled requests since <Time at={start_time} absolute detail="day" />. Percentiles are of the newest 20,000.
        {idle.length > 0 && ` No settled request in this time: ${idle.join(", ")}.`}
      </p>
      <DataTable
        label={label}
        list={wholeList(data)}
        columns={columns}
        id={(arm) => `${arm.model} ${arm.adapter} ${arm.adapter_version}`}
        csv
        empty={
          <EmptyState title={`No settled request in ${DAYS} days`}>
            <p>Requests of releases that did not record versions and aliases are not counted.</p>
          </EmptyState>
        }
      />
    </>
  );
}

const PER_MILLION_PLACES = 4;

/** The cost of a million prompt and completion tokens. */
function perMillionTokens(arm: Arm, picos: Exact): string {
  const tokens = arm.prompt_tokens + arm.completion_tokens;
  return tokens === 0 ? "–" : rounded((exact(picos) * 1_000_000n) / BigInt(tokens), PER_MILLION_PLACES);
}

function Micros({ of }: { of: number | null }) {
  return <span className="num">{of == null ? "–" : `${count(Math.round(of * 1e6))} µs`}</span>;
}

function Seconds({ of }: { of: number | null }) {
  return <span className="num">{of == null ? "–" : duration(of)}</span>;
}
