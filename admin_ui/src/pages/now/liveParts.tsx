// The tables of the live page: queues by tier, requests in flight, preemptions, adapter locations.
import { useState } from "react";
import {
  Badge,
  type Column,
  DataTable,
  EmptyState,
  Link,
  SelectFilter,
  ShortId,
  type View,
  bytes,
  count,
  duration,
  moment,
  place,
  useZone,
  wholeList,
} from "../../kit";
import type { components } from "../../api/schema";
import { type EngineEvent, type Palette, hex, nameOf, paintOf } from "./liveArena";
import type { Preemption } from "./liveFeed";

type Request = components["schemas"]["LiveRequest"];
type Adapter = components["schemas"]["LiveAdapter"];
export type LiveView = View<{ tier: string; state: string; model: string; where: string }>;

const FEW = 12;
const ADAPTERS_FEW = 8;
const STATES = { decode: "good", prefill: "accent", waiting: "plain", preempted: "warn" } as const;
const WHERE = { device: "in the arena", host: "in host memory", disk: "on disk" } as const;

/** Bars have the map's colours if it is coloured by tier. */
export function Queues({ event, palette }: { event: EngineEvent; palette: Palette }) {
  return (
    <div className="table-scroll">
      <table className="table queues">
        <caption className="sr-only">Queues by tier</caption>
        <thead>
          <tr>
            <th scope="col">Tier</th>
            <th scope="col" className="end">
              Waiting
            </th>
            <th scope="col" className="end">
              Running
            </th>
            <th scope="col">Pages in use, and the floor</th>
            <th scope="col" className="end">
              Preempted
            </th>
          </tr>
        </thead>
        <tbody>
          {event.tiers.map((tier) => (
            <tr key={tier.tier}>
              <th scope="row">
                <Link to="/tiers">{tier.tier}</Link>
              </th>
              <td className="end num">{tier.waiting > 0 ? <b>{count(tier.waiting)}</b> : 0}</td>
              <td className="end num">{count(tier.running)}</td>
              <td>
                <Held
                  held={tier.held_pages}
                  floor={tier.floor_pages}
                  pages={event.arena.pages}
                  colour={hex(palette.by === "tier" ? paintOf(`kv/${tier.tier}`, palette).colour : palette.ink)}
                />
              </td>
              <td className="end num">{count(tier.preempted_total)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A tier's pages as a bar over the arena, with its guaranteed floor as a line. */
function Held({ held, floor, pages, colour }: { held: number; floor: number; pages: number; colour: string }) {
  const width = (part: number) => (100 * part) / Math.max(1, pages);
  return (
    <div className="held">
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect className="held-all" width="100" height="8" />
        <rect width={width(held)} height="8" fill={colour} />
        <rect className="held-floor" x={Math.max(0, width(floor) - 0.3)} width="0.6" height="8" />
      </svg>
      <span className="num">
        {count(held)} in use, floor {count(floor)}
      </span>
    </div>
  );
}

const REQUESTS: readonly Column<Request>[] = [
  {
    id: "request",
    header: "Request",
    cell: (one) => <RequestLink id={one.request_id} />,
    csv: (one) => one.request_id,
  },
  {
    id: "state",
    header: "State",
    cell: (one) => <Badge tone={STATES[one.state]}>{one.state}</Badge>,
    csv: (one) => one.state,
  },
  { id: "tier", header: "Tier", cell: (one) => one.tier, csv: (one) => one.tier },
  {
    id: "tenant",
    header: "Tenant",
    cell: (one) =>
      one.tenant === null ? (
        <span className="faint">unknown yet</span>
      ) : (
        <Link to={place("/tenants", one.tenant)}>{one.tenant}</Link>
      ),
    csv: (one) => one.tenant,
  },
  {
    id: "model",
    header: "Model or adapter",
    cell: (one) =>
      one.adapter === null ? (
        one.model
      ) : (
        <>
          <b>{nameOf(one.adapter)}</b> <span className="faint">of {one.model}</span>
        </>
      ),
    csv: (one) => one.adapter ?? one.model,
  },
  {
    id: "prompt",
    header: "Prompt",
    end: true,
    cell: (one) => <span className="num">{count(one.prompt_tokens)}</span>,
    csv: (one) => one.prompt_tokens,
  },
  {
    id: "made",
    header: "Completion",
    end: true,
    cell: (one) => <span className="num">{count(one.completion_tokens)}</span>,
    csv: (one) => one.completion_tokens,
  },
  {
    id: "age",
    header: "Age",
    end: true,
    cell: (one) => <span className="num">{duration(one.age_s)}</span>,
    csv: (one) => one.age_s,
  },
];

function RequestLink({ id }: { id: string }) {
  return (
    <Link to={place("/requests", id)} title={id}>
      <code>{id.length > 20 ? `${id.slice(0, 9)}…${id.slice(-4)}` : id}</code>
    </Link>
  );
}

export function Requests({ event, view }: { event: EngineEvent; view: LiveView }) {
  const [all, setAll] = useState(false);
  const { tier, state, model } = view.values;
  const models = [...new Set([...event.requests.map((one) => one.model), ...(model === "" ? [] : [model])])].sort();
  const found = event.requests.filter(
    (one) =>
      (tier === "" || one.tier === tier) &&
      (state === "" || one.state === state) &&
      (model === "" || one.model === model),
  );
  const shown = all ? found : found.slice(0, FEW);
  const filters = (
    <>
      <SelectFilter
        label="Tier"
        view={view}
        name="tier"
        options={[["", "Any"], ...event.tiers.map((one) => one.tier)]}
      />
      <SelectFilter label="State" view={view} name="state" options={[["", "Any"], ...Object.keys(STATES)]} />
      {models.length > 1 && <SelectFilter label="Model" view={view} name="model" options={[["", "Any"], ...models]} />}
    </>
  );
  return (
    <>
      <DataTable
        label="Requests in flight"
        list={wholeList(shown)}
        columns={REQUESTS}
        id={(one) => String(one.number)}
        view={view}
        filters={filters}
        csv
        empty={
          <EmptyState title="No requests in flight">
            <p>
              The engine has no requests. Ended requests are listed under <Link to="/requests">Requests</Link>.
            </p>
          </EmptyState>
        }
      />
      {found.length > FEW && (
        <button type="button" className="button button-quiet" onClick={() => setAll(!all)}>
          {all ? `Show only ${FEW}` : `Show all ${count(found.length)}`}
        </button>
      )}
      {event.requests_total > event.requests.length && (
        <p className="faint">
          The engine reports {count(event.requests.length)} of {count(event.requests_total)} requests: running requests
          by tier, oldest first, then waiting requests.
        </p>
      )}
    </>
  );
}

export function Preemptions({ preemptions }: { preemptions: readonly Preemption[] }) {
  const zone = useZone();
  if (preemptions.length === 0)
    return (
      <div className="preemptions">
        <p className="faint">No preemptions since you opened this page.</p>
      </div>
    );
  return (
    <ol className="preemptions" tabIndex={0} aria-label="Preemptions, newest first">
      {preemptions.map((one, index) => {
        const before = preemptions[index + 1];
        const unreported = before === undefined ? 0 : one.number - before.number - 1;
        return (
          <li key={one.number}>
            <time className="num faint" dateTime={new Date(one.at * 1000).toISOString()}>
              {moment(one.at, zone).slice(11, 19)}
            </time>
            <span>
              <b>{one.tier}</b> preempted by <b>{one.caused_by_tier}</b>{" "}
              <span className="faint">{one.kind === "swap" ? "swapped to host memory" : "to be recomputed"}</span>
            </span>
            <RequestLink id={one.request_id} />
            {unreported > 0 && (
              <span className="faint unreported">
                and {count(unreported)} earlier preemptions that were not reported
              </span>
            )}
          </li>
        );
      })}
    </ol>
  );
}

const ADAPTERS: readonly Column<Adapter>[] = [
  {
    id: "name",
    header: "Adapter",
    cell: (one) =>
      one.name === null ? (
        <ShortId value={one.digest} />
      ) : (
        <Link to="/adapters" query={{ search: one.name }}>
          <b>{one.name}</b>
        </Link>
      ),
  },
  {
    id: "where",
    header: "Location",
    cell: (one) => (
      <Badge tone={one.where === "device" ? "good" : one.where === "host" ? "accent" : "plain"}>
        {WHERE[one.where]}
      </Badge>
    ),
  },
  { id: "bytes", header: "Size", end: true, cell: (one) => <span className="num">{bytes(one.bytes)}</span> },
];

export function Adapters({ event, view }: { event: EngineEvent; view: LiveView }) {
  const found = event.adapters.filter((one) => view.values.where === "" || one.where === view.values.where);
  const shown = found.slice(0, ADAPTERS_FEW);
  return (
    <>
      <DataTable
        label="Adapters in the engine"
        list={wholeList(shown)}
        columns={ADAPTERS}
        id={(one) => one.digest}
        view={view}
        filters={
          <SelectFilter
            label="Location"
            view={view}
            name="where"
            options={[
              ["", "Any location"],
              ["device", "In the arena"],
              ["host", "In host memory"],
              ["disk", "On disk"],
            ]}
          />
        }
        empty={
          <EmptyState title="No adapter is registered with the engine">
            <p>
              An adapter is registered when a request first calls it. <Link to="/adapters">Adapters</Link>
            </p>
          </EmptyState>
        }
      />
      {(found.length > shown.length || event.adapters_total > event.adapters.length) && (
        <p className="faint">
          {count(shown.length)} of {count(Math.max(found.length, event.adapters_total))}, adapters in the arena first.{" "}
          <Link to="/adapters">Adapters</Link> lists all of them.
        </p>
      )}
    </>
  );
}
