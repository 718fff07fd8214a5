// Alerts (thresholds that budgets reached), and the webhooks that receive them and the deployment's problems.
import { useState } from "react";
import { type RowOf, api, useList, useMay, useSession, useWrite } from "../../api";
import {
  Badge,
  type Column,
  ConfirmDialog,
  CheckField,
  DataTable,
  Dialog,
  EmptyState,
  Form,
  LookupField,
  LookupFilter,
  Meter,
  SelectField,
  TenantLookup,
  TextField,
  Time,
  iso,
  useForm,
  useView,
} from "../../kit";
import { ScopeOf, useSay } from "./budgetParts";
import { TenantName } from "../parts/names";
import { SecretDialog, type Shown } from "../parts/secret";

type Alert = RowOf<"/v1/admin/alerts">;
type Delivery = Alert["deliveries"][number];
type Webhook = RowOf<"/v1/admin/webhooks">;

const WEBHOOKS = ["/v1/admin/webhooks", "/v1/admin/audit_log"];
const TONES = { delivered: "good", pending: "warn", failed: "bad" } as const;

function DeliveryStates({ of: deliveries }: { of: readonly Delivery[] }) {
  const counts = (["failed", "pending", "delivered"] as const)
    .map((state) => [state, deliveries.filter((one) => one.state === state).length] as const)
    .filter(([, many]) => many > 0);
  if (counts.length === 0) return <span className="faint">no webhook</span>;
  return (
    <span className="row">
      {counts.map(([state, many]) => (
        <Badge key={state} tone={TONES[state]}>
          {many > 1 ? `${many} ${state}` : state}
        </Badge>
      ))}
    </span>
  );
}

export function Alerts() {
  const view = useView({ tenant: "", open: "" });
  const list = useList("/v1/admin/alerts", { query: { tenant: view.values.tenant } }, { everyMs: 15_000 });
  const webhooks = useList("/v1/admin/webhooks", {}, { limit: 500 });
  const say = useSay();
  const columns: readonly Column<Alert>[] = [
    {
      id: "at",
      header: "When",
      cell: (alert) => <Time at={alert.crossed_at} absolute detail="minute" />,
      csv: (alert) => iso(alert.crossed_at),
    },
    { id: "of", header: "Budget", cell: (alert) => <ScopeOf of={alert} />, csv: (alert) => alert.scope_id },
    {
      id: "threshold",
      header: "Reached",
      end: true,
      cell: (alert) => <Badge tone={alert.threshold >= 100 ? "bad" : "warn"}>{alert.threshold} %</Badge>,
      csv: (alert) => alert.threshold,
    },
    {
      id: "budget",
      header: "Use of limit",
      wide: true,
      cell: (alert) => (
        <Meter
          posted={alert.used}
          held={0}
          limit={alert.limit_amount}
          say={(amount) => say(alert, amount, true)}
          label={`The ${alert.period} budget at that time`}
        />
      ),
      csv: (alert) => alert.used,
    },
    {
      id: "each",
      header: "Window",
      cell: (alert) => (
        <span>
          {alert.period}{" "}
          <span className="faint">
            {alert.unit}, {alert.kind}
          </span>
        </span>
      ),
      csv: (alert) => alert.period,
    },
    { id: "told", header: "Deliveries", cell: (alert) => <DeliveryStates of={alert.deliveries} /> },
  ];
  return (
    <DataTable
      label="Alerts"
      list={list}
      columns={columns}
      id={(alert) => alert.id}
      view={view}
      csv
      filters={
        <LookupFilter label="Tenant">
          <TenantLookup value={view.values.tenant} onChange={(tenant) => view.set({ tenant })} />
        </LookupFilter>
      }
      detail={(alert) => <Deliveries of={alert.deliveries} webhooks={webhooks.rows} />}
      empty={
        <EmptyState title="No alerts">
          <p>Each threshold of a budget raises one alert per window.</p>
        </EmptyState>
      }
    />
  );
}

