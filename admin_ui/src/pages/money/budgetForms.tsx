// The forms of budgets and of rate limits.
import { type RowOf, api, useMay, useSession, useWrite } from "../../api";
import {
  CheckField,
  Form,
  LookupField,
  SelectField,
  TenantLookup,
  TextField,
  decimal,
  gather,
  numberOf,
  picosOf,
  required,
  toast,
  ungrouped,
  useForm,
  fieldError,
} from "../../kit";
import { BUDGETS, type Budget, ScopeOf } from "./budgetParts";
import { KeyLookup, ProjectLookup, useTenants } from "../parts/names";

type Limits = RowOf<"/v1/admin/limits">;

const SCOPES = [
  ["tenant", "the tenant"],
  ["project", "one of its projects"],
  ["key", "one of its keys"],
] as const;

/** "50, 80 100 %" as whole percentages. */
export function thresholdsOf(text: string): number[] {
  return text
    .split(/[\s,;%]+/)
    .filter(Boolean)
    .map((one) => {
      if (!/^\d+$/.test(one)) throw fieldError("thresholds", `'${one}' is not a whole percentage.`);
      return Number(one);
    });
}

function limitOf(text: string, money: boolean): bigint {
  const digits = ungrouped(text) ?? "";
  const amount = money ? picosOf(text) : /^\d+$/.test(digits) ? BigInt(digits) : null;
  if (amount === null)
    throw fieldError(
      "limit_amount",
      money ? `'${text}' is not an amount of money.` : `'${text}' is not a whole number of tokens.`,
    );
  return amount;
}

/** Creates a budget, or changes limit, kind and thresholds of the budget `of`. `tenant` and `key_id`: selected at first.
 */
export function BudgetForm({
  of: budget,
  tenant = "",
  key_id = "",
  onDone,
}: {
  of?: Budget;
  tenant?: string;
  key_id?: string;
  onDone: () => void;
}) {
  const tenants = useTenants();
  const own = useSession().tenant;
  const form = useForm({
    tenant: budget?.tenant_id ?? own?.slug ?? tenant,
    scope: budget?.scope ?? (key_id !== "" ? "key" : own === null ? "tenant" : "project"),
    project: "",
    key_id,
    unit: budget?.unit ?? "money",
    period: budget?.period ?? "month",
    kind: budget?.kind ?? "hard",
    limit_amount:
      budget === undefined ? "" : budget.unit === "money" ? decimal(budget.limit_amount) : String(budget.limit_amount),
    thresholds: budget?.thresholds.join(", ") ?? "80, 100",
    per_end_user: budget?.per_end_user ?? false,
  });
  const set = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/budgets">>[1]["body"]) => api.post("/v1/admin/budgets", { body }),
    BUDGETS,
  );
  const { values } = form;
  const money = values.unit === "money";
  const currency = [...tenants.values()].find(
    (one) => one.id === values.tenant || one.slug === values.tenant,
  )?.currency;
  return (
    <Form
      form={form}
      verb={budget === undefined ? "Set budget" : "Save"}
      onCancel={onDone}
      save={async () => {
        const { project, key_id, per_end_user } = values;
        const read = gather({
          tenant: () => required(values.tenant, "tenant", "Choose a tenant."),
          project: () =>
            values.scope === "project" ? required(budget?.scope_id ?? project, "project", "Choose a project.") : null,
          key_id: () =>
            values.scope === "key" ? required(budget?.scope_id ?? key_id, "key_id", "Choose a key.") : null,
          limit_amount: () => limitOf(values.limit_amount, money), // a bigint is sent exactly
          thresholds: () => (per_end_user ? null : thresholdsOf(values.thresholds)),
        });
        const kind = per_end_user ? null : values.kind;
        await set.mutateAsync({ unit: values.unit, period: values.period, kind, per_end_user, ...read });
        toast("The budget applies from the next request.");
        onDone();
      }}
    >
      {budget === undefined ? (
        <>
          <div className="field-row">
            {own === null && (
              <LookupField
                form={form}
                name="tenant"
                label="Tenant"
                control={(props) => (
                  <TenantLookup
                    {...props}
                    onChange={(slug) => {
                      form.set("tenant", slug);
                      form.set("project", "");
                      form.set("key_id", "");
                    }}
                  />
                )}
              />
            )}
            <SelectField
              form={form}
              name="scope"
              label="Scope"
              options={SCOPES.filter(([scope]) => own === null || scope !== "tenant")}
            />
          </div>
          {values.scope === "project" && values.tenant !== "" && (
            <LookupField
              form={form}
              name="project"
              label="Project"
              control={(props) => <ProjectLookup {...props} tenant={values.tenant} />}
            />
          )}
          {values.scope === "key" && values.tenant !== "" && (
            <LookupField
              form={form}
              name="key_id"
              label="Key"
              control={(props) => <KeyLookup {...props} tenant={values.tenant} status="active" />}
            />
          )}
          <div className="field-row">
            <SelectField
              form={form}
              name="unit"
              label="Unit"
              options={[
                ["money", "money"],
                ["tokens", "tokens"],
              ]}
            />
            <SelectField
              form={form}
              name="period"
              label="Window"
              options={[
                ["day", "day"],
                ["month", "month"],
                ["total", "all time"],
              ]}
              hint="Days and months start at midnight in the tenant's time zone."
            />
          </div>
          <CheckField
            form={form}
            name="per_end_user"
            label="For each end user"
            hint="The limit of each end user that requests name. It does not limit requests without an end user."
          />
        </>
      ) : (
        <p className="note">
          Budget of {budget.per_end_user && "each end user of "}
          <ScopeOf of={budget} />, {budget.period === "total" ? "all time" : `per ${budget.period}`}, in {budget.unit}.
        </p>
      )}
      <div className="field-row">
        <TextField
          form={form}
          name="limit_amount"
          label="Limit"
          type="number"
          unit={money ? (currency ?? "") : "tokens"}
          autoFocus={budget !== undefined}
          placeholder={money ? "500.00" : "1,000,000"}
        />
        {!values.per_end_user && (
          <SelectField
            form={form}
            name="kind"
            label="Kind"
            options={[
              ["hard", "hard: refuses requests over the limit"],
              ["soft", "soft: only raises alerts"],
            ]}
          />
        )}
      </div>
      {!values.per_end_user && (
        <TextField
          form={form}
          name="thresholds"
          label="Alerts at"
          unit="%"
          placeholder="80, 100"
          hint="Whole percentages of the limit. Each threshold raises one alert per window, sent to the webhooks."
        />
      )}
    </Form>
  );
}

