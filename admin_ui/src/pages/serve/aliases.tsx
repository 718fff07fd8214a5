// The list of aliases, with forms to create, change and remove them.
import { useState } from "react";
import { api, useGet, useList, useMay, useWrite } from "../../api";
import { Badge, type Column, ConfirmDialog, DataTable, Dialog, EmptyState, PageHead, Time, toast } from "../../kit";
import { AliasForm } from "./aliasForm";
import { ALIASES, type Alias, Shares } from "./aliasParts";
import { AliasArms } from "./arms";
import { InOrder, MayCall, hues } from "./modelParts";
import "./models.css";

type Open = { what: "edit" | "remove"; alias: Alias } | "new" | null;

function Origin({ of: alias }: { of: Alias }) {
  if (alias.source === "configuration") return <>laneway.toml</>;
  return <>set {alias.created_at == null ? "here" : <Time at={alias.created_at} />}</>;
}

export default function Aliases() {
  const may = useMay();
  const list = useList("/v1/admin/aliases", {});
  const models = useGet("/v1/admin/models", undefined, { everyMs: 10_000 }).data?.data ?? [];
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const write = may("models:write");
  const colour = hues(models);
  const columns: Column<Alias>[] = [
    {
      id: "name",
      header: "Alias",
      cell: (alias) => (
        <span className="row">
          <b>{alias.name}</b>
          {!alias.active && <Badge>off</Badge>}
        </span>
      ),
      csv: (alias) => alias.name,
    },
    {
      id: "models",
      header: "Models",
      cell: (alias) => <Shares name={alias.name} targets={alias.models} hues={colour} />,
      csv: (alias) => alias.models.map((target) => `${target.model} ${target.weight}`).join("; "),
    },
    {
      id: "cheapest",
      header: "Cheapest",
      cell: (alias) =>
        alias.cheapest ? <Badge tone="accent">opt-in tenants</Badge> : <span className="faint">by weight</span>,
      csv: (alias) => String(alias.cheapest),
    },
    {
      id: "fallbacks",
      header: "Fallbacks",
      cell: (alias) => <InOrder models={alias.fallbacks} none="the model's own" />,
      csv: (alias) => alias.fallbacks.join(" "),
    },
    {
      id: "tenants",
      header: "Allowed tenants",
      cell: (alias) => <MayCall tenants={alias.tenants ?? null} />,
      csv: (alias) => alias.tenants?.join(" ") ?? "*",
    },
    {
      id: "origin",
      header: "Origin",
      wide: true,
      cell: (alias) => <Origin of={alias} />,
      csv: (alias) => alias.source,
    },
    ...(write
      ? [
          {
            id: "do",
            header: "Change",
            end: true,
            cell: (alias: Alias) => (
              <span className="row-actions">
                <button
                  type="button"
                  className="button button-quiet"
                  aria-label={`Edit ${alias.name}`}
                  onClick={() => setOpen({ what: "edit", alias })}
                >
                  Edit
                </button>
                {(alias.source === "row" || alias.active) && (
                  <button
                    type="button"
                    className="button button-quiet"
                    aria-label={`Remove ${alias.name}`}
                    onClick={() => setOpen({ what: "remove", alias })}
                  >
                    Remove
                  </button>
                )}
              </span>
            ),
          },
        ]
      : []),
  ];
  const make = write && (
    <button type="button" className="button button-main" onClick={() => setOpen("new")}>
      New alias
    </button>
  );
  const edited = open !== null && open !== "new" && open.what === "edit" ? open.alias : null;
  return (
    <>
      <PageHead
        title="Aliases"
        note="Names that stand for one or several models: a second name, a canary by weight, or the cheapest of several. Responses and invoices name the model that served. A row's details compare its models."
      >
        {make}
      </PageHead>
      <DataTable
        label="Aliases"
        list={list}
        columns={columns}
        id={(alias) => alias.name}
        detail={(alias) => <AliasArms alias={alias.name} />}
        csv
        empty={
          <EmptyState title="No alias yet">
            <p>An alias lets you change the model behind a name without changing its callers.</p>
            {make}
          </EmptyState>
        }
      />
      <Dialog
        open={open === "new" || edited !== null}
        onClose={close}
        title={edited === null ? "New alias" : `Edit ${edited.name}`}
        note="Every gateway applies it within a second. Requests in flight stay on their model."
        keep
        wide
      >
        <AliasForm of={edited} models={models} taken={list.rows.map((alias) => alias.name)} onDone={close} />
      </Dialog>
      <Removal of={open !== null && open !== "new" && open.what === "remove" ? open.alias : null} close={close} />
    </>
  );
}

/** An alias set by an operator is removed; an alias of laneway.toml can only be turned off. */
function Removal({ of: alias, close }: { of: Alias | null; close: () => void }) {
  const remove = useWrite(
    (name: string) => api.delete("/v1/admin/aliases/{alias}", { path: { alias: name } }),
    ALIASES,
  );
  const off = useWrite(
    ({ name, source: _, created_at: __, ...rest }: Alias) =>
      api.put("/v1/admin/aliases/{alias}", { path: { alias: name }, body: { ...rest, active: false } }),
    ALIASES,
  );
  const configured = alias?.source === "configuration";
  return (
    <ConfirmDialog
      open={alias !== null}
      onClose={close}
      title={configured ? `Turn ${alias?.name} off?` : `Remove ${alias?.name}?`}
      verb={configured ? "Turn off" : "Remove"}
      action={async () => {
        if (alias === null) return;
        await (configured ? off.mutateAsync(alias) : remove.mutateAsync(alias.name));
        toast(configured ? `${alias.name} is off.` : `${alias.name} is removed.`);
      }}
    >
      {configured
        ? "laneway.toml defines this alias; the console overrides it. New requests to it get 404 until it is edited or removed here."
        : "The definition in laneway.toml applies again; if there is none, new requests to it get 404. Requests in flight finish."}
    </ConfirmDialog>
  );
}
