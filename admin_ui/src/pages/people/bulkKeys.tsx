// Actions on several keys or tenants: rotate, revoke, set rate limits.
import { useState } from "react";
import { type RowOf, api, useMay, useSession, useWrite } from "../../api";
import { CodeBlock, SelectField, TextField, gather, numberOf, useForm } from "../../kit";
import { BulkDialog, type BulkItem } from "../parts/bulk";
import { type Key, OVERLAPS } from "./keyForms";

type Tenant = RowOf<"/v1/admin/tenants">;
const KEYS = ["/v1/admin/keys", "/v1/admin/audit_log", "/v1/admin/budgets"];
const LIMITS = ["/v1/admin/limits", "/v1/admin/audit_log"];

const keyItems = (keys: readonly Key[]): BulkItem[] =>
  keys.map((key) => ({ id: key.id, name: `${key.name} …${key.last4}` }));
const said = (number: number, what: string) => `${number} ${number === 1 ? what : `${what}s`}`;

export function KeyActions({ keys, onDone }: { keys: readonly Key[]; onDone: () => void }) {
  const may = useMay();
  const own = useSession().key?.id;
  const [open, setOpen] = useState<"rotate" | "revoke" | "limits" | null>(null);
  const close = () => {
    setOpen(null);
    onDone();
  };
  const form = useForm({ overlap_s: "86400" });
  const rotate = useWrite(
    (key_id: string) =>
      api.post("/v1/admin/keys/{key_id}/rotate", {
        path: { key_id },
        body: { overlap_s: Number(form.values.overlap_s) },
      }),
    KEYS,
  );
  const revoke = useWrite((key_id: string) => api.post("/v1/admin/keys/{key_id}/revoke", { path: { key_id } }), KEYS);
  const fresh = keys.filter((key) => key.rotated_to === null);
  const callers = keys.filter((key) => key.kind !== "admin" && key.tenant_id !== null);
  return (
    <>
      {may("keys:write") && (
        <>
          <button type="button" className="button" disabled={fresh.length === 0} onClick={() => setOpen("rotate")}>
            Rotate
          </button>
          <button type="button" className="button button-bad" onClick={() => setOpen("revoke")}>
            Revoke
          </button>
        </>
      )}
      {may("limits:write") && (
        <button type="button" className="button" disabled={callers.length === 0} onClick={() => setOpen("limits")}>
          Set limits
        </button>
      )}
      <BulkDialog
        open={open === "rotate"}
        onClose={close}
        title={`Rotate ${said(fresh.length, "key")}?`}
        note="Each key is replaced by a key with the same settings and a new secret. The secrets are shown only here."
        verb="Rotate"
        items={keyItems(fresh)}
        keepUntil="I have stored the secrets"
        action={async ({ id, name }) => {
          const made = await rotate.mutateAsync(id);
          return <CodeBlock label={`The secret of ${name}`} text={made.secret} />;
        }}
      >
        <SelectField form={form} name="overlap_s" label="The old secrets still work for" options={OVERLAPS} />
      </BulkDialog>
      <BulkDialog
        open={open === "revoke"}
        onClose={close}
        title={`Revoke ${said(keys.length, "key")}?`}
        note={
          <>
            Every gateway refuses them within a second. This cannot be undone.
            {keys.some((key) => key.id === own) && <b> Your own key is among them: your session ends.</b>}
          </>
        }
        verb="Revoke"
        word="revoke"
        items={keyItems(keys)}
        action={async ({ id }) => {
          await revoke.mutateAsync(id);
          return null;
        }}
      />
      <LimitsDialog
        open={open === "limits"}
        onClose={close}
        title={`Set the limits of ${said(callers.length, "key")}?`}
        items={keyItems(callers)}
        scopeOf={(id) => ({ tenant: callers.find((key) => key.id === id)?.tenant_id ?? "", key_id: id })}
      />
    </>
  );
}

export function TenantActions({ tenants, onDone }: { tenants: readonly Tenant[]; onDone: () => void }) {
  const may = useMay();
  const [open, setOpen] = useState(false);
  if (!may("limits:write") || !may("people:write")) return null;
  return (
    <>
      <button type="button" className="button" onClick={() => setOpen(true)}>
        Set limits
      </button>
      <LimitsDialog
        open={open}
        onClose={() => {
          setOpen(false);
          onDone();
        }}
        title={`Set the limits of ${said(tenants.length, "tenant")}?`}
        items={tenants.map((tenant) => ({ id: tenant.id, name: `${tenant.slug} (${tenant.name})` }))}
        scopeOf={(id) => ({ tenant: id })}
      />
    </>
  );
}

function LimitsDialog({
  open,
  onClose,
  title,
  items,
  scopeOf,
}: {
  open: boolean;
  onClose: () => void;
  title: string;
  items: readonly BulkItem[];
  scopeOf: (id: string) => { tenant: string; key_id?: string };
}) {
  const form = useForm({ requests_per_minute: "", tokens_per_minute: "", concurrency: "" });
  const { values } = form;
  const set = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/limits">>[1]["body"]) => api.post("/v1/admin/limits", { body }),
    LIMITS,
  );
  return (
    <BulkDialog
      open={open}
      onClose={onClose}
      title={title}
      note="These rate limits replace all earlier rate limits; quotas do not change. Blank: the default in laneway.toml."
      verb="Set limits"
      items={items}
      action={async ({ id }) => {
        const limits = gather({
          requests_per_minute: () => numberOf(values.requests_per_minute, "requests_per_minute"),
          tokens_per_minute: () => numberOf(values.tokens_per_minute, "tokens_per_minute"),
          concurrency: () => numberOf(values.concurrency, "concurrency"),
        });
        await set.mutateAsync({ ...scopeOf(id), ...limits });
        return null;
      }}
    >
      <div className="field-row">
        <TextField form={form} name="requests_per_minute" label="Requests per minute" type="number" optional />
        <TextField form={form} name="tokens_per_minute" label="Tokens per minute" type="number" optional />
        <TextField form={form} name="concurrency" label="Concurrent requests" type="number" optional />
      </div>
    </BulkDialog>
  );
}
