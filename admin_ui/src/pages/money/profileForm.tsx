// The form of a tenant's billing profile: name, address, taxes, terms and accounts in other systems.
import { useState } from "react";
import { type AnswerOf, type BodyOf, type RowOf, api, useGet, useWrite } from "../../api";
import { Field, Form, Loaded, TextArea, TextField, fieldError, numberOf, toast, useForm } from "../../kit";
import "./profiles.css";

export type Profile = AnswerOf<"/v1/admin/tenants/{tenant_id}/billing_profile">;
type Body = BodyOf<"/v1/admin/tenants/{tenant_id}/billing_profile", "put">;
type Tax = Profile["taxes"][number];
type Connector = RowOf<"/v1/admin/connectors">;

const CHANGED = ["/v1/admin/tenants", "/v1/admin/billing_profiles", "/v1/admin/audit_log"];
const TAXES_MAX = 8;
const ACCOUNT = "account ";

interface Props {
  profile: Profile;
  /** The tenant's name, on documents without a legal name. */
  name: string;
  /** The issuer's days until payment. */
  days: number | undefined;
  onDone: () => void;
}

export function ProfileForm(props: Props) {
  const found = useGet("/v1/admin/connectors");
  return (
    <Loaded of={found} lines={6}>
      {(answer) => <LoadedForm {...props} connectors={answer.data.filter((one) => one.kind !== null)} />}
    </Loaded>
  );
}

/** `connectors`: the connectors of laneway.toml. A save retains the accounts of other connectors as they are: the API
 * refuses only a new or changed account of a connector that laneway.toml does not have. */
function LoadedForm({ profile, name, days, onDone, connectors }: Props & { connectors: readonly Connector[] }) {
  const accountFields = connectors.map((one) => [ACCOUNT + one.name, profile.accounts[one.name] ?? ""] as const);
  const retained = Object.fromEntries(
    Object.entries(profile.accounts).filter(([name]) => !connectors.some((one) => one.name === name)),
  );
  const form = useForm<Record<string, string>>({
    ...Object.fromEntries(accountFields),
    legal_name: profile.legal_name ?? "",
    address: profile.address.join("\n"),
    tax_id: profile.tax_id ?? "",
    payment_days: profile.payment_days?.toString() ?? "",
  });
  const [taxes, setTaxes] = useState<readonly Tax[]>(profile.taxes);
  const save = useWrite(
    (body: Body) =>
      api.put("/v1/admin/tenants/{tenant_id}/billing_profile", { path: { tenant_id: profile.tenant_id }, body }),
    CHANGED,
  );
  const text = (field: string) => form.values[field]?.trim() ?? "";
  return (
    <Form
      form={form}
      verb="Save"
      onCancel={onDone}
      save={async () => {
        const accounts = connectors.map((one) => [one.name, text(ACCOUNT + one.name)] as const);
        await save.mutateAsync({
          legal_name: text("legal_name") || null,
          address: linesOf(text("address")),
          tax_id: text("tax_id") || null,
          taxes: taxesOf(taxes),
          payment_days: numberOf(text("payment_days"), "payment_days"),
          accounts: { ...retained, ...Object.fromEntries(accounts.filter(([, account]) => account !== "")) },
        });
        toast("The billing profile is saved.");
        onDone();
      }}
    >
      <TextField
        form={form}
        name="legal_name"
        label="Legal name"
        optional
        placeholder={name}
        hint="Blank: the tenant's name."
        autoFocus
      />
      <TextArea form={form} name="address" label="Address" optional rows={4} hint="At most 8 lines." />
      <div className="field-row">
        <TextField form={form} name="tax_id" label="Tax id" optional mono />
        <TextField
          form={form}
          name="payment_days"
          label="Due after"
          type="number"
          unit="days"
          optional
          placeholder={days?.toString() ?? ""}
          hint="Blank: the issuer's days."
        />
      </div>
      <Taxes of={taxes} set={setTaxes} />
      {connectors.map((one) => (
        <TextField
          key={one.name}
          form={form}
          name={ACCOUNT + one.name}
          label={`Account of ${one.name}`}
          optional
          mono
          placeholder={one.kind === "stripe" ? "cus_…" : profile.tenant_id}
          hint={
            one.kind === "stripe"
              ? "The customer's id in Stripe. Without an account, no usage of the tenant is pushed."
              : "The subject of its events. Blank: the tenant's id."
          }
        />
      ))}
    </Form>
  );
}

/** Names and rates; blank rows are left out of the profile. */
function Taxes({ of: taxes, set }: { of: readonly Tax[]; set: (taxes: readonly Tax[]) => void }) {
  const change = (at: number, next: Partial<Tax>) =>
    set(taxes.map((tax, index) => (index === at ? { ...tax, ...next } : tax)));
  return (
    <Field name="taxes" label="Taxes" optional hint="On the net amount of each invoice, in percent.">
      {(wired) => (
        <div
          className="profile-taxes"
          role="group"
          id={wired.id}
          aria-label="Taxes"
          aria-describedby={wired["aria-describedby"]}
        >
          {taxes.map((tax, index) => (
            <div key={index} className="profile-tax">
              <input
                aria-label={`Name of tax ${index + 1}`}
                aria-invalid={wired["aria-invalid"]}
                value={tax.name}
                placeholder="VAT"
                autoComplete="off"
                onChange={(event) => change(index, { name: event.target.value })}
              />
              <span className="control">
                <input
                  className="mono"
                  aria-label={`Rate of tax ${index + 1}`}
                  aria-invalid={wired["aria-invalid"]}
                  inputMode="decimal"
                  value={tax.rate}
                  placeholder="19"
                  autoComplete="off"
                  onChange={(event) => change(index, { rate: event.target.value })}
                />
                <span className="unit">%</span>
              </span>
              <button
                type="button"
                className="button button-quiet"
                aria-label={`Remove tax ${index + 1}`}
                onClick={() => set(taxes.filter((_, other) => other !== index))}
              >
                Remove
              </button>
            </div>
          ))}
          {taxes.length < TAXES_MAX && (
            <button type="button" className="button" onClick={() => set([...taxes, { name: "", rate: "" }])}>
              Add a tax
            </button>
          )}
        </div>
      )}
    </Field>
  );
}

function linesOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** The taxes without blank rows. Throws a field error for a row with only a name or only a rate. */
function taxesOf(taxes: readonly Tax[]): Tax[] {
  const found = taxes.map(({ name, rate }) => ({ name: name.trim(), rate: rate.trim() }));
  const half = found.find(({ name, rate }) => (name === "") !== (rate === ""));
  if (half !== undefined) throw fieldError("taxes", "A tax has a name and a rate.");
  return found.filter(({ name }) => name !== "");
}
