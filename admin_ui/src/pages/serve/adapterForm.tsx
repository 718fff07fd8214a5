// The form for an adapter's allowed tenants and notes.
import { type AnswerOf, api, useWrite } from "../../api";
import { Form, SelectField, TextArea, toast, useForm } from "../../kit";
import { useTenants } from "../parts/names";
import { TenantNamesField } from "../parts/pickers";

type Adapter = AnswerOf<"/v1/admin/adapters/{adapter}">;

export const SHARES = [
  ["none", "its owner only"],
  ["some", "its owner and these tenants"],
  ["all", "every tenant"],
] as const;

export function sharesOf(who: string, names: string): string[] {
  if (who === "all") return ["*"];
  return who === "none" ? [] : names.split(/[\s,;]+/).filter(Boolean);
}

export function AdapterForm({ of: adapter, onDone }: { of: Adapter; onDone: () => void }) {
  const tenants = useTenants();
  const form = useForm({
    who: adapter.shared.includes("*") ? "all" : adapter.shared.length > 0 ? "some" : "none",
    shared: adapter.shared
      .filter((one) => one !== "*")
      .map((id) => tenants.get(id)?.slug ?? id)
      .join(", "),
    notes: adapter.notes ?? "",
  });
  const change = useWrite(
    (body: Parameters<typeof api.patch<"/v1/admin/adapters/{adapter}">>[1]["body"]) =>
      api.patch("/v1/admin/adapters/{adapter}", { path: { adapter: adapter.id }, body }),
    ["/v1/admin/adapters", "/v1/admin/audit_log"],
  );
  return (
    <Form
      form={form}
      verb="Save"
      onCancel={onDone}
      save={async (values) => {
        await change.mutateAsync({ shared: sharesOf(values.who, values.shared), notes: values.notes });
        toast("Saved.");
        onDone();
      }}
    >
      <SelectField form={form} name="who" label="Allowed tenants" options={SHARES} />
      {form.values.who === "some" && <TenantNamesField form={form} name="shared" label="Tenants" />}
      <TextArea form={form} name="notes" label="Notes" optional rows={3} />
    </Form>
  );
}
