// The forms of tenants and their projects.
import { NETWORKS_HINT, listOf, textsOf } from "./keyLimits";
import { type AnswerOf, type RowOf, api, useWrite } from "../../api";
import { CheckField, Form, SelectField, TextField, gather, numberOf, toast, useForm } from "../../kit";
import { CurrencyField, TierField, ZoneField } from "../parts/pickers";

const TENANTS = ["/v1/admin/tenants", "/v1/admin/audit_log"];
const PROJECTS = ["/v1/admin/projects", "/v1/admin/audit_log"];
type Tenant = AnswerOf<"/v1/admin/tenants/{tenant_id}">;
type Project = RowOf<"/v1/admin/projects">;

const MAX_TOKENS_HINT =
  "For requests without max_tokens, if their key and project set no default. Blank: the model's default.";
const WEIGHT_HINT =
  "Of two tenants with waiting requests in a tier, the one with twice the weight is served twice as much.";
const ZONE_HINT = "The days and months of the tenant's budgets start at midnight there.";
const DAY_S = 24 * 3600;
const STORE_HINT =
  "Responses of /v1/responses are stored encrypted, so that later turns can continue them. Empty: none is stored, and those stored already can no longer be read.";
const CHEAPEST_HINT =
  "Where an alias allows it, the cheapest model that can serve a request is chosen, regardless of the weights.";
const ON_BUDGET = [
  ["", "The gateways’ setting"],
  ["wait", "Wait for the budget, until the batch’s window ends"],
  ["fail", "Fail"],
] as const;
const TIER_HINT = "The highest tier that its keys may use.";

export function NewTenantForm({ onDone, onCancel }: { onDone: (slug: string) => void; onCancel: () => void }) {
  const form = useForm({
    slug: "",
    name: "",
    tier: "",
    currency: "USD",
    time_zone: "UTC",
    share_weight: "1",
    default_max_tokens: "",
  });
  const create = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/tenants">>[1]["body"]) => api.post("/v1/admin/tenants", { body }),
    TENANTS,
  );
  return (
    <Form
      form={form}
      verb="Create tenant"
      onCancel={onCancel}
      save={async (values) => {
        const numbers = gather({
          share_weight: () => numberOf(values.share_weight, "share_weight"),
          default_max_tokens: () => numberOf(values.default_max_tokens, "default_max_tokens"),
        });
        const made = await create.mutateAsync({
          slug: values.slug.trim(),
          name: values.name.trim() || null,
          tier: values.tier.trim(),
          currency: values.currency.trim(),
          time_zone: values.time_zone.trim(),
          ...numbers,
          share_weight: numbers.share_weight ?? 1,
        });
        toast(`Tenant ${made.slug} is created.`);
        onDone(made.slug);
      }}
    >
      <div className="field-row">
        <TextField
          form={form}
          name="slug"
          label="Slug"
          mono
          autoFocus
          hint="Its name in /t/<slug>/v1; it cannot be changed."
        />
        <TextField form={form} name="name" label="Name" optional />
      </div>
      <div className="field-row">
        <TierField form={form} hint={TIER_HINT} />
        <CurrencyField form={form} hint="The currency of the invoices. A currency cannot be changed." />
      </div>
      <div className="field-row">
        <ZoneField form={form} hint={ZONE_HINT} />
        <TextField form={form} name="share_weight" label="Share weight" type="number" hint={WEIGHT_HINT} />
      </div>
      <TextField
        form={form}
        name="default_max_tokens"
        label="Default max_tokens"
        type="number"
        unit="tokens"
        optional
        hint={MAX_TOKENS_HINT}
      />
    </Form>
  );
}

