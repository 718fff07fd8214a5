// Corrections: amounts beside usage, each with its reason, in the open month.
import { useState } from "react";
import { type BodyOf, type RowOf, api, useList, useMay, useSession, useWrite } from "../../api";
import {
  type Column,
  Copy,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Form,
  Id,
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
  numberOf,
  picosOf,
  toast,
  useForm,
  useView,
  fieldError,
} from "../../kit";
import { TenantName, TenantText } from "../parts/names";

type Correction = RowOf<"/v1/admin/corrections">;
type Body = BodyOf<"/v1/admin/corrections", "post">;

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
  const view = useView({ tenant: "", request_id: "", open: "", correct: "" });
  const { tenant, request_id } = view.values;
  const list = useList("/v1/admin/corrections", { query: { tenant, request_id } });
  const may = useMay()("billing:write");
  const bound = useSession().tenant !== null;
  const [making, setMaking] = useState(false);
  const make = may && (
    <button type="button" className="button button-main" onClick={() => setMaking(true)}>
      New correction
    </button>
  );
  const close = () => {
    setMaking(false);
    view.set({ correct: "" });
  };
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
            <p>A correction is added to the open month. Recorded usage never changes.</p>
          </EmptyState>
        }
      />
      <Dialog
        open={may && (making || view.values.correct !== "")}
        onClose={close}
        title="New correction"
        keep
        note="It is added to the open month permanently; another correction can reverse it. Budgets do not count it."
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
        ["Period", <Id value={of.period_id} />],
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

function NewCorrection({ request, onDone }: { request: string; onDone: () => void }) {
  const form = useForm({
    kind: request === "" ? "free" : "request",
    reason: "",
    request_id: request,
    meter: "output",
    tokens: "",
    tenant: "",
    picos: "",
    tier: "",
    model: "",
  });
  const make = useWrite((body: Body) => api.post("/v1/admin/corrections", { body }), CHANGED);
  const ofRequest = form.values.kind === "request";
  return (
    <Form
      form={form}
      verb="Add correction"
      onCancel={onDone}
      save={async (values) => {
        const reason = values.reason.trim();
        if (reason === "") throw fieldError("reason", "Enter a reason: it is on the invoice and in the audit log.");
        const made = await make.mutateAsync(
          ofRequest
            ? {
                reason,
                request_id: values.request_id.trim(),
                meter: values.meter as "output",
                tokens: numberOf(values.tokens, "tokens"),
              }
            : {
                reason,
                tenant: values.tenant,
                picos: amountOf(values.picos) as unknown as number,
                tier: values.tier.trim() || null,
                model: values.model.trim() || null,
              },
        );
        toast(`${decimal(made.picos)} ${made.currency} is added to the open month.`);
        onDone();
      }}
    >
      <SelectField
        form={form}
        name="kind"
        label="What it corrects"
        options={[
          ["free", "An amount for a tenant, for example a credit"],
          ["request", "The tokens of one request, at their price"],
        ]}
      />
      {ofRequest ? (
        <>
          <TextField form={form} name="request_id" label="Request" mono placeholder="req_…" />
          <div className="field-row">
            <SelectField
              form={form}
              name="meter"
              label="Meter"
              options={["output", "input", ["cached_input", "cached input"]]}
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
          <LookupField form={form} name="tenant" label="Tenant" control={(props) => <TenantLookup {...props} />} />
          <TextField
            form={form}
            name="picos"
            label="Amount"
            type="number"
            hint="In the tenant’s currency, up to twelve places. A negative amount is a credit: −25.00"
          />
          <div className="field-row">
            <TextField form={form} name="tier" label="Tier" optional hint="The tier whose margin it counts in." />
            <TextField form={form} name="model" label="Model" optional mono />
          </div>
        </>
      )}
      <TextArea form={form} name="reason" label="Reason" rows={2} />
    </Form>
  );
}

function amountOf(text: string): bigint {
  const picos = picosOf(text);
  if (picos === null)
    throw fieldError("picos", `'${text}' is not an amount: digits, a point, and at most twelve decimal places.`);
  return picos;
}