export const LIMITS = ["/v1/admin/limits", "/v1/admin/audit_log"];

/** Sets the rate limits of a tenant or one of its keys, and the quotas of a tenant; blank: the default in
 * laneway.toml. `tenant` and `key_id`: selected at first. */
export function LimitsForm({
  of: limits,
  tenant = "",
  key_id = "",
  onDone,
}: {
  of?: Limits;
  tenant?: string;
  key_id?: string;
  onDone: () => void;
}) {
  const own = useSession().tenant;
  const mayKeys = useMay()("keys:read");
  const text = (value: number | null | undefined) => value?.toString() ?? "";
  const form = useForm({
    tenant: limits?.tenant_id ?? own?.slug ?? tenant,
    of_key: limits?.scope === "key" || key_id !== "" || own !== null,
    key_id: limits?.scope === "key" ? limits.subject_id : key_id,
    requests_per_minute: text(limits?.requests_per_minute),
    tokens_per_minute: text(limits?.tokens_per_minute),
    concurrency: text(limits?.concurrency),
    files: text(limits?.files),
    total_file_bytes: text(limits?.total_file_bytes),
    batches: text(limits?.batches),
    enqueued_tokens: text(limits?.enqueued_tokens),
  });
  const set = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/limits">>[1]["body"]) => api.post("/v1/admin/limits", { body }),
    LIMITS,
  );
  return (
    <Form
      form={form}
      verb="Set limits"
      onCancel={onDone}
      save={async (values) => {
        const quota = (name: "files" | "total_file_bytes" | "batches" | "enqueued_tokens") =>
          values.of_key ? null : numberOf(values[name], name);
        const read = gather({
          tenant: () => required(values.tenant, "tenant", "Choose a tenant."),
          key_id: () => (values.of_key ? required(values.key_id, "key_id", "Choose a key.") : null),
          requests_per_minute: () => numberOf(values.requests_per_minute, "requests_per_minute"),
          tokens_per_minute: () => numberOf(values.tokens_per_minute, "tokens_per_minute"),
          concurrency: () => numberOf(values.concurrency, "concurrency"),
          files: () => quota("files"),
          total_file_bytes: () => quota("total_file_bytes"),
          batches: () => quota("batches"),
          enqueued_tokens: () => quota("enqueued_tokens"),
        });
        await set.mutateAsync(read);
        toast("Every gateway applies the limits within a second.");
        onDone();
      }}
    >
      {limits === undefined && (
        <>
          {own === null && (
            <LookupField
              form={form}
              name="tenant"
              label="Tenant"
              control={(props) => (
                <TenantLookup
                  {...props}
                  onChange={(slug) => {
                    form.set("tenant", slug);
                    form.set("key_id", "");
                  }}
                />
              )}
            />
          )}
          {mayKeys && own === null && <CheckField form={form} name="of_key" label="For one key only" />}
          {form.values.of_key && form.values.tenant !== "" && (
            <LookupField
              form={form}
              name="key_id"
              label="Key"
              control={(props) => <KeyLookup {...props} tenant={form.values.tenant} status="active" />}
            />
          )}
        </>
      )}
      <div className="field-row">
        <TextField form={form} name="requests_per_minute" label="Requests per minute" type="number" optional />
        <TextField form={form} name="tokens_per_minute" label="Tokens per minute" type="number" optional />
        <TextField
          form={form}
          name="concurrency"
          label="Concurrent requests"
          type="number"
          optional
          hint="Requests in flight."
        />
      </div>
      {!form.values.of_key && (
        <div className="field-row">
          <TextField form={form} name="files" label="Files" type="number" optional />
          <TextField form={form} name="total_file_bytes" label="Bytes of files" type="number" optional />
          <TextField form={form} name="batches" label="Unended batches" type="number" optional />
          <TextField form={form} name="enqueued_tokens" label="Enqueued tokens" type="number" optional />
        </div>
      )}
      <p className="hint">
        Blank: the default in laneway.toml, [limits] for a key; [tenant_limits], [files] and [batches] for a tenant.
      </p>
    </Form>
  );
}
