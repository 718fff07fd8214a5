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
  numberOf,
  picosOf,
  toast,
  ungrouped,
  useForm,
  wrong,
} from "../../kit";
import { BUDGETS, type Budget, ScopeOf } from "./budgetParts";
import { KeyLookup, ProjectLookup, useTenants } from "../parts/names";

type Limits = RowOf<"/v1/admin/limits">;

const SCOPES = [
  ["tenant", "the tenant"],
  ["project", "a project of it"],
  ["key", "a key of it"],
] as const;

/** "50, 80 100 %" as whole percentages. */
export function thresholdsOf(text: string): number[] {
  return text
    .split(/[\s,;%]+/)
    .filter(Boolean)
    .map((one) => {
      if (!/^\d+$/.test(one)) throw wrong("thresholds", `'${one}' is no whole percentage.`);
      return Number(one);
    });
}

function limitOf(text: string, money: boolean): bigint {
  const digits = ungrouped(text) ?? "";
  const amount = money ? picosOf(text) : /^\d+$/.test(digits) ? BigInt(digits) : null;
  if (amount === null)
    throw wrong("limit_amount", money ? `'${text}' is no amount of money.` : `'${text}' is no whole number of tokens.`);
  return amount;
}

/** Sets a budget: a new one, or with `of` that one's limit, kind and thresholds. `tenant`: whose at first. */
export function BudgetForm({ of: budget, tenant = "", onDone }: { of?: Budget; tenant?: string; onDone: () => void }) {
  const tenants = useTenants();
  const own = useSession().tenant;
  const form = useForm({
    tenant: budget?.tenant_id ?? own?.slug ?? tenant,
    scope: budget?.scope ?? (own === null ? "tenant" : "project"),
    project: "",
    key_id: "",
    unit: budget?.unit ?? "money",
    period: budget?.period ?? "month",
    kind: budget?.kind ?? "hard",
    limit_amount:
      budget === undefined ? "" : budget.unit === "money" ? decimal(budget.limit_amount) : String(budget.limit_amount),
    thresholds: budget?.thresholds.join(", ") ?? "80, 100",
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
        if (values.tenant === "") throw wrong("tenant", "Whose budget it is must be said.");
        if (budget === undefined && values.scope === "project" && values.project === "")
          throw wrong("project", "Which project's it is must be said.");
        if (budget === undefined && values.scope === "key" && values.key_id === "")
          throw wrong("key_id", "Which key's it is must be said.");
        await set.mutateAsync({
          tenant: values.tenant,
          unit: values.unit,
          period: values.period,
          kind: values.kind,
          limit_amount: limitOf(values.limit_amount, money), // exact: written as the integer it is
          thresholds: thresholdsOf(values.thresholds),
          project: values.scope === "project" ? (budget?.scope_id ?? values.project) : null,
          key_id: values.scope === "key" ? (budget?.scope_id ?? values.key_id) : null,
        });
        toast("The budget counts from the very next request.");
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
              label="Of"
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
              label="In"
              options={[
                ["money", "money"],
                ["tokens", "tokens"],
              ]}
            />
            <SelectField
              form={form}
              name="period"
              label="Each"
              options={[
                ["day", "day"],
                ["month", "month"],
                ["total", "no window: in total"],
              ]}
              hint="Days and months begin at the tenant's midnight."
            />
          </div>
        </>
      ) : (
        <p className="note">
          Of <ScopeOf of={budget} />, {budget.period === "total" ? "in total" : `each ${budget.period}`}, in{" "}
          {budget.unit}.
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
        <SelectField
          form={form}
          name="kind"
          label="Kind"
          options={[
            ["hard", "hard: refuses what is over"],
            ["soft", "soft: only tells"],
          ]}
        />
      </div>
      <TextField
        form={form}
        name="thresholds"
        label="Alerts at"
        unit="%"
        placeholder="80, 100"
        hint="Whole percentages of the limit. Each window tells each of them once, to the webhooks."
      />
    </Form>
  );
}

export const LIMITS = ["/v1/admin/limits", "/v1/admin/audit_log"];
const LIMIT_FIELDS = ["requests_per_minute", "tokens_per_minute", "concurrency"] as const;

/** Sets what a tenant or one of its keys may do in a minute and at once; blank: what laneway.toml says. */
export function LimitsForm({ of: limits, tenant = "", onDone }: { of?: Limits; tenant?: string; onDone: () => void }) {
  const own = useSession().tenant;
  const mayKeys = useMay()("keys:read");
  const text = (value: number | null | undefined) => value?.toString() ?? "";
  const form = useForm({
    tenant: limits?.tenant_id ?? own?.slug ?? tenant,
    of_key: limits?.scope === "key" || own !== null,
    key_id: limits?.scope === "key" ? limits.subject_id : "",
    requests_per_minute: text(limits?.requests_per_minute),
    tokens_per_minute: text(limits?.tokens_per_minute),
    concurrency: text(limits?.concurrency),
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
        if (values.tenant === "") throw wrong("tenant", "Whose limits they are must be said.");
        if (values.of_key && values.key_id === "") throw wrong("key_id", "Which key's they are must be said.");
        const numbers = Object.fromEntries(LIMIT_FIELDS.map((name) => [name, numberOf(values[name], name)]));
        await set.mutateAsync({ tenant: values.tenant, key_id: values.of_key ? values.key_id : null, ...numbers });
        toast("Every gateway follows within a second.");
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
          {mayKeys && own === null && <CheckField form={form} name="of_key" label="Of one key of it" />}
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
        <TextField form={form} name="concurrency" label="At once" type="number" optional hint="Requests in flight." />
      </div>
      <p className="hint">Blank: what laneway.toml says, under [limits] of a key and [tenant_limits] of a tenant.</p>
    </Form>
  );
}
