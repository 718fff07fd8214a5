// The tabs of a tenant's page, each with a link to the page that has all rows and filters.
import { useState } from "react";
import { type RowOf, useList, useMay } from "../../api";
import {
  type Column,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  Link,
  Money,
  ShortId,
  Time,
  duration,
  place,
} from "../../kit";
import { BudgetForm } from "../money/budgetForms";
import { BudgetTable } from "../money/budgetTable";
import { batchColumns, useBatches } from "../parts/batches";
import { AnsweredBy, KeyName } from "../parts/names";
import { SecretDialog, type Shown } from "../parts/secret";
import { type Key, NewKeyForm } from "./keyForms";
import { KeyState } from "./keys";
import { ProjectForm } from "./tenantForms";
import type { Tenant } from "./tenantOverview";

type Project = RowOf<"/v1/admin/projects">;
const BATCHES = batchColumns(false);
type Request = RowOf<"/v1/admin/requests">;
type Adapter = RowOf<"/v1/admin/adapters">;

export function TenantProjects({ tenant }: { tenant: Tenant }) {
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

export function TenantKeys({ tenant }: { tenant: Tenant }) {
  const list = useList("/v1/admin/keys", { query: { tenant: tenant.slug, sort: "-created_at" } });
  const may = useMay()("keys:write");
  const [creating, setCreating] = useState(false);
  const [shown, setShown] = useState<Shown | null>(null);
  const create = may && (
    <button type="button" className="button" onClick={() => setCreating(true)}>
      New key
    </button>
  );
  return (
    <>
      <DataTable
        label={`Keys of ${tenant.name}`}
        list={list}
        columns={KEYS}
        id={(key) => key.id}
        to={(key) => place("/keys", key.id)}
        filters={
          <>
            <Link to="/keys" query={{ tenant: tenant.slug }}>
              All keys, with filters
            </Link>
            {create}
          </>
        }
        empty={
          <EmptyState title="No key yet">
            <p>The tenant needs a key to send requests.</p>
          </EmptyState>
        }
      />
      <Dialog open={creating} onClose={() => setCreating(false)} title="New key" keep>
        <NewKeyForm
          tenant={tenant.slug}
          onDone={(made) => {
            setCreating(false);
            setShown(made);
          }}
          onCancel={() => setCreating(false)}
        />
      </Dialog>
      <SecretDialog shown={shown} onStored={() => setShown(null)} />
    </>
  );
}

export function TenantBudgets({ tenant }: { tenant: Tenant }) {
  const may = useMay()("money:write");
  const [creating, setCreating] = useState(false);
  return (
    <>
      <BudgetTable
        label={`Budgets of ${tenant.name}`}
        query={{ tenant: tenant.slug }}
        filters={
          may && (
            <button type="button" className="button" onClick={() => setCreating(true)}>
              New budget
            </button>
          )
        }
        empty={
          <EmptyState title="No budget">
            <p>Only the tenant's rate limits bound its use.</p>
          </EmptyState>
        }
      />
      <Dialog open={creating} onClose={() => setCreating(false)} title="New budget" keep>
        <BudgetForm tenant={tenant.slug} onDone={() => setCreating(false)} />
      </Dialog>
    </>
  );
}

const REQUESTS: readonly Column<Request>[] = [
  { id: "id", header: "Request", cell: (one) => <code className="no-break">{one.request_id.slice(0, 12)}…</code> },
  { id: "ending", header: "Ending", cell: (one) => (one.status === "held" ? "running" : (one.ending ?? one.status)) },
  { id: "model", header: "Model or adapter", cell: (one) => <AnsweredBy model={one.model} adapter={one.adapter} /> },
  { id: "tier", header: "Tier", cell: (one) => one.tier },
  { id: "key", header: "Key", wide: true, cell: (one) => <KeyName id={one.key_id} /> },
  { id: "prompt", header: "Prompt", end: true, wide: true, cell: (one) => <Count value={one.prompt_tokens} /> },
  { id: "made", header: "Completion", end: true, wide: true, cell: (one) => <Count value={one.completion_tokens} /> },
  {
    id: "ttft",
    header: "TTFT",
    end: true,
    cell: (one) => <span className="num">{one.ttft_s === null ? "–" : duration(one.ttft_s)}</span>,
  },
  {
    id: "cost",
    header: "Cost",
    end: true,
    cell: (one) =>
      one.cost_picos === null ? "–" : <Money picos={one.cost_picos} currency={one.currency ?? undefined} short />,
  },
  { id: "ended", header: "Ended", end: true, cell: (one) => <Time at={one.ended_at} /> },
];

/** The newest requests; the page of all requests has the filters. */
export function TenantRequests({ tenant }: { tenant: Tenant }) {
  const list = useList("/v1/admin/requests", { query: { tenant: tenant.slug } }, { limit: 25 });
  return (
    <DataTable
      label={`Requests of ${tenant.name}`}
      list={list}
      columns={REQUESTS}
      id={(one) => one.request_id}
      to={(one) => place("/requests", one.request_id)}
      filters={
        <Link to="/requests" query={{ tenant: tenant.slug }}>
          All requests, with filters
        </Link>
      }
      empty={<EmptyState title="No request yet" />}
    />
  );
}

/** The newest batches; the page of all batches has the filters. */
export function TenantBatches({ tenant }: { tenant: Tenant }) {
  const list = useBatches({ tenant: tenant.slug }, 25);
  return (
    <DataTable
      label={`Batches of ${tenant.name}`}
      list={list}
      columns={BATCHES}
      id={(one) => one.id}
      to={(one) => place("/batches", one.id)}
      filters={
        <>
          <Link to="/batches" query={{ tenant: tenant.slug }}>
            All batches, with filters
          </Link>
          <Link to="/files" query={{ tenant: tenant.slug }}>
            Files
          </Link>
        </>
      }
      empty={<EmptyState title="No batch yet" />}
    />
  );
}

const ADAPTERS: readonly Column<Adapter>[] = [
  { id: "name", header: "Adapter", cell: (one) => <b>{one.name}</b> },
  { id: "base", header: "Base model", cell: (one) => one.base_model },
  { id: "version", header: "Version", end: true, cell: (one) => <span className="num">{one.version}</span> },
  { id: "created", header: "Created", cell: (one) => <Time at={one.created_at} /> },
];

export function TenantAdapters({ tenant }: { tenant: Tenant }) {
  const list = useList("/v1/admin/adapters", { query: { tenant: tenant.slug } });
  return (
    <DataTable
      label={`Adapters of ${tenant.name}`}
      list={list}
      columns={ADAPTERS}
      id={(one) => one.id}
      to={(one) => place("/adapters", one.id)}
      filters={
        <Link to="/adapters" query={{ tenant: tenant.slug }}>
          All adapters, with filters
        </Link>
      }
      empty={
        <EmptyState title="No adapter of its own">
          <p>Adapters that are shared with this tenant are listed under their owners.</p>
        </EmptyState>
      }
    />
  );
}
