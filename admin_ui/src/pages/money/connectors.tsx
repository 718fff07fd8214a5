// Connectors: the systems that usage is pushed to, what waits for them, and stuck amounts that an operator releases.
import { useState } from "react";
import { type RowOf, api, useGet, useMay, useWrite } from "../../api";
import {
  Badge,
  CodeBlock,
  ConfirmDialog,
  EmptyState,
  Facts,
  Link,
  Loaded,
  PageHead,
  Section,
  StatTile,
  Tiles,
  Time,
  type Tone,
  brief,
  count,
  duration,
  toast,
  useNow,
} from "../../kit";

type Connector = RowOf<"/v1/admin/connectors">;

const EVERY_MS = 10_000;
const KINDS = { stripe: "Stripe", openmeter: "OpenMeter" } as const;
const EXAMPLE = `[[connectors]]
name = "stripe"
kind = "stripe"
key_file = "stripe.key"`;

export default function Connectors() {
  const found = useGet("/v1/admin/connectors", undefined, { everyMs: EVERY_MS });
  return (
    <>
      <PageHead
        title="Connectors"
        note="Systems that usage is pushed to, by tenant, meter and hour, each amount once. A connector is a section [[connectors]] of laneway.toml: add, change or remove it there, and restart the gateways."
      />
      <Loaded of={found} lines={6}>
        {(answer) =>
          answer.data.length === 0 ? (
            <NoConnector />
          ) : (
            answer.data.map((one) => <ConnectorSection key={one.name} of={one} />)
          )
        }
      </Loaded>
    </>
  );
}

function NoConnector() {
  return (
    <EmptyState title="No connector">
      <p>
        Add a section to laneway.toml, with the API key in the first line of <code>key_file</code>, and restart the
        gateways.
      </p>
      <CodeBlock text={EXAMPLE} label="Example of a connector" />
    </EmptyState>
  );
}

function stateOf(of: Connector): readonly [string, Tone] {
  if (of.kind === null) return ["not in laneway.toml", "plain"];
  if (of.stuck > 0) return ["stuck", "bad"];
  if (of.last_error !== null) return ["failing", "bad"];
  if (of.gateway_id === null) return ["no gateway has its lease", "warn"];
  if (of.without_account > 0) return ["accounts missing", "warn"];
  return of.sent_at === null ? ["nothing sent yet", "plain"] : ["pushes", "good"];
}

function ConnectorSection({ of: connector }: { of: Connector }) {
  const may = useMay()("billing:write");
  const [releasing, setReleasing] = useState(false);
  const [state, tone] = stateOf(connector);
  return (
    <Section
      title={connector.name}
      note={connector.kind === null ? undefined : `${KINDS[connector.kind]}, ${connector.url}`}
      actions={
        <>
          <Badge tone={tone}>{state}</Badge>
          {may && connector.stuck > 0 && (
            <button type="button" className="button" onClick={() => setReleasing(true)}>
              Release…
            </button>
          )}
        </>
      }
    >
      <div className="stack">
        <Tiles>
          <StatTile
            label="Waiting"
            value={count(connector.waiting)}
            note={
              connector.waiting === 0
                ? "nothing waits"
                : `hours and meters with ${brief(connector.waiting_tokens)} tokens; the oldest hour ended ${duration(connector.lag_s)} ago`
            }
          />
          <StatTile
            label="Last push"
            value={connector.sent_at === null ? "none" : <Time at={connector.sent_at} />}
            note={`${count(connector.sent_tokens)} tokens sent in all`}
          />
          <StatTile
            label="Being retried"
            tone={connector.retrying > 0 ? "warn" : "plain"}
            value={count(connector.retrying)}
            note={<NextAttempt at={connector.next_attempt_at} />}
          />
          <StatTile
            label="Stuck"
            tone={connector.stuck > 0 ? "bad" : "plain"}
            value={count(connector.stuck)}
            note={
              connector.stuck === 0 ? "nothing is stuck" : (connector.stuck_reason ?? "not sent again until released")
            }
          />
        </Tiles>
        <Facts
          facts={[
            ["Gateway with the lease", connector.gateway_id ?? <span className="faint">none</span>],
            ["Last failure", <Failure of={connector} />],
            ...(connector.without_account === 0
              ? []
              : [["Without an account", <WithoutAccount of={connector} />] as const]),
          ]}
        />
      </div>
      {releasing && <Release of={connector} onClose={() => setReleasing(false)} />}
    </Section>
  );
}

function NextAttempt({ at }: { at: number | null }) {
  const now = useNow();
  if (at === null) return <>no attempt is due</>;
  if (at <= now) return <>next attempt now</>;
  return (
    <>
      next attempt <Time at={at} />
    </>
  );
}

function Failure({ of: connector }: { of: Connector }) {
  if (connector.last_error === null)
    return <span className="faint">{connector.sent_at === null ? "none" : "none since the last push"}</span>;
  return (
    <>
      <Time at={connector.failed_at} />: {connector.last_error}
    </>
  );
}

function WithoutAccount({ of: connector }: { of: Connector }) {
  const many = connector.without_account;
  return (
    <>
      {count(many)} {many === 1 ? "tenant" : "tenants"} with usage that is not pushed.{" "}
      <Link to="/billing-profiles">Set the accounts in the billing profiles</Link>
    </>
  );
}

function Release({ of: connector, onClose }: { of: Connector; onClose: () => void }) {
  const release = useWrite(
    () => api.post("/v1/admin/connectors/{name}/release", { path: { name: connector.name } }),
    ["/v1/admin/connectors", "/v1/admin/audit_log"],
  );
  const system = connector.kind === null ? "the other system" : KINDS[connector.kind];
  return (
    <ConfirmDialog
      open
      onClose={onClose}
      title={`Release the stuck amounts of ${connector.name}?`}
      verb="Release"
      name={connector.name}
      action={async () => {
        const made = await release.mutateAsync();
        toast(`${connector.name} sends ${count(made.events)} events again.`);
      }}
    >
      {count(connector.stuck)} events are sent again with the same identifiers and amounts. First check that {system}{" "}
      does not have them: if it has forgotten the identifiers, it would count them twice.
    </ConfirmDialog>
  );
}
