// The forms of keys: create, edit, rotate. A new secret is passed on to be shown once.
import { type AnswerOf, type RowOf, api, useGet, useMay, useSession, useWrite } from "../../api";
import {
  Form,
  LookupField,
  SelectField,
  TenantLookup,
  TextField,
  gather,
  moment,
  numberOf,
  required,
  toast,
  useForm,
  useNow,
  useZone,
  fieldError,
} from "../../kit";
import { type LimitForm, LimitFields, limitsOf, textsOf } from "./keyLimits";
import { ProjectLookup } from "../parts/names";
import { TierField } from "../parts/pickers";
import { type Shown, curlOf } from "../parts/secret";

export type Key = RowOf<"/v1/admin/keys">;
type Made = AnswerOf<"/v1/admin/keys", "post">;
type Role = NonNullable<Key["role"]>;
const KEYS = ["/v1/admin/keys", "/v1/admin/audit_log", "/v1/admin/budgets"];

const ROLES_SAID: readonly (readonly [Role, string])[] = [
  ["read_only", "Read only: sees everything"],
  ["finance", "Finance: prices, budgets, billing, exports"],
  ["operator", "Operator: everything except prices and billing"],
  ["tenant_admin", "Tenant admin: one tenant only"],
  ["owner", "Owner: everything"],
];
/** The roles that each role may grant. The API enforces it; the form only offers these. */
const GRANTS: Record<Role, readonly Role[]> = {
  owner: ["owner", "operator", "finance", "tenant_admin", "read_only"],
  operator: ["operator", "tenant_admin", "read_only"],
  finance: [],
  tenant_admin: ["tenant_admin"],
  read_only: [],
};
const MAX_TOKENS_HINT = "For requests without max_tokens. Blank: the default of the project, the tenant or the model.";

/** The base model for an example request, if the role may list models. */
export function useExampleModel(): string | undefined {
  const may = useMay()("engine:read");
  return useGet("/v1/admin/models", undefined, { enabled: may }).data?.data.find((model) => model.state === "serving")
    ?.name;
}

function shownOf(made: Made, model: string | undefined): Shown {
  return {
    title: `The secret of ${made.name}`,
    secret: made.secret,
    note: "It is shown only once. Laneway stores only its hash.",
    example: {
      label: made.kind === "admin" ? "Sign in with it" : "Call with it",
      text: curlOf(made.kind, made.secret, model),
    },
  };
}

export function NewKeyForm({
  tenant,
  onDone,
  onCancel,
}: {
  tenant: string;
  onDone: (shown: Shown) => void;
  onCancel: () => void;
}) {
  const session = useSession();
  const model = useExampleModel();
  const own = session.tenant?.slug;
  const form = useForm({
    name: "",
    kind: "live",
    role: "read_only",
    tenant: own ?? tenant,
    project: "",
    tier: "",
    expires_at: "",
    default_max_tokens: "",
    ...textsOf({}),
  });
  const create = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/keys">>[1]["body"]) => api.post("/v1/admin/keys", { body }),
    KEYS,
  );
  const { values } = form;
  const roles = GRANTS[session.role];
  const admin = values.kind === "admin";
  const role = admin ? ((roles.includes(values.role as Role) ? values.role : (roles[0] ?? "")) as Role) : null;
  const ofTenant = !admin || role === "tenant_admin";
  const inDays = (days: number) =>
    form.set("expires_at", new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10));
  return (
    <Form
      form={form}
      verb="Create key"
      onCancel={onCancel}
      save={async () => {
        const { limits, ...read } = gather({
          name: () => required(values.name, "name", "Enter a name: who or what uses the key."),
          tenant: () => (ofTenant ? required(values.tenant, "tenant", "Choose a tenant.") : null),
          expires_at: () => endOf(values.expires_at),
          default_max_tokens: () => (admin ? null : numberOf(values.default_max_tokens, "default_max_tokens")),
          limits: () => limitsOf(admin ? { ...values, models: "", tags: "" } : values),
        });
        const made = await create.mutateAsync({
          ...read,
          ...limits,
          kind: values.kind as "live",
          role,
          project: ofTenant && values.project !== "" ? values.project : null,
          tier: admin || values.tier.trim() === "" ? null : values.tier.trim(),
        });
        onDone(shownOf(made, model));
      }}
    >
      <div className="field-row">
        <TextField
          form={form}
          name="name"
          label="Name"
          autoFocus
          placeholder="search production"
          hint="Who or what uses the key."
        />
        <SelectField
          form={form}
          name="kind"
          label="Kind"
          options={[
            ["live", "live: calls models"],
            ["test", "test: calls models"],
            ...(roles.length > 0 ? [["admin", "admin: administers"] as const] : []),
          ]}
        />
      </div>
      {admin && (
        <SelectField
          form={{ ...form, values: { ...values, role: role ?? "" } }}
          name="role"
          label="Role"
          options={ROLES_SAID.filter(([one]) => roles.includes(one))}
          hint="At most the permissions of your own key."
        />
      )}
      {ofTenant && (
        <div className="field-row">
          {own === undefined && (
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
                  }}
                />
              )}
            />
          )}
          {values.tenant !== "" && (
            <LookupField
              form={form}
              name="project"
              label="Project"
              optional
              hint="Blank: the default project."
              control={(props) => <ProjectLookup {...props} tenant={values.tenant} />}
            />
          )}
        </div>
      )}
      {!admin && (
        <div className="field-row">
          <TierField form={form} optional none="the tenant's" hint="At most the tenant's tier." />
          <TextField
            form={form}
            name="default_max_tokens"
            label="Default max_tokens"
            type="number"
            unit="tokens"
            optional
            hint={MAX_TOKENS_HINT}
          />
        </div>
      )}
      <LimitFields form={form as unknown as LimitForm} usage={!admin} />
      <TextField
        form={form}
        name="expires_at"
        label="Expires"
        type="date"
        optional
        hint={
          <>
            At the end of that day in UTC.{" "}
            {(
              [
                [30, "30 days"],
                [90, "90 days"],
                [365, "a year"],
              ] as const
            ).map(([days, said]) => (
              <button key={days} type="button" className="copy" onClick={() => inDays(days)}>
                {said}
              </button>
            ))}
          </>
        }
      />
    </Form>
  );
}

