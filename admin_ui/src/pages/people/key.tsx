// One key: state, usage, budgets and changes.
import { type ReactNode, useState } from "react";
import { type AnswerOf, api, useGet, useMay, useSession, useWrite } from "../../api";
import {
  ConfirmDialog,
  Count,
  Dialog,
  EmptyState,
  Facts,
  Id,
  Link,
  Loaded,
  PageHead,
  Section,
  Tabs,
  Time,
  toast,
  useActionDialog,
  useNow,
  useParam,
} from "../../kit";
import { AuditTable } from "../parts/auditTable";
import { ErrorRates } from "../parts/errorRates";
import { BudgetTable } from "../money/budgetTable";
import { DailyTokens } from "../parts/dailyTokens";
import { BudgetForm, LimitsForm } from "../money/budgetForms";
import { RateLimits } from "../money/rateLimits";
import { KeyForm, RotateForm } from "./keyForms";
import { limitFacts } from "./keyLimits";
import { KeyState, KindOf, stateOf } from "./keys";
import { KeyName, ProjectName, TenantName, useNames } from "../parts/names";
import { SecretDialog, type Shown } from "../parts/secret";

type Key = AnswerOf<"/v1/admin/keys/{key_id}">;
const KEY_ACTIONS = ["edit", "rotate", "revoke"] as const;

export default function KeyPage() {
  const key_id = useParam("key");
  const found = useGet("/v1/admin/keys/{key_id}", { path: { key_id } });
  return (
    <Loaded of={found} lines={8}>
      {(key) => <KeyDetails of={key} key={key.id} />}
    </Loaded>
  );
}

function KeyDetails({ of: key }: { of: Key }) {
  const may = useMay();
  const session = useSession();
  const ended = stateOf(key, useNow()) !== "active";
  const [open, setOpen] = useActionDialog(may("keys:write") && !ended ? KEY_ACTIONS : []);
  const [shown, setShown] = useState<Shown | null>(null);
  const close = () => setOpen(null);
  const revoke = useWrite(
    () => api.post("/v1/admin/keys/{key_id}/revoke", { path: { key_id: key.id } }),
    ["/v1/admin/keys", "/v1/admin/audit_log"],
  );
  return (
    <>
      <PageHead
        title={key.name}
        trail={<Link to="/keys">Keys</Link>}
        note={
          <>
            <code>
              {key.prefix}…{key.last4}
            </code>{" "}
            <KeyState of={key} />
          </>
        }
      >
        {may("keys:write") && !ended && (
          <>
            <button type="button" className="button" onClick={() => setOpen("revoke")}>
              Revoke
            </button>
            {key.rotated_to === null && (
              <button type="button" className="button" onClick={() => setOpen("rotate")}>
                Rotate
              </button>
            )}
            {key.kind !== "admin" && (
              <button type="button" className="button button-main" onClick={() => setOpen("edit")}>
                Edit
              </button>
            )}
          </>
        )}
      </PageHead>
      <Tabs
        label={`Sections of ${key.name}`}
        tabs={[
          { id: "about", label: "About", content: () => <About of={key} /> },
          ...(may("money:read") && key.kind !== "admin" && key.tenant_id !== null
            ? [
                {
                  id: "budgets",
                  label: "Budgets",
                  content: () => <Budgets of={key} tenant={key.tenant_id!} />,
                },
              ]
            : []),
          ...(may("limits:read") && key.kind !== "admin" && key.tenant_id !== null
            ? [{ id: "limits", label: "Limits", content: () => <Limits of={key} tenant={key.tenant_id!} /> }]
            : []),
          ...(may("requests:read") && key.tenant_id !== null
            ? [{ id: "errors", label: "Errors", content: () => <ErrorRates keyId={key.id} /> }]
            : []),
          ...(may("audit:read")
            ? [{ id: "changes", label: "Changes", content: () => <AuditTable object={key.id} /> }]
            : []),
        ]}
      />
      <Dialog open={open === "edit"} onClose={close} title={`Edit ${key.name}`} keep>
        <KeyForm of={key} tenant={key.tenant_id ?? ""} onDone={close} />
      </Dialog>
      <Dialog
        open={open === "rotate"}
        onClose={close}
        title={`Rotate ${key.name}`}
        note="Creates a key with the same settings and a new secret."
        keep
      >
        <RotateForm
          of={key}
          onCancel={close}
          onDone={(made) => {
            close();
            setShown(made);
          }}
        />
      </Dialog>
      <ConfirmDialog
        open={open === "revoke"}
        onClose={close}
        title={`Revoke ${key.name}?`}
        verb="Revoke"
        name={key.name}
        action={async () => {
          await revoke.mutateAsync();
          toast(`${key.name} is revoked.`);
        }}
      >
        Every gateway refuses it within a second. This cannot be undone; its usage and invoices are kept.
        {key.id === session.key?.id && <b> You are signed in with it: this ends your session.</b>}
      </ConfirmDialog>
      <SecretDialog shown={shown} onStored={() => setShown(null)} />
    </>
  );
}

