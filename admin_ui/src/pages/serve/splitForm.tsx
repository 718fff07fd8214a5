// Splits requests between the served version of an adapter and another one: an alias whose arms are the two versions.
import { type AnswerOf, type List, api, useList, useWrite } from "../../api";
import { Form, Link, TextField, fieldError, gather, numberOf, required, toast, useForm } from "../../kit";
import { ALIASES, type Alias } from "./aliasParts";

type Adapter = AnswerOf<"/v1/admin/adapters/{adapter}">;

export function SplitForm({ of: adapter, version, onDone }: { of: Adapter; version: number; onDone: () => void }) {
  const aliases = useList("/v1/admin/aliases");
  const taken = aliases.rows.map((alias) => alias.name);
  const free = [`${adapter.name}-split`, `${adapter.name}-split-${version}`].find((name) => !taken.includes(name));
  const form = useForm({ name: free ?? "", models: "5" });
  const put = useWrite(
    ({ name, part }: { name: string; part: number }) =>
      api.put("/v1/admin/aliases/{alias}", {
        path: { alias: name },
        body: {
          models: [
            { model: `${adapter.name}@${adapter.version}`, weight: 100 - part },
            { model: `${adapter.name}@${version}`, weight: part },
          ],
          active: true,
          cheapest: false,
          fallbacks: [],
        },
      }),
    ALIASES,
  );
  return (
    <Form
      form={form}
      verb="Split"
      onCancel={onDone}
      save={async (values) => {
        const { name, part } = gather({
          name: () => required(values.name, "name", "Enter a name: the model name that callers send."),
          part: () => partOf(values.models),
        });
        // `rows` may not be loaded, and has the first aliases only: a write would replace an alias that is not in it.
        if (await aliasExists(aliases, name))
          throw fieldError(
            "name",
            `The alias '${name}' already exists. Edit it on the page Aliases, or enter another name.`,
          );
        await put.mutateAsync({ name, part });
        toast(`The alias ${name} sends ${part} % of its requests to version ${version}.`);
        onDone();
      }}
    >
      <TextField
        form={form}
        name="name"
        label="Alias"
        mono
        hint={`The model name that callers send for the split. Requests for ${adapter.name} itself still get version ${adapter.version}.`}
      />
      <TextField
        form={form}
        name="models"
        label={`Requests for version ${version}`}
        type="number"
        unit="%"
        hint={`The rest gets version ${adapter.version}. All requests of one conversation get the same version.`}
      />
      <p className="hint">
        The split is then listed under Versions, and on <Link to="/aliases">Aliases</Link>.
      </p>
    </Form>
  );
}

/** Reads all aliases. Throws an ApiError. */
async function aliasExists(aliases: List<Alias>, name: string): Promise<boolean> {
  for await (const rows of aliases.all(new AbortController().signal))
    if (rows.some((alias) => alias.name === name)) return true;
  return false;
}

function partOf(text: string): number {
  const part = numberOf(text, "models");
  if (part === null || part <= 0 || part >= 100) throw fieldError("models", "Enter a percentage between 0 and 100.");
  return part;
}
