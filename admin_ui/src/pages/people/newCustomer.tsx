// A new customer in five steps: tenant, project, key, budget and limits, test call. Each step is saved when it is done,
// and the page shows the existing objects, so that the setup can be continued later.
import { type ReactNode, useState } from "react";
import { type AnswerOf, useGet, useSession } from "../../api";
import { Badge, EmptyState, Link, Loaded, PageHead, ShortId, place, useGo, useLeaveGuard, useView } from "../../kit";
import { BudgetStep, KeyStep, ProjectStep, TenantStep } from "./customerForms";
import { SecretBlock, TestStep } from "./customerTest";
import { type NewSecret, type Setup, useSetup } from "./setup";
import "./newCustomer.css";

type Tenant = AnswerOf<"/v1/admin/tenants/{tenant_id}">;

export default function NewCustomer() {
  const { tenant } = useView({ tenant: "" }).values;
  const found = useGet("/v1/admin/tenants/{tenant_id}", { path: { tenant_id: tenant } }, { enabled: tenant !== "" });
  const operator = useSession().tenant === null;
  return (
    <>
      <PageHead
        title="New customer"
        trail={<Link to="/tenants">Tenants</Link>}
        note="From the tenant to its first request. Each step is saved when it is done, and the tenant's page continues the setup later."
      />
      {!operator ? (
        <EmptyState title="Only an operator creates tenants" />
      ) : tenant === "" ? (
        <Steps tenant={null} />
      ) : (
        <Loaded of={found} lines={8}>
          {(one) => <Steps key={one.id} tenant={one} />}
        </Loaded>
      )}
    </>
  );
}

type Name = "tenant" | "project" | "key" | "budget" | "test";

function Steps({ tenant }: { tenant: Tenant | null }) {
  const setup = useSetup(tenant?.slug ?? "");
  const go = useGo();
  const [skipped, setSkipped] = useState<readonly Name[]>([]);
  const [secret, setSecret] = useState<NewSecret | null>(null);
  const [asked, setAsked] = useState(false);
  useLeaveGuard(secret !== null && !secret.stored, () => setAsked(true));
  if (setup === null)
    return <Loaded of={{ data: undefined, error: null, refetch: () => undefined }}>{() => null}</Loaded>;
  const done = doneOf(tenant, setup);
  const names: readonly Name[] = ["tenant", "project", "key", "budget", "test"];
  const open = names.find((name) => !done[name] && !skipped.includes(name)) ?? "test";
  const skip = (name: Name) => setSkipped([...skipped, name]);
  // Existing objects are shown for a skipped step too.
  const exists = { ...done, project: true, budget: setup.budgets.length + setup.limits.length > 0 };
  const step = (name: Name, title: string, summary: ReactNode, form: () => ReactNode) => (
    <Step number={names.indexOf(name) + 1} title={title} state={open === name ? "open" : done[name] ? "done" : "later"}>
      {open === name ? (
        form()
      ) : !done[name] && !skipped.includes(name) ? null : exists[name] ? (
        summary
      ) : (
        <span className="faint">skipped</span>
      )}
    </Step>
  );
  return (
    <ol className="setup-steps">
      {step("tenant", "Tenant", tenant !== null && <TenantSummary tenant={tenant} />, () => (
        <TenantStep onDone={(slug) => go("/new-customer", { tenant: slug })} onCancel={() => go("/tenants")} />
      ))}
      {tenant !== null && (
        <>
          {step("project", "Project", <Listed names={setup.projects.map((one) => one.name)} />, () => (
            <ProjectStep tenant={tenant.slug} onSkip={() => skip("project")} />
          ))}
          {step(
            "key",
            "Key",
            <>
              <ul className="setup-list">
                {setup.keys.map((key) => (
                  <li key={key.id}>
                    <Link to={place("/keys", key.id)}>{key.name}</Link>{" "}
                    <code className="faint">
                      {key.prefix}…{key.last4}
                    </code>
                  </li>
                ))}
              </ul>
              {secret !== null && (
                <SecretBlock of={secret} asked={asked} onStored={() => setSecret({ ...secret, stored: true })} />
              )}
            </>,
            () => (
              <KeyStep tenant={tenant.slug} projects={setup.projects} onDone={setSecret} onSkip={() => skip("key")} />
            ),
          )}
          {step("budget", "Budget and limits", <BudgetSummary tenant={tenant} setup={setup} />, () => (
            <BudgetStep tenant={tenant} setup={setup} onSkip={() => skip("budget")} />
          ))}
          {step("test", "Test call and snippet", null, () => (
            <TestStep tenant={tenant.slug} secret={secret} projects={setup.projects} onSecret={setSecret} />
          ))}
        </>
      )}
    </ol>
  );
}

function doneOf(tenant: Tenant | null, setup: Setup): Record<Name, boolean> {
  return {
    tenant: tenant !== null,
    project: setup.projects.some((project) => project.name !== "default"),
    key: setup.keys.length > 0,
    budget: setup.budgets.length > 0 && setup.limits.length > 0,
    test: false,
  };
}

function Step({
  number,
  title,
  state,
  children,
}: {
  number: number;
  title: string;
  state: "open" | "done" | "later";
  children: ReactNode;
}) {
  return (
    <li className={`setup-step setup-${state}`} {...(state === "open" ? { "aria-current": "step" as const } : {})}>
      <div className="setup-head">
        <span className="setup-number num" aria-hidden="true">
          {state === "done" ? "✓" : number}
        </span>
        <h2>{title}</h2>
        {state === "done" && <Badge tone="good">done</Badge>}
      </div>
      {children !== null && <div className="setup-body">{children}</div>}
    </li>
  );
}

function TenantSummary({ tenant }: { tenant: Tenant }) {
  return (
    <p>
      <Link to={place("/tenants", tenant.slug)}>{tenant.name}</Link> <code>{tenant.slug}</code>, tier {tenant.tier},{" "}
      {tenant.currency}, {tenant.time_zone} <ShortId value={tenant.id} />
    </p>
  );
}

function Listed({ names }: { names: readonly string[] }) {
  return <p>{names.join(", ")}</p>;
}

function BudgetSummary({ tenant, setup }: { tenant: Tenant; setup: Setup }) {
  return (
    <p>
      <Link to={place("/tenants", tenant.slug)} query={{ tab: "budgets" }}>
        {setup.budgets.length === 1 ? "1 budget" : `${setup.budgets.length} budgets`}
      </Link>
      ,{" "}
      <Link to={place("/tenants", tenant.slug)} query={{ tab: "limits" }}>
        {setup.limits.length === 0 ? "no rate limits of its own" : "its own rate limits"}
      </Link>
    </p>
  );
}
