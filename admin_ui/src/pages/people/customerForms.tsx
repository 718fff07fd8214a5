// The forms of the New customer page. Each form saves one step.
import { useState } from "react";
import { type AnswerOf, type RowOf, api, useWrite } from "../../api";
import {
  Form,
  SelectField,
  TextField,
  fieldError,
  gather,
  numberOf,
  picosOf,
  required,
  toast,
  useForm,
} from "../../kit";
import { CurrencyField, TierField, ZoneField, useTierNames } from "../parts/pickers";
import type { NewSecret, Setup } from "./setup";

type Tenant = AnswerOf<"/v1/admin/tenants/{tenant_id}">;
type Project = RowOf<"/v1/admin/projects">;
const AUDIT = "/v1/admin/audit_log";

/** "Acme Rocket Co." as acme-rocket-co: 1 to 63 of a-z, 0-9 and inner hyphens. */
export function slugOf(name: string): string {
  return name
    .normalize("NFKD")
    .replaceAll(/[\u0300-\u036f]/g, "")
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .replace(/^-+/, "")
    .slice(0, 63)
    .replace(/-+$/, "");
}

export function TenantStep({ onDone, onCancel }: { onDone: (slug: string) => void; onCancel: () => void }) {
  const tiers = useTierNames();
  const plain = tiers?.includes("standard") ? "standard" : (tiers?.[0] ?? "");
  const form = useForm({ name: "", slug: "", tier: "", currency: "USD", time_zone: "UTC" });
  const [typed, setTyped] = useState(false); // the slug follows the name until it is edited
  const values = { ...form.values, tier: form.values.tier || plain };
  const shown = {
    ...form,
    values,
    set: (name: keyof typeof values, value: string) => {
      form.set(name, value);
      if (name === "slug") setTyped(true);
      if (name === "name" && !typed) form.set("slug", slugOf(value));
    },
  };
  const create = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/tenants">>[1]["body"]) => api.post("/v1/admin/tenants", { body }),
    ["/v1/admin/tenants", AUDIT],
  );
  return (
    <Form
      form={shown as typeof form}
      verb="Create tenant"
      onCancel={onCancel}
      save={async () => {
        const made = await create.mutateAsync({
          ...values,
          share_weight: 1,
          name: values.name.trim() || null,
          slug: values.slug.trim(),
        });
        onDone(made.slug);
      }}
    >
      <div className="field-row">
        <TextField form={shown as typeof form} name="name" label="Name" autoFocus placeholder="Acme Rockets" />
        <TextField
          form={shown as typeof form}
          name="slug"
          label="Slug"
          mono
          hint="The tenant's name in /t/<slug>/v1. A slug cannot be changed."
        />
      </div>
      <div className="field-row">
        <TierField form={shown} hint="The highest tier that the tenant's keys may use." />
        <CurrencyField form={form} hint="The currency of the invoices. A currency cannot be changed." />
        <ZoneField form={form} hint="The tenant's days and months start at midnight there." />
      </div>
    </Form>
  );
}

export function ProjectStep({ tenant, onSkip }: { tenant: string; onSkip: () => void }) {
  const form = useForm({ name: "" });
  const create = useWrite(
    (name: string) => api.post("/v1/admin/projects", { body: { tenant, name } }),
    ["/v1/admin/projects", AUDIT],
  );
  return (
    <Form
      form={form}
      verb="Create project"
      onCancel={onSkip}
      cancel="Use the default project"
      save={async ({ name }) => create.mutateAsync(name.trim())}
    >
      <TextField
        form={form}
        name="name"
        label="Name"
        autoFocus
        placeholder="production"
        hint="A project groups keys and can have its own budgets. The tenant already has the project “default”."
      />
    </Form>
  );
}

