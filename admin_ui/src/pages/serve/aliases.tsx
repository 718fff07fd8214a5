// The list of aliases, with forms to create, change and remove them.
import { useState } from "react";
import { useGet, useList, useMay } from "../../api";
import { Badge, type Column, DataTable, EmptyState, PageHead, Time } from "../../kit";
import { AliasActions, AliasDialogs, type OpenDialog } from "./aliasDialogs";
import { type Alias, Shares, splitsVersions } from "./aliasParts";
import { AliasArms } from "./arms";
import { InOrder, MayCall, hues } from "./modelParts";
import "./models.css";

function Origin({ of: alias }: { of: Alias }) {
  if (alias.source === "configuration") return <>laneway.toml</>;
  return <>set {alias.created_at == null ? "here" : <Time at={alias.created_at} />}</>;
}

export default function Aliases() {
  const may = useMay();
  const list = useList("/v1/admin/aliases", {});
  const models = useGet("/v1/admin/models", undefined, { everyMs: 10_000 }).data?.data ?? [];
  const [open, setOpen] = useState<OpenDialog>(null);
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
      cell: (alias) =>
        alias.tenants == null && splitsVersions(alias) ? (
          "tenants of its adapters"
        ) : (
          <MayCall tenants={alias.tenants ?? null} />
        ),
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
            cell: (alias: Alias) => <AliasActions of={alias} open={setOpen} />,
          },
        ]
      : []),
  ];
  const make = write && (
    <button type="button" className="button button-main" onClick={() => setOpen("new")}>
      New alias
    </button>
  );
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
        detail={(alias) => <AliasArms of={alias} />}
        csv
        empty={
          <EmptyState title="No alias yet">
            <p>An alias lets you change the model behind a name without changing its callers.</p>
            {make}
          </EmptyState>
        }
      />
      <AliasDialogs open={open} close={() => setOpen(null)} taken={list.rows.map((alias) => alias.name)} />
    </>
  );
}