function About({ of: key }: { of: Key }) {
  const may = useMay();
  return (
    <>
      <Facts
        facts={[
          ["Id", <Id value={key.id} />],
          [
            "Tenant",
            key.tenant_id === null ? <span className="faint">the operator</span> : <TenantName id={key.tenant_id} />,
          ],
          ...(key.project_id === null ? [] : [["Project", <ProjectName id={key.project_id} />] as const]),
          ["Kind", <KindOf of={key} />],
          ...(key.kind === "admin"
            ? []
            : [
                ["Tier", key.tier ?? <span className="faint">the tenant's</span>] as const,
                [
                  "Default max_tokens",
                  key.default_max_tokens === null ? (
                    <span className="faint">the project's, the tenant's or the model's</span>
                  ) : (
                    <Count value={key.default_max_tokens} />
                  ),
                ] as const,
              ]),
          ...limitFacts(key, key.kind !== "admin"),
          ["Created", <Time at={key.created_at} absolute />],
          ["Last used", <Time at={key.last_used_at} absolute />],
          ["Expires", <Time at={key.expires_at} absolute />],
          ...(key.revoked_at === null ? [] : [["Revoked", <Time at={key.revoked_at} absolute />] as const]),
          ...(key.rotated_to === null ? [] : [["Rotated to", <KeyName id={key.rotated_to} />] as const]),
        ]}
      />
      {key.kind !== "admin" && may("usage:read") && (
        <Section
          title="Use"
          actions={
            <Link to="/requests" query={{ key_id: key.id }}>
              View requests
            </Link>
          }
        >
          <DailyTokens query={{ api_key_ids: [key.id] }} />
        </Section>
      )}
    </>
  );
}

/** A dialog behind a button, both left out for a role that may not use them. */
function useDialog(may: boolean, title: string, form: (close: () => void) => ReactNode) {
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  return {
    button: may && (
      <button type="button" className="button button-main" onClick={() => setOpen(true)}>
        {title}
      </button>
    ),
    dialog: (
      <Dialog open={open} onClose={close} title={title} keep>
        {form(close)}
      </Dialog>
    ),
  };
}

function Budgets({ of: key, tenant }: { of: Key; tenant: string }) {
  const slug = useNames("tenant", [tenant]).get(tenant) ?? tenant;
  const { button, dialog } = useDialog(useMay()("money:write") && key.rotated_to === null, "New budget", (close) => (
    <BudgetForm tenant={slug} key_id={key.id} onDone={close} />
  ));
  return (
    <>
      <BudgetTable
        label={`Budgets of ${key.name}`}
        query={{ search: key.id }}
        filters={button}
        empty={
          <EmptyState title="No budget of its own">
            {key.rotated_to !== null && (
              <p>
                Its requests count in the budgets of the key it was rotated to: <KeyName id={key.rotated_to} />.
              </p>
            )}
            <p>
              The budgets of its project and tenant apply: <TenantName id={tenant} />.
            </p>
          </EmptyState>
        }
      />
      {dialog}
    </>
  );
}

function Limits({ of: key, tenant }: { of: Key; tenant: string }) {
  const slug = useNames("tenant", [tenant]).get(tenant) ?? tenant;
  const { button, dialog } = useDialog(useMay()("limits:write"), "Set limits of this key", (close) => (
    <LimitsForm tenant={slug} key_id={key.id} onDone={close} />
  ));
  return (
    <>
      <RateLimits tenant={slug} key_id={key.id} action={button} />
      {dialog}
    </>
  );
}