/** The last second of a day in UTC; null if blank. */
function endOf(day: string): number | null {
  if (day === "") return null;
  const begin = Date.parse(`${day}T00:00:00Z`) / 1000;
  if (Number.isNaN(begin)) throw fieldError("expires_at", `'${day}' is not a date.`);
  return begin + 86_399;
}

export function KeyForm({ of: key, tenant, onDone }: { of: Key; tenant: string; onDone: () => void }) {
  const form = useForm({
    project: key.project_id ?? "",
    default_max_tokens: key.default_max_tokens?.toString() ?? "",
    ...textsOf(key),
  });
  const change = useWrite(
    (body: Parameters<typeof api.patch<"/v1/admin/keys/{key_id}">>[1]["body"]) =>
      api.patch("/v1/admin/keys/{key_id}", { path: { key_id: key.id }, body }),
    KEYS,
  );
  return (
    <Form
      form={form}
      verb="Save"
      onCancel={onDone}
      save={async (values) => {
        const { limits, default_max_tokens } = gather({
          default_max_tokens: () => numberOf(values.default_max_tokens, "default_max_tokens"),
          limits: () => limitsOf(values),
        });
        await change.mutateAsync({
          ...(values.project !== "" && values.project !== key.project_id ? { project: values.project } : {}),
          default_max_tokens,
          ...limits,
        });
        toast("Saved. Every gateway applies it within a second.");
        onDone();
      }}
    >
      <LookupField
        form={form}
        name="project"
        label="Project"
        hint="New requests count in that project's budgets."
        control={(props) => <ProjectLookup {...props} tenant={tenant} />}
      />
      <TextField
        form={form}
        name="default_max_tokens"
        label="Default max_tokens"
        type="number"
        unit="tokens"
        optional
        hint={MAX_TOKENS_HINT}
      />
      <LimitFields form={form as unknown as LimitForm} usage />
    </Form>
  );
}

/** How long the old secret of a rotated key works. */
export const OVERLAPS = [
  ["86400", "a day"],
  ["0", "no time: it ends immediately"],
  ["3600", "an hour"],
  ["604800", "7 days"],
  ["2592000", "30 days"],
] as const;

export function RotateForm({
  of: key,
  onDone,
  onCancel,
}: {
  of: Key;
  onDone: (shown: Shown) => void;
  onCancel: () => void;
}) {
  const form = useForm({ overlap_s: "86400" });
  const model = useExampleModel();
  const now = useNow();
  const zone = useZone();
  const rotate = useWrite(
    (overlap_s: number) =>
      api.post("/v1/admin/keys/{key_id}/rotate", { path: { key_id: key.id }, body: { overlap_s } }),
    KEYS,
  );
  const overlap = Number(form.values.overlap_s);
  const ends = Math.min(now + overlap, key.expires_at ?? Infinity);
  return (
    <Form
      form={form}
      verb="Rotate"
      onCancel={onCancel}
      save={async () => onDone(shownOf(await rotate.mutateAsync(overlap), model))}
    >
      <SelectField
        form={form}
        name="overlap_s"
        label="The old secret still works for"
        options={OVERLAPS}
        hint={
          overlap === 0 ? (
            "Requests that still use it are refused within a second."
          ) : (
            <>Until {moment(ends, zone, "minute")}. Both keys count in the budgets and rate limits of this key.</>
          )
        }
      />
    </Form>
  );
}
