// The aliases that split requests between versions of an adapter.
import { useState } from "react";
import { useMay } from "../../api";
import { type Column, DataTable, EmptyState, Section, wholeList } from "../../kit";
import { shareSaid } from "../parts/shares";
import { AliasActions, AliasDialogs, type OpenDialog } from "./aliasDialogs";
import { type Alias, Shares, useAliases } from "./aliasParts";

const NO_HUES: ReadonlyMap<string, number> = new Map(); // versions have no colour of their own

/** The active aliases with an arm that is a version of the adapter `name`. */
export function useSplits(name: string): readonly Alias[] {
  return useAliases().filter(
    (alias) => alias.active && alias.models.some((target) => target.model.startsWith(`${name}@`)),
  );
}

/** The arms of aliases that get requests. */
export function armsOf(splits: readonly Alias[]): string[] {
  return splits.flatMap((alias) => alias.models.filter((target) => target.weight > 0).map((target) => target.model));
}

export function Splits({ of: splits }: { of: readonly Alias[] }) {
  const [open, setOpen] = useState<OpenDialog>(null);
  const write = useMay()("models:write");
  const columns: Column<Alias>[] = [
    { id: "name", header: "Alias", cell: (alias) => <b>{alias.name}</b>, csv: (alias) => alias.name },
    {
      id: "arms",
      header: "Requests",
      cell: (alias) => <Shares name={alias.name} targets={alias.models} hues={NO_HUES} />,
      csv: armsSaid,
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
  return (
    <>
      {splits.length > 0 && (
        <Section title="Splits" note="Promote and Roll back do not change them.">
          <DataTable
            label="Splits"
            list={wholeList(splits)}
            columns={columns}
            id={(alias) => alias.name}
            empty={<EmptyState title="No split" />}
          />
        </Section>
      )}
      <AliasDialogs open={open} close={() => setOpen(null)} taken={[]} />
    </>
  );
}

/** For the dialogs that change the served version: the aliases that still send requests to fixed versions. */
export function SplitsRemain({ of: splits }: { of: readonly Alias[] }) {
  return (
    <>
      {splits.map((alias) => (
        <p key={alias.name}>
          The alias <b>{alias.name}</b> does not change: its requests are still served by {armsSaid(alias)}. Edit or
          remove it under Splits.
        </p>
      ))}
    </>
  );
}

function armsSaid(alias: Alias): string {
  const all = alias.models.reduce((sum, target) => sum + target.weight, 0);
  return alias.models.map((target) => `${target.model} (${shareSaid(target.weight, all)})`).join(" and ");
}