export function KeyStep({
  tenant,
  projects,
  onDone,
  onSkip,
}: {
  tenant: string;
  projects: readonly Project[];
  onDone: (secret: NewSecret) => void;
  onSkip?: () => void;
}) {
  const newest = [...projects].sort((a, b) => b.created_at - a.created_at).find((one) => one.name !== "default");
  const form = useForm({ name: "", project: newest?.id ?? "", tier: "" });
  const create = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/keys">>[1]["body"]) => api.post("/v1/admin/keys", { body }),
    ["/v1/admin/keys", AUDIT],
  );
  return (
    <Form
      form={form}
      verb="Create key"
      {...(onSkip === undefined ? {} : { onCancel: onSkip, cancel: "Skip" })}
      save={async (values) => {
        const made = await create.mutateAsync({
          tenant,
          name: required(values.name, "name", "Enter a name: who or what uses the key."),
          kind: "live",
          project: values.project || null,
          tier: values.tier || null,
        });
        onDone({ id: made.id, name: made.name, secret: made.secret, stored: false });
      }}
    >
      <div className="field-row">
        <TextField form={form} name="name" label="Name" autoFocus placeholder="search production" />
        <SelectField
          form={form}
          name="project"
          label="Project"
          options={[
            ...(projects.some((one) => one.name === "default") ? [] : [["", "default"] as const]),
            ...projects.map((one) => [one.id, one.name] as const),
          ]}
        />
        <TierField form={form} optional none="the tenant's" hint="At most the tenant's tier." />
      </div>
    </Form>
  );
}

/** Sets the filled fields. The form has no fields for a budget or limits that exist already. */
export function BudgetStep({ tenant, setup, onSkip }: { tenant: Tenant; setup: Setup; onSkip: () => void }) {
  const form = useForm({ limit_amount: "", kind: "hard", requests_per_minute: "", tokens_per_minute: "" });
  const budget = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/budgets">>[1]["body"]) => api.post("/v1/admin/budgets", { body }),
    ["/v1/admin/budgets", "/v1/admin/overview", AUDIT],
  );
  const limits = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/limits">>[1]["body"]) => api.post("/v1/admin/limits", { body }),
    ["/v1/admin/limits", AUDIT],
  );
  const [hasBudget, hasLimits] = [setup.budgets.length > 0, setup.limits.length > 0];
  return (
    <Form
      form={form}
      verb={hasBudget ? "Set limits" : hasLimits ? "Set budget" : "Set budget and limits"}
      onCancel={onSkip}
      cancel="Skip"
      save={async (values) => {
        const read = gather({
          limit_amount: () => amountOf(values.limit_amount),
          requests_per_minute: () => numberOf(values.requests_per_minute, "requests_per_minute"),
          tokens_per_minute: () => numberOf(values.tokens_per_minute, "tokens_per_minute"),
        });
        const { limit_amount, ...rates } = read;
        if (limit_amount !== null)
          await budget.mutateAsync({
            tenant: tenant.slug,
            unit: "money",
            period: "month",
            kind: values.kind as "hard",
            limit_amount: limit_amount, // a bigint is sent exactly
            per_end_user: false,
            thresholds: [80, 100],
          });
        if (Object.values(rates).some((rate) => rate !== null))
          await limits.mutateAsync({ tenant: tenant.slug, ...rates });
        toast("Saved. Every gateway applies it within a second.");
        onSkip(); // blank fields are not shown again
      }}
    >
      {!hasBudget && (
        <div className="field-row">
          <TextField
            form={form}
            name="limit_amount"
            label="Budget per month"
            type="number"
            unit={tenant.currency}
            optional
            autoFocus
            placeholder="50.00"
          />
          <SelectField
            form={form}
            name="kind"
            label="Over the budget"
            options={[
              ["hard", "requests are refused"],
              ["soft", "only alerts are raised"],
            ]}
          />
        </div>
      )}
      {!hasLimits && (
        <div className="field-row">
          <TextField
            form={form}
            name="requests_per_minute"
            label="Requests per minute"
            type="number"
            optional
            hint="Blank: the default in laneway.toml."
          />
          <TextField form={form} name="tokens_per_minute" label="Tokens per minute" type="number" optional />
        </div>
      )}
    </Form>
  );
}

/** Null if blank. */
function amountOf(text: string): bigint | null {
  if (text.trim() === "") return null;
  const picos = picosOf(text);
  if (picos === null) throw fieldError("limit_amount", `'${text}' is not an amount of money.`);
  return picos;
}
