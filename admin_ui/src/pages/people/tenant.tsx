// One tenant, as a customer: the month so far, requests, keys, budgets, limits, adapters, invoices, SLA and changes.
import { useState } from "react";
import { useGet, useMay, useSession } from "../../api";
import { ConfirmDialog, Dialog, Link, Loaded, PageHead, Tabs, toast, useParam } from "../../kit";
import { AuditTable } from "../parts/auditTable";
import { ErrorRates } from "../parts/errorRates";
import { Invoices } from "../money/invoices";
import { BillingProfile } from "../money/profile";
import { RateLimits } from "../money/rateLimits";
import { TenantForm, useTenantChange } from "./tenantForms";
import { type Tenant, TenantOverview } from "./tenantOverview";
import { TenantSla } from "./tenantSla";
import { TenantAdapters, TenantBatches, TenantBudgets, TenantKeys, TenantProjects, TenantRequests } from "./tenantTabs";
import { Status } from "./tenants";
import "./tenant.css";

export default function TenantPage() {
  const tenant_id = useParam("tenant");
  const found = useGet("/v1/admin/tenants/{tenant_id}", { path: { tenant_id } });
  return (
    <Loaded of={found} lines={8}>
      {(tenant) => <TenantDetails tenant={tenant} />}
    </Loaded>
  );
}

function TenantDetails({ tenant }: { tenant: Tenant }) {
  const may = useMay();
  const operator = useSession().tenant === null;
  const [open, setOpen] = useState<"edit" | "status" | null>(null);
  const close = () => setOpen(null);
  const change = useTenantChange(tenant.id);
  const active = tenant.status === "active";
  return (
    <>
      <PageHead
        title={tenant.name}
        trail={<Link to="/tenants">Tenants</Link>}
        note={
          <>
            <code>{tenant.slug}</code> <Status of={tenant} />
          </>
        }
      >
        {operator && may("people:write") && (
          <>
            <button type="button" className="button" onClick={() => setOpen("status")}>
              {active ? "Suspend" : "Reactivate"}
            </button>
            <button type="button" className="button button-main" onClick={() => setOpen("edit")}>
              Edit
            </button>
          </>
        )}
      </PageHead>
      <Tabs
        label={`Sections of ${tenant.name}`}
        tabs={[
          { id: "about", label: "Overview", content: () => <TenantOverview tenant={tenant} /> },
          ...(may("requests:read")
            ? [{ id: "requests", label: "Requests", content: () => <TenantRequests tenant={tenant} /> }]
            : []),
          ...(may("batches:read")
            ? [{ id: "batches", label: "Batches", content: () => <TenantBatches tenant={tenant} /> }]
            : []),
          ...(may("keys:read") ? [{ id: "keys", label: "Keys", content: () => <TenantKeys tenant={tenant} /> }] : []),
          { id: "projects", label: "Projects", content: () => <TenantProjects tenant={tenant} /> },
          ...(may("money:read")
            ? [{ id: "budgets", label: "Budgets", content: () => <TenantBudgets tenant={tenant} /> }]
            : []),
          ...(may("limits:read")
            ? [{ id: "limits", label: "Limits", content: () => <RateLimits tenant={tenant.slug} /> }]
            : []),
          ...(may("adapters:read")
            ? [{ id: "adapters", label: "Adapters", content: () => <TenantAdapters tenant={tenant} /> }]
            : []),
          ...(may("billing:read")
            ? [
                { id: "invoices", label: "Invoices", content: () => <Invoices of={tenant.slug} /> },
                { id: "profile", label: "Billing profile", content: () => <BillingProfile tenant={tenant} /> },
              ]
            : []),
          ...(may("usage:read") ? [{ id: "sla", label: "SLA", content: () => <TenantSla tenant={tenant} /> }] : []),
          ...(may("requests:read")
            ? [{ id: "errors", label: "Errors", content: () => <ErrorRates tenant={tenant.slug} /> }]
            : []),
          ...(may("audit:read")
            ? [{ id: "changes", label: "Changes", content: () => <AuditTable tenant={tenant.slug} /> }]
            : []),
        ]}
      />
      <Dialog open={open === "edit"} onClose={close} title={`Edit ${tenant.name}`} keep>
        <TenantForm tenant={tenant} onDone={close} />
      </Dialog>
      <ConfirmDialog
        open={open === "status"}
        onClose={close}
        title={active ? `Suspend ${tenant.name}?` : `Reactivate ${tenant.name}?`}
        verb={active ? "Suspend" : "Reactivate"}
        tone={active ? "bad" : "plain"}
        action={async () => {
          await change.mutateAsync({ status: active ? "suspended" : "active" });
          toast(active ? `${tenant.name} is suspended.` : `${tenant.name} is active again.`);
        }}
      >
        {active
          ? "Every gateway refuses its keys within a second, and ends their running requests. No data is lost, and the tenant can be reactivated."
          : "Its keys work again within a second."}
      </ConfirmDialog>
    </>
  );
}
