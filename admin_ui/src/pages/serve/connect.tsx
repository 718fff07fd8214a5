// Connect: how clients call this gateway. Snippets and tables come from docs/users/ through connect.json, which
// `python tests/programs/write_clients_page.py` writes; this page inserts the gateway's address and a model.
import { useState } from "react";
import { useGet, useMay } from "../../api";
import {
  Badge,
  CodeBlock,
  type Column,
  DataTable,
  EmptyState,
  Id,
  Link,
  PageHead,
  Section,
  SelectFilter,
  Tabs,
  type Tone,
  useView,
  wholeList,
} from "../../kit";
import data from "./connect.json";
import "./connect.css";

type Snippet = (typeof data.snippets)[number];
type Table = (typeof data.tables)[number];
type Row = Table["rows"][number];
type State = keyof typeof data.states;

const OWN = "/v1/admin/models";
/** The model in the snippets when the signed-in role may not list models: the default of docs/users/clients.md. */
const DEFAULT_MODEL = "smollm2-135m-instruct";
const TONES: Record<State, Tone> = { works: "good", hint: "accent", neutral: "warn", refused: "bad" };
const COLUMNS: readonly Column<Row>[] = [
  {
    id: "field",
    header: "Field",
    cell: (row) => (
      <span className="field-path">
        <code>{row.field}</code>
        {row.required && <span className="faint"> required</span>}
      </span>
    ),
    csv: (row) => row.field,
  },
  {
    id: "state",
    header: "Handling",
    cell: (row) => <Badge tone={TONES[row.state as State]}>{data.states[row.state as State]}</Badge>,
    csv: (row) => row.state,
  },
  { id: "values", header: "Values", cell: (row) => <Coded text={row.values} />, csv: (row) => row.values },
  { id: "why", header: "Why", cell: (row) => <Coded text={row.why} />, csv: (row) => row.why },
];

export default function Connect() {
  const may = useMay();
  const names = useNames(may("models:read"), may("adapters:read"));
  const [chosen, setChosen] = useState("");
  const model = chosen || names[0] || DEFAULT_MODEL;
  const { origin } = location;
  return (
    <>
      <PageHead title="Connect" note="How clients call this gateway. A test runs each snippet.">
        {may("keys:write") ? (
          <Link to="/keys" className="button">
            Create a key
          </Link>
        ) : may("keys:read") ? (
          <Link to="/keys" className="button">
            Keys
          </Link>
        ) : null}
      </PageHead>
      <dl className="connect-facts">
        <div>
          <dt>Base URL, OpenAI's clients</dt>
          <dd>
            <Id value={`${origin}/v1`} />
          </dd>
        </div>
        <div>
          <dt>Base URL, Anthropic's clients</dt>
          <dd>
            <Id value={origin} />
          </dd>
        </div>
        <div>
          <dt>
            <label htmlFor="connect-model">Model</label>
          </dt>
          <dd>
            <select id="connect-model" value={model} onChange={(event) => setChosen(event.target.value)}>
              {(names.length === 0 ? [DEFAULT_MODEL] : names).map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </dd>
        </div>
        <div>
          <dt>Key</dt>
          <dd>
            A tenant's key, in the environment as <code>LANEWAY_KEY</code>. It is shown once, when it is created.
          </dd>
        </div>
      </dl>
      <div className="connect-clients">
        <Tabs
          label="Clients"
          tabs={data.snippets.map((one) => ({
            id: one.id,
            label: one.title,
            content: () => <Shown snippet={one} origin={origin} model={model} />,
          }))}
        />
      </div>
      <Section title="Supported, neutral and refused fields" note="Generated from the types that decode requests.">
        <div className="connect-fields">
          <p className="note">
            A hint is accepted and does not change the response. A neutral value is accepted because it requests
            nothing; any other value of that field is refused, and the error names the field. A field that is in no
            table is refused unless it is empty or <code>gateway.unknown_fields</code> is <code>"ignore"</code>.
          </p>
          <Fields />
        </div>
      </Section>
    </>
  );
}

/** Names that any client may send as `model`: serving base models, active aliases, and adapters of the list's first
 * page that every tenant may call. */
function useNames(mayModels: boolean, mayAdapters: boolean): string[] {
  const models = useGet(OWN, undefined, { enabled: mayModels }).data?.data ?? [];
  const aliases = useGet("/v1/admin/aliases", undefined, { enabled: mayModels }).data?.data ?? [];
  const adapters = useGet("/v1/admin/adapters", undefined, { enabled: mayAdapters }).data?.data ?? [];
  const names = [
    ...models.filter((one) => one.state === "serving").map((one) => one.name),
    ...aliases.filter((one) => one.active).map((one) => one.name),
    ...adapters.filter((one) => one.active && one.shared.includes("*")).map((one) => one.name),
  ];
  return [...new Set(names)];
}

function Shown({ snippet, origin, model }: { snippet: Snippet; origin: string; model: string }) {
  const text = snippet.text.replaceAll("{{url}}", () => origin).replaceAll("{{model}}", () => model);
  return (
    <div className="stack connect-snippet">
      <CodeBlock label={`Install for ${snippet.title}`} text={snippet.install} />
      <CodeBlock label={`Snippet of ${snippet.title}`} text={text} />
      {snippet.agent && (
        <p className="note">
          The model must have tools: <code>capabilities.tools</code> of <code>GET /v1/models</code>. A model without
          tools refuses the request.
        </p>
      )}
    </div>
  );
}

function Fields() {
  const view = useView({ api: data.tables[0]?.path ?? "", state: "", search: "" });
  const table = data.tables.find((one) => one.path === view.values.api) ?? data.tables[0];
  const rows =
    table?.rows.filter(
      (row) =>
        (view.values.state === "" || row.state === view.values.state) && row.field.includes(view.values.search.trim()),
    ) ?? [];
  const filters = (
    <>
      <SelectFilter label="Endpoint" view={view} name="api" options={data.tables.map((one) => one.path)} />
      <SelectFilter label="State" view={view} name="state" options={[["", "All"], ...Object.keys(data.states)]} />
    </>
  );
  return (
    <DataTable
      label={`Fields of ${table?.path ?? ""}`}
      list={wholeList(rows)}
      columns={COLUMNS}
      id={(row) => row.field}
      view={view}
      search="Field"
      filters={filters}
      csv
      empty={<EmptyState title="No such field" />}
    />
  );
}

/** Text with its parts in backticks as code. */
function Coded({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}</>;
}