export function TenantForm({ tenant, onDone }: { tenant: Tenant; onDone: () => void }) {
  const form = useForm({
    name: tenant.name,
    tier: tenant.tier,
    time_zone: tenant.time_zone,
    share_weight: String(tenant.share_weight),
    default_max_tokens: tenant.default_max_tokens === null ? "" : String(tenant.default_max_tokens),
    cheapest: tenant.cheapest,
    store_days: tenant.store_responses_s === null ? "" : String(tenant.store_responses_s / DAY_S),
    allowed_ips: textsOf(tenant).allowed_ips,
    on_budget: tenant.on_budget ?? "",
  });
  const change = useTenantChange(tenant.id);
  return (
    <Form
      form={form}
      verb="Save"
      onCancel={onDone}
      save={async (values) => {
        const numbers = gather({
          share_weight: () => numberOf(values.share_weight, "share_weight"),
          default_max_tokens: () => numberOf(values.default_max_tokens, "default_max_tokens"),
          store_responses_s: () => secondsOf(values.store_days),
        });
        await change.mutateAsync({
          name: values.name.trim(),
          tier: values.tier.trim(),
          time_zone: values.time_zone.trim(),
          ...numbers,
          cheapest: values.cheapest,
          allowed_ips: listOf(values.allowed_ips),
          on_budget: values.on_budget === "" ? null : (values.on_budget as "wait" | "fail"),
        });
        toast("Saved.");
        onDone();
      }}
    >
      <div className="field-row">
        <TextField form={form} name="name" label="Name" autoFocus />
        <TierField form={form} hint={TIER_HINT} />
      </div>
      <div className="field-row">
        <ZoneField form={form} hint={<>{ZONE_HINT} A new zone starts new budget windows.</>} />
        <TextField form={form} name="share_weight" label="Share weight" type="number" hint={WEIGHT_HINT} />
      </div>
      <TextField
        form={form}
        name="default_max_tokens"
        label="Default max_tokens"
        type="number"
        unit="tokens"
        optional
        hint={MAX_TOKENS_HINT}
      />
      <CheckField
        form={form}
        name="cheapest"
        label="Use the cheapest model where an alias allows it"
        hint={CHEAPEST_HINT}
      />
      <TextField
        form={form}
        name="store_days"
        label="Store responses for"
        type="number"
        unit="days"
        optional
        hint={STORE_HINT}
      />
      <SelectField form={form} name="on_budget" label="Batch lines that no budget covers" options={ON_BUDGET} />
      <TextField form={form} name="allowed_ips" label="Addresses" mono optional hint={NETWORKS_HINT} />
    </Form>
  );
}

/** Seconds of a number of days; null: nothing is stored. */
function secondsOf(days: string): number | null {
  const number = numberOf(days, "store_days");
  return number === null ? null : Math.round(number * DAY_S);
}

/** Changes the given fields of a tenant. */
export function useTenantChange(tenant_id: string) {
  return useWrite(
    (body: Parameters<typeof api.patch<"/v1/admin/tenants/{tenant_id}">>[1]["body"]) =>
      api.patch("/v1/admin/tenants/{tenant_id}", { path: { tenant_id }, body }),
    TENANTS,
  );
}

/** Creates a project, or changes `project`. */
export function ProjectForm({
  tenant,
  project,
  onDone,
}: {
  tenant: string;
  project: Project | null;
  onDone: () => void;
}) {
  const form = useForm({
    name: project?.name ?? "",
    default_max_tokens: project?.default_max_tokens?.toString() ?? "",
  });
  const write = useWrite((body: { name: string; default_max_tokens: number | null }) => {
    if (project === null) return api.post("/v1/admin/projects", { body: { tenant, ...body } });
    const change = body.name === project.name ? { default_max_tokens: body.default_max_tokens } : body;
    return api.patch("/v1/admin/projects/{project_id}", { path: { project_id: project.id }, body: change });
  }, PROJECTS);
  return (
    <Form
      form={form}
      verb={project === null ? "Create project" : "Save"}
      onCancel={onDone}
      save={async (values) => {
        await write.mutateAsync({
          name: values.name.trim(),
          default_max_tokens: numberOf(values.default_max_tokens, "default_max_tokens"),
        });
        toast(project === null ? `Project ${values.name.trim()} is created.` : "Saved.");
        onDone();
      }}
    >
      <TextField form={form} name="name" label="Name" autoFocus />
      <TextField
        form={form}
        name="default_max_tokens"
        label="Default max_tokens"
        type="number"
        unit="tokens"
        optional
        hint="For requests without max_tokens, if their key sets no default."
      />
    </Form>
  );
}
