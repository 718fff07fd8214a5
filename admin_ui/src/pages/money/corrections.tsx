// Corrections: credits, charges and corrected requests, each with its reason, in the month that it corrects.
import { useState } from "react";
import { type BodyOf, type RowOf, api, useGet, useList, useMay, useSession, useWrite } from "../../api";
import {
  type Column,
  Copy,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Form,
  Id,
  Link,
  LookupField,
  LookupFilter,
  Money,
  SelectField,
  ShortId,
  TenantLookup,
  TextArea,
  TextField,
  TextFilter,
  Time,
  decimal,
  iso,
  moment,
  numberOf,
  picosOf,
  place,
  toast,
  useForm,
  useGo,
  useNow,
  useView,
  fieldError,
} from "../../kit";
import { TenantName, TenantText, useModelNames, useTierNames } from "../parts/names";

type Correction = RowOf<"/v1/admin/corrections">;
type Body = BodyOf<"/v1/admin/corrections", "post">;
type CreditBody = BodyOf<"/v1/admin/credits", "post">;

const CHANGED = [
  "/v1/admin/corrections",
  "/v1/admin/requests",
  "/v1/organization",
  "/v1/admin/audit_log",
  "/v1/admin/margins",
];

const COLUMNS: readonly Column<Correction>[] = [
  { id: "tenant", header: "Tenant", cell: (one) => <TenantText id={one.tenant_id} />, csv: (one) => one.tenant_id },
  {
    id: "amount",
    header: "Amount",
    end: true,
    cell: (one) => <Money picos={one.picos} currency={one.currency} />,
    csv: (one) => decimal(one.picos, false).replace("−", "-"),
  },
  {
    id: "month",
    header: "Month",
    cell: (one) => <span className="num">{one.month}</span>,
    csv: (one) => one.month,
  },
  {
    id: "number",
    header: "Credit note",
    cell: (one) =>
      one.number === null ? (
        <span className="faint">–</span>
      ) : (
        <Link to={place("/billing/credits", one.id)} className="num">
          {one.number}
        </Link>
      ),
    csv: (one) => one.number,
  },
  { id: "reason", header: "Reason", cell: (one) => one.reason, csv: (one) => one.reason },
  {
    id: "of",
    header: "Request",
    cell: (one) => (one.request_id === null ? <span className="faint">none</span> : <ShortId value={one.request_id} />),
    csv: (one) => one.request_id,
  },
  { id: "actor", header: "By", wide: true, cell: (one) => <ShortId value={one.actor} />, csv: (one) => one.actor },
  { id: "made", header: "Created", cell: (one) => <Time at={one.created_at} />, csv: (one) => iso(one.created_at) },
];

export function Corrections() {
  const view = useView({ tenant: "", request_id: "", open: "", correct: "", new: "" });
  const { tenant, request_id } = view.values;
  const list = useList("/v1/admin/corrections", { query: { tenant, request_id } });
  const may = useMay()("billing:write");
  const bound = useSession().tenant !== null;
  const make = may && (
    <button type="button" className="button button-main" onClick={() => view.set({ new: "1" })}>
      New correction
    </button>
  );
  const close = () => view.set({ correct: "", new: "" });
  return (
    <>
      <DataTable
        label="Corrections"
        list={list}
        columns={COLUMNS}
        id={(one) => one.id}
        view={view}
        csv
        detail={(one) => <More of={one} />}
        filters={
          <>
            {!bound && (
              <LookupFilter label="Tenant">
                <TenantLookup value={tenant} onChange={(next) => view.set({ tenant: next })} />
              </LookupFilter>
            )}
            <TextFilter label="Request" view={view} name="request_id" />
            {make}
          </>
        }
        empty={
          <EmptyState title="No corrections">
            <p>A correction is added to its month while that month is open. Recorded usage never changes.</p>
          </EmptyState>
        }
      />
      <Dialog
        open={may && (view.values.new === "1" || view.values.correct !== "")}
        onClose={close}
        title="New correction"
        keep
        note="A request’s correction counts in the month of the request while that month is open, or else in the current month. Budgets do not count corrections."
      >
        <NewCorrection request={view.values.correct} onDone={close} />
      </Dialog>
    </>
  );
}

