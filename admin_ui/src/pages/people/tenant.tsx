// One tenant: settings, projects, keys, budgets and changes.
import { useState } from "react";
import { type AnswerOf, type RowOf, useGet, useList, useMay } from "../../api";
import {
  type Column,
  ConfirmDialog,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Id,
  Link,
  Loaded,
  PageHead,
  ShortId,
  Tabs,
  Time,
  place,
  toast,
  useParam,
} from "../../kit";
import { AuditTable } from "../parts/auditTable";
import { ErrorRates } from "../parts/errorRates";
import { BudgetTable } from "../money/budgetTable";
import type { Key } from "./keyForms";
import { KeyState } from "./keys";
import { ProjectForm, TenantForm, useTenantChange } from "./tenantForms";
import { Status } from "./tenants";

type Tenant = AnswerOf<"/v1/admin/tenants/{tenant_id}">;
type Project = RowOf<"/v1/admin/projects">;

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
        {may("people:write") && (
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
          { id: "about", label: "About", content: () => <About tenant={tenant} /> },
          { id: "projects", label: "Projects", content: () => <Projects tenant={tenant} /> },
          ...(may("keys:read") ? [{ id: "keys", label: "Keys", content: () => <Keys tenant={tenant} /> }] : []),
          ...(may("money:read")
            ? [
                {
                  id: "budgets",
                  label: "Budgets",
                  content: () => (
                    <BudgetTable
                      label={`Budgets of ${tenant.name}`}
                      query={{ tenant: tenant.slug }}
                      empty={
                        <EmptyState title="No budget">
                          <p>Only its rate limits bound what it uses.</p>
                        </EmptyState>
                      }
                    />
                  ),
                },
              ]
            : []),
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

function About({ tenant }: { tenant: Tenant }) {
  return (
    <Facts
      facts={[
        ["Id", <Id value={tenant.id} />],
        ["Base URL", <Id value={`${location.origin}/t/${tenant.slug}/v1`} />],
        ["Highest tier", tenant.tier],
        ["Share weight", <span className="num">{tenant.share_weight}</span>],
        ["Currency", tenant.currency],
        ["Time zone", tenant.time_zone],
        [
          "Default max_tokens",
          tenant.default_max_tokens === null ? (
            <span className="faint">the model's</span>
          ) : (
            <Count value={tenant.default_max_tokens} />
          ),
        ],
        [
          "Choice in aliases",
          tenant.cheapest ? (
            <>the cheapest model that can serve, where the alias allows it</>
          ) : (
            <span className="faint">by weight, the default</span>
          ),
        ],
        [
          "Stored responses",
          tenant.store_responses_s === null ? (
            <span className="faint">none: no text is stored</span>
          ) : (
            <>for {tenant.store_responses_s / (24 * 3600)} days, encrypted</>
          ),
        ],
        ["Created", <Time at={tenant.created_at} absolute />],
      ]}
    />
  );
}

function Projects({ tenant }: { tenant: Tenant }) {
  const list = useList("/v1/admin/projects", { query: { tenant: tenant.slug } });
  const may = useMay()("people:write");
  const [edited, setEdited] = useState<Project | "new" | null>(null);
  const columns: Column<Project>[] = [
    { id: "name", header: "Project", cell: (project) => <b>{project.name}</b> },
    { id: "id", header: "Id", wide: true, cell: (project) => <ShortId value={project.id} /> },
    {
      id: "tokens",
      header: "Default max_tokens",
      end: true,
      cell: (project) => <Count value={project.default_max_tokens} />,
    },
    { id: "created", header: "Created", cell: (project) => <Time at={project.created_at} /> },
    ...(may
      ? [
          {
            id: "edit",
            header: "Edit",
            end: true,
            cell: (project: Project) => (
              <button
                type="button"
                className="button button-quiet"
                aria-label={`Edit ${project.name}`}
                onClick={() => setEdited(project)}
              >
                Edit
              </button>
            ),
          },
        ]
      : []),
  ];
  const close = () => setEdited(null);
  return (
    <>
      <DataTable
        label="Projects"
        list={list}
        columns={columns}
        id={(project) => project.id}
        filters={
          may && (
            <button type="button" className="button" onClick={() => setEdited("new")}>
              New project
            </button>
          )
        }
        empty={<EmptyState title="No project" />}
      />
      <Dialog open={edited !== null} onClose={close} title={edited === "new" ? "New project" : "Edit project"} keep>
        <ProjectForm tenant={tenant.slug} project={edited === "new" ? null : edited} onDone={close} />
      </Dialog>
    </>
  );
}

const KEYS: readonly Column<Key>[] = [
  { id: "name", header: "Key", cell: (key) => <b>{key.name}</b> },
  {
    id: "secret",
    header: "Secret",
    cell: (key) => (
      <code>
        {key.prefix}…{key.last4}
      </code>
    ),
  },
  { id: "tier", header: "Tier", cell: (key) => key.tier ?? <span className="faint">the tenant's</span> },
  { id: "state", header: "State", cell: (key) => <KeyState of={key} /> },
  { id: "used", header: "Last used", cell: (key) => <Time at={key.last_used_at} /> },
  { id: "created", header: "Created", wide: true, cell: (key) => <Time at={key.created_at} /> },
];

function Keys({ tenant }: { tenant: Tenant }) {
  const list = useList("/v1/admin/keys", { query: { tenant: tenant.slug } });
  return (
    <DataTable
      label={`Keys of ${tenant.name}`}
      list={list}
      columns={KEYS}
      id={(key) => key.id}
      to={(key) => place("/keys", key.id)}
      empty={
        <EmptyState title="No key yet">
          <p>The tenant needs a key to send requests.</p>
        </EmptyState>
      }
    />
  );
}