function Deliveries({ of: deliveries, webhooks }: { of: readonly Delivery[]; webhooks: readonly Webhook[] }) {
  if (deliveries.length === 0) return <p className="faint">No webhook was configured for it.</p>;
  return (
    <div className="change">
      <table className="table table-small">
        <caption className="sr-only">Deliveries</caption>
        <thead>
          <tr>
            <th scope="col">To</th>
            <th scope="col">State</th>
            <th scope="col">Attempts</th>
            <th scope="col">When</th>
            <th scope="col">Error</th>
          </tr>
        </thead>
        <tbody>
          {deliveries.map((one) => (
            <tr key={one.webhook_id}>
              <td>
                <code>{webhooks.find((webhook) => webhook.id === one.webhook_id)?.url ?? one.webhook_id}</code>
              </td>
              <td>
                <Badge tone={TONES[one.state]}>{one.state}</Badge>
              </td>
              <td className="num">{one.attempts}</td>
              <td>
                {one.delivered_at !== null ? (
                  <Time at={one.delivered_at} />
                ) : one.next_attempt_at !== null ? (
                  <>
                    retry <Time at={one.next_attempt_at} />
                  </>
                ) : (
                  "–"
                )}
              </td>
              <td>{one.last_error ?? <span className="faint">–</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface Tested {
  webhook: Webhook;
  result: { delivered: boolean; status: number | null; error: string | null; duration_s: number };
}

function TestResult({ of: { webhook, result } }: { of: Tested }) {
  return (
    <p>
      <Badge tone={result.delivered ? "good" : "bad"}>{result.delivered ? "delivered" : "failed"}</Badge> Test event to{" "}
      <code>{webhook.url}</code>:{" "}
      {result.error ?? `the server answered ${result.status} after ${result.duration_s.toFixed(2)} s`}
    </p>
  );
}

export function Webhooks() {
  const list = useList("/v1/admin/webhooks");
  const alerts = useList("/v1/admin/alerts", {}, { limit: 200, everyMs: 15_000 });
  const may = useMay()("alerts:write");
  const [creating, setCreating] = useState(false);
  const [removed, setRemoved] = useState<Webhook | null>(null);
  const [shown, setShown] = useState<Shown | null>(null);
  const remove = useWrite(
    (webhook_id: string) => api.delete("/v1/admin/webhooks/{webhook_id}", { path: { webhook_id } }),
    WEBHOOKS,
  );
  const [tested, setTested] = useState<Tested | null>(null);
  const test = useWrite(async (webhook: Webhook) => {
    const result = await api.post("/v1/admin/webhooks/{webhook_id}/test", { path: { webhook_id: webhook.id } });
    setTested({ webhook, result });
  }, WEBHOOKS);
  const pause = useWrite(
    ({ id, active }: Webhook) =>
      api.patch("/v1/admin/webhooks/{webhook_id}", { path: { webhook_id: id }, body: { active: !active } }),
    WEBHOOKS,
  );
  const failed = test.error ?? pause.error;
  const lastOf = (webhook: Webhook) =>
    alerts.rows
      .flatMap((alert) =>
        alert.deliveries.filter((one) => one.webhook_id === webhook.id).map((delivery) => ({ alert, delivery })),
      )
      .slice(0, 5);
  const columns: Column<Webhook>[] = [
    { id: "url", header: "URL", cell: (webhook) => <code>{webhook.url}</code>, csv: (webhook) => webhook.url },
    {
      id: "tenant",
      header: "Alerts of",
      cell: (webhook) => (webhook.tenant_id === null ? "all tenants" : <TenantName id={webhook.tenant_id} />),
      csv: (webhook) => webhook.tenant_id,
    },
    {
      id: "events",
      header: "Events",
      cell: (webhook) => (
        <span>
          {webhook.events.join(", ")} <span className="faint">{webhook.format}</span>{" "}
          {!webhook.active && <Badge tone="warn">paused</Badge>}
        </span>
      ),
      csv: (webhook) => webhook.events.join(" "),
    },
    { id: "last", header: "Last alerts", cell: (webhook) => <LastDeliveries of={lastOf(webhook)} /> },
    {
      id: "created",
      header: "Created",
      wide: true,
      cell: (webhook) => <Time at={webhook.created_at} />,
      csv: (webhook) => iso(webhook.created_at),
    },
  ];
  if (may)
    columns.push({
      id: "do",
      header: "Change",
      end: true,
      cell: (webhook) => (
        <span className="row">
          <button
            type="button"
            className="button button-quiet"
            aria-label={`Send a test event to ${webhook.url}`}
            disabled={test.isPending}
            onClick={() => test.mutate(webhook)}
          >
            Test
          </button>
          <button
            type="button"
            className="button button-quiet"
            aria-label={`${webhook.active ? "Pause" : "Resume"} ${webhook.url}`}
            disabled={pause.isPending}
            onClick={() => pause.mutate(webhook)}
          >
            {webhook.active ? "Pause" : "Resume"}
          </button>
          <button
            type="button"
            className="button button-quiet"
            aria-label={`Remove ${webhook.url}`}
            onClick={() => setRemoved(webhook)}
          >
            Remove
          </button>
        </span>
      ),
    });
  return (
    <>
      <div role="status">
        {failed !== null && <p className="field-error">{failed.message}</p>}
        {failed === null && tested !== null && <TestResult of={tested} />}
      </div>
      <DataTable
        label="Webhooks"
        list={list}
        columns={columns}
        id={(webhook) => webhook.id}
        csv
        filters={
          may && (
            <button type="button" className="button button-main" onClick={() => setCreating(true)}>
              New webhook
            </button>
          )
        }
        empty={
          <EmptyState title="No webhooks">
            <p>A webhook receives each alert, signed. A delivery is retried until the webhook answers with success.</p>
          </EmptyState>
        }
      />
      <Dialog open={creating} onClose={() => setCreating(false)} title="New webhook" keep>
        <WebhookForm
          onCancel={() => setCreating(false)}
          onDone={(made) => {
            setCreating(false);
            setShown(made);
          }}
        />
      </Dialog>
      <ConfirmDialog
        open={removed !== null}
        onClose={() => setRemoved(null)}
        title="Remove this webhook?"
        verb="Remove"
        action={async () => removed !== null && remove.mutateAsync(removed.id)}
      >
        {removed !== null && (
          <>
            <code>{removed.url}</code> receives no more alerts, not even pending ones. Its secret becomes invalid.
          </>
        )}
      </ConfirmDialog>
      <SecretDialog shown={shown} onStored={() => setShown(null)} />
    </>
  );
}

function LastDeliveries({ of: last }: { of: readonly { alert: Alert; delivery: Delivery }[] }) {
  if (last.length === 0) return <span className="faint">none yet</span>;
  const failed = last.find(({ delivery }) => delivery.last_error !== null && delivery.state !== "delivered");
  return (
    <div className="deliveries">
      {last.map(({ alert, delivery }) => (
        <span key={alert.id} className="row">
          <Badge tone={TONES[delivery.state]}>{delivery.state}</Badge>
          <span className="faint">
            {alert.threshold} %, <Time at={delivery.delivered_at ?? alert.crossed_at} />
          </span>
        </span>
      ))}
      {failed !== undefined && <span className="field-error">{failed.delivery.last_error}</span>}
    </div>
  );
}

function WebhookForm({ onDone, onCancel }: { onDone: (shown: Shown) => void; onCancel: () => void }) {
  const own = useSession().tenant;
  const form = useForm({
    url: "",
    tenant: own?.slug ?? "",
    format: "laneway",
    budgets: true,
    problems: false,
    batches: false,
    routing_key: "",
  });
  const { values } = form;
  const forProblems = own === null && values.tenant === "";
  const create = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/webhooks">>[1]["body"]) => api.post("/v1/admin/webhooks", { body }),
    WEBHOOKS,
  );
  return (
    <Form
      form={form}
      verb="Create webhook"
      onCancel={onCancel}
      save={async (values) => {
        const made = await create.mutateAsync({
          url: values.url.trim(),
          tenant: values.tenant === "" ? null : values.tenant,
          format: values.format,
          events: [
            ...(values.budgets ? ["budgets"] : []),
            ...(values.problems && forProblems ? ["problems"] : []),
            ...(values.batches && values.format !== "pagerduty" ? ["batches"] : []),
          ],
          routing_key: values.format === "pagerduty" ? values.routing_key.trim() : null,
        });
        onDone({
          title: "The webhook's secret",
          secret: made.secret,
          note: `Deliveries to ${made.url} are signed with it. It is shown only once.`,
        });
      }}
    >
      <TextField
        form={form}
        name="url"
        label="URL"
        type="url"
        mono
        autoFocus
        placeholder="https://alerts.example.com/laneway"
      />
      {own === null && (
        <LookupField
          form={form}
          name="tenant"
          label="Tenant"
          optional
          hint="Blank: alerts of all tenants."
          control={(props) => <TenantLookup {...props} />}
        />
      )}
      <CheckField form={form} name="budgets" label="Alerts of budgets" />
      {forProblems && (
        <CheckField
          form={form}
          name="problems"
          label="Problems of the deployment"
          hint="A part of the page Health that is bad for a minute, and its resolution."
        />
      )}
      {values.format !== "pagerduty" && <CheckField form={form} name="batches" label="Ends of batches" />}
      <SelectField
        form={form}
        name="format"
        label="Format"
        options={[
          ["laneway", "Laneway, signed JSON"],
          ["slack", "Slack incoming webhook"],
          ["pagerduty", "PagerDuty Events API v2"],
        ]}
      />
      {values.format === "pagerduty" && (
        <TextField
          form={form}
          name="routing_key"
          label="Routing key"
          type="password"
          mono
          hint="The integration key of a PagerDuty service. It is stored encrypted and not shown again."
        />
      )}
    </Form>
  );
}