function More({ of }: { of: Correction }) {
  const names = [
    ["Project", of.project_id],
    ["Key", of.key_id],
    ["Model", of.model],
    ["Adapter", of.adapter],
    ["Tier", of.tier],
    ["Meter", of.meter],
  ] as const;
  return (
    <Facts
      facts={[
        ["Correction", <Id value={of.id} />],
        ["Tenant", <TenantName id={of.tenant_id} />],
        ["Month", <span className="num">{of.month}</span>],
        ...(of.request_id === null
          ? []
          : [
              [
                "Request",
                <>
                  <code>{of.request_id}</code> <Copy text={of.request_id} />
                </>,
              ] as const,
            ]),
        ...(of.tokens === 0 ? [] : [["Tokens", <span className="num">{of.tokens}</span>] as const]),
        ...names.filter(([, value]) => value !== null).map(([name, value]) => [name, <code>{value}</code>] as const),
      ]}
    />
  );
}

type Kind = "credit" | "charge" | "request";

/** The question before a correction is made: a sentence, and the write. */
interface Asked {
  sentence: string;
  make: () => Promise<void>;
}

function NewCorrection({ request, onDone }: { request: string; onDone: () => void }) {
  const form = useForm({
    kind: request === "" ? "credit" : "request",
    reason: "",
    request_id: request,
    meter: "output",
    tokens: "",
    tenant: "",
    picos: "",
    month: "",
    tier: "",
    model: "",
  });
  const { values } = form;
  const [asked, setAsked] = useState<Asked | null>(null);
  const correct = useWrite((body: Body) => api.post("/v1/admin/corrections", { body }), CHANGED);
  const credit = useWrite((body: CreditBody) => api.post("/v1/admin/credits", { body }), CHANGED);
  const go = useGo();
  const owner = useOwner(values.tenant);
  const now = useNow();
  const current = owner === undefined ? null : moment(now, owner.time_zone, "day").slice(0, 7);
  const months = useOpenMonths(values.tenant, current);
  const [tiers, models] = [useTierNames(), useModelNames()];
  const kind = values.kind as Kind;
  const review = async () => {
    const reason = values.reason.trim();
    if (reason === "") throw fieldError("reason", "Enter a reason for the invoice and the audit log.");
    if (kind === "request") {
      const tokens = numberOf(values.tokens, "tokens");
      if (tokens === null) throw fieldError("tokens", "Enter the number of tokens to add, or a negative one.");
      const body: Body = {
        reason,
        request_id: values.request_id.trim(),
        meter: values.meter as "output",
        tokens,
      };
      const verb = tokens < 0 ? "fewer" : "more";
      setAsked({
        sentence: `Bill ${Math.abs(tokens)} ${verb} ${values.meter.replace("_", " ")} tokens of ${body.request_id}, at their price?`,
        make: async () => {
          const made = await correct.mutateAsync(body);
          toast(`${decimal(made.picos)} ${made.currency} is added to ${made.month ?? "the open month"}.`);
          onDone();
        },
      });
      return;
    }
    const picos = amountOf(values.picos);
    if (values.tenant === "") throw fieldError("tenant", "Choose a tenant.");
    const shared = {
      reason,
      tenant: values.tenant,
      picos: picos as unknown as number,
      month: values.month || null,
      tier: values.tier || null,
      model: values.model || null,
    };
    const what = `${decimal(picos)} ${owner?.currency ?? ""}`.trim();
    const month = values.month || (current ?? "the current month");
    setAsked({
      sentence:
        kind === "credit"
          ? `Credit ${values.tenant} with ${what} in ${month}? It lowers what the tenant owes. A credit above the usage of the month makes its invoice negative.`
          : `Charge ${values.tenant} ${what} in ${month}? It raises what the tenant owes.`,
      make: async () => {
        if (kind === "charge") {
          const made = await correct.mutateAsync(shared);
          toast(`${decimal(made.picos)} ${made.currency} is charged in ${made.month ?? "the open month"}.`);
          onDone();
          return;
        }
        const made = await credit.mutateAsync(shared);
        toast(`${decimal(picos)} ${made.currency} is credited: ${made.number}.`);
        onDone();
        go(place("/billing/credits", made.id));
      },
    });
  };
  if (asked !== null) return <Confirm asked={asked} back={() => setAsked(null)} />;
  return (
    <Form form={form} verb="Continue" onCancel={onDone} save={review}>
      <SelectField
        form={form}
        name="kind"
        label="Kind"
        options={[
          ["credit", "A credit: the tenant owes less"],
          ["charge", "A charge: the tenant owes more"],
          ["request", "The tokens of one request, at their price"],
        ]}
      />
      {kind === "request" ? (
        <>
          <TextField form={form} name="request_id" label="Request" mono placeholder="req_…" />
          <div className="field-row">
            <SelectField
              form={form}
              name="meter"
              label="Meter"
              options={["output", "input", ["cached_input", "cached input"], "embedding"]}
            />
            <TextField
              form={form}
              name="tokens"
              label="Tokens to add or remove"
              type="number"
              hint="A negative number removes tokens."
            />
          </div>
        </>
      ) : (
        <>
          <LookupField
            form={form}
            name="tenant"
            label="Tenant"
            control={({ onChange, ...props }) => (
              <TenantLookup
                {...props}
                onChange={(tenant) => {
                  form.set("month", ""); // the months are the tenant's
                  onChange(tenant);
                }}
              />
            )}
          />
          <div className="field-row">
            <TextField
              form={form}
              name="picos"
              label="Amount"
              type="number"
              hint={`In ${owner?.currency ?? "the tenant’s currency"}, above 0, up to twelve decimal places: 25.00`}
            />
            <SelectField
              form={form}
              name="month"
              label="Month"
              hint="An open month: closed invoices never change."
              options={[["", current === null ? "Current month" : `Current month, ${current}`], ...months]}
            />
          </div>
          <div className="field-row">
            <SelectField
              form={form}
              name="tier"
              label="Tier"
              optional
              hint="The tier in whose margin the correction counts."
              options={[["", "None"], ...tiers]}
            />
            <SelectField form={form} name="model" label="Model" optional options={[["", "None"], ...models]} />
          </div>
        </>
      )}
      <TextArea form={form} name="reason" label="Reason" rows={2} />
    </Form>
  );
}

/** A tenant by its slug; undefined until it is loaded. */
function useOwner(slug: string) {
  const found = useGet("/v1/admin/tenants/{tenant_id}", { path: { tenant_id: slug || "-" } }, { enabled: slug !== "" });
  return found.data?.slug === slug ? found.data : undefined; // else of the tenant chosen before
}

/** The open months of a tenant before its `current` month; of no tenant: none. */
function useOpenMonths(tenant: string, current: string | null): string[] {
  const list = useList(
    "/v1/admin/periods",
    { query: { tenant, state: "open" } },
    { limit: 100, enabled: tenant !== "" },
  );
  // A busy list shows the months of the tenant chosen before.
  const rows = tenant === "" || list.busy ? [] : list.rows;
  return [...new Set(rows.map((one) => one.month))].filter((one) => one !== "" && one !== current);
}

function Confirm({ asked, back }: { asked: Asked; back: () => void }) {
  const form = useForm({});
  return (
    <Form form={form} verb="Confirm permanently" onCancel={back} save={asked.make}>
      <p>
        <b>{asked.sentence}</b>
      </p>
      <p className="note">A correction is permanent; another correction can reverse it.</p>
    </Form>
  );
}

function amountOf(text: string): bigint {
  const picos = picosOf(text);
  if (picos === null)
    throw fieldError("picos", `'${text}' is not an amount: digits, a point, and at most twelve decimal places.`);
  if (picos <= 0n) throw fieldError("picos", "Enter an amount above 0: a credit and a charge are both positive.");
  return picos;
}
