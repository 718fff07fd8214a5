// The list of base models: state, location of weights, requests and prices.
import { useMay } from "../../api";
import {
  Badge,
  type Column,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  Link,
  PageHead,
  Problem,
  Section,
  Skeleton,
  Time,
  bytes,
  count,
  place,
  useNewDialog,
  wholeList,
} from "../../kit";
import { AddModelForm } from "./modelForms";
import {
  EngineDown,
  InOrder,
  MayCall,
  type Model,
  ModelState,
  ModelWhere,
  Refused,
  WeightsBudget,
  coldSaid,
  useModels,
} from "./modelParts";
import { perMillion, plainTier, usePrices } from "./prices";
import { QualitySection, formatsOf } from "./quality";
import "./models.css";

/** Input, cached input and output per million tokens. */
function PriceNow({ of: model }: { of: Model }) {
  const { current, known } = usePrices(model.name);
  if (!known) return <span className="faint">…</span>;
  if (current.every((one) => one.now === null)) return <span className="warn-word">no price, requests refused</span>;
  return (
    <div className="deliveries">
      {current.map(({ currency, now, next }) => {
        const unit = now?.tiers[plainTier(now)];
        return (
          <span key={currency} className="num" title={now === null ? undefined : `in ${plainTier(now)}`}>
            {unit !== undefined && now !== null && (
              <>
                {perMillion(unit.input)} · {perMillion(unit.cached_input)} · {perMillion(unit.output)}{" "}
                <span className="unit">{currency}</span>
              </>
            )}
            {next !== null && (
              <span className="warn-word">
                {" "}
                next price <Time at={next.effective_from} />
              </span>
            )}
          </span>
        );
      })}
    </div>
  );
}

function Requests({ of: model }: { of: Model }) {
  if (model.running === null || model.waiting === null) return <span className="faint">–</span>;
  return (
    <div className="two-lines">
      <span className="num">
        <b>{count(model.running)}</b> running, {model.waiting > 0 ? <b>{count(model.waiting)}</b> : "0"} waiting
      </span>
      {coldSaid(model) !== null && <span className="faint num">{coldSaid(model)}</span>}
    </div>
  );
}

function Context({ of: model }: { of: Model }) {
  return (
    <div className="two-lines">
      <Count value={model.context_tokens} />
      {model.tokens_per_page !== null && <span className="faint num">{count(model.tokens_per_page)} per page</span>}
      {model.page_waste_bytes !== null && model.page_waste_bytes > 0 && (
        <span className="faint num">{bytes(model.page_waste_bytes)} unused</span>
      )}
    </div>
  );
}

const NAME: Column<Model> = {
  id: "name",
  header: "Model",
  cell: (model) => (
    <span className="two-lines model-name">
      <b>{model.name}</b>
      <span className="faint">
        <code>{formatsOf(model).weights}</code>
        {formatsOf(model).kv !== model.dtype && (
          <>
            , KV <code>{formatsOf(model).kv}</code>
          </>
        )}
        {model.origin === "added" && ", added"}
      </span>
    </span>
  ),
  csv: (model) => model.name,
};
const COLUMNS: readonly Column<Model>[] = [
  NAME,
  { id: "state", header: "State", cell: (model) => <ModelState of={model} />, csv: (model) => model.state },
  { id: "where", header: "Weights", cell: (model) => <ModelWhere of={model} />, csv: (model) => model.where },
  { id: "bytes", header: "Bytes of weights", hidden: true, cell: () => null, csv: (model) => model.weights_bytes },
  { id: "loads", header: "Loads", hidden: true, cell: () => null, csv: (model) => model.loads },
  { id: "requests", header: "Requests", cell: (model) => <Requests of={model} />, csv: (model) => model.running },
  { id: "waiting", header: "Waiting", hidden: true, cell: () => null, csv: (model) => model.waiting },
  {
    id: "context",
    header: "Context",
    end: true,
    wide: true,
    cell: (model) => <Context of={model} />,
    csv: (model) => model.context_tokens,
  },
  { id: "page", header: "Tokens per page", hidden: true, cell: () => null, csv: (model) => model.tokens_per_page },
  {
    id: "adapters",
    header: "Adapters",
    end: true,
    cell: (model) => (
      <Link to="/adapters" query={{ search: model.name }} className="num">
        {model.adapters}
      </Link>
    ),
    csv: (model) => model.adapters,
  },
  {
    id: "tenants",
    header: "Allowed tenants",
    cell: (model) => (
      <div className="two-lines models-may">
        <MayCall tenants={model.tenants} />
        {model.fallbacks.length > 0 && (
          <span className="faint">
            fallback <InOrder models={model.fallbacks} />
          </span>
        )}
      </div>
    ),
    csv: (model) => model.tenants?.join(" ") ?? "*",
  },
  { id: "fallbacks", header: "Fallbacks", hidden: true, cell: () => null, csv: (model) => model.fallbacks.join(" ") },
  { id: "price", header: "Input · cached · output", cell: (model) => <PriceNow of={model} /> },
];
const REMOVED: readonly Column<Model>[] = [
  NAME,
  { id: "state", header: "State", cell: () => <Badge>removed</Badge> },
  { id: "changed", header: "Since", cell: (model) => <Time at={model.changed_at} /> },
  { id: "path", header: "Directory", wide: true, cell: (model) => <code>{model.path}</code> },
];

export default function Models() {
  const found = useModels();
  const may = useMay()("models:write");
  const [adding, setAdding] = useNewDialog();
  const answer = found.data;
  return (
    <>
      <PageHead
        title="Models"
        note="Base models of this engine. Weights are loaded on demand and evicted for other models."
      >
        {may && (
          <button type="button" className="button button-main" onClick={() => setAdding(true)}>
            Add a model
          </button>
        )}
      </PageHead>
      {answer === undefined ? (
        found.error === null ? (
          <Skeleton lines={5} />
        ) : (
          <Problem error={found.error} again={() => void found.refetch()} />
        )
      ) : (
        <>
          <EngineDown of={answer} />
          {answer.data
            .filter((one) => one.reason !== null)
            .map((one) => (
              <Refused key={one.name} of={one} named />
            ))}
          <WeightsBudget of={answer} />
          <DataTable
            label="Models"
            list={wholeList(answer.data.filter((one) => one.state !== "removed"))}
            columns={COLUMNS}
            id={(model) => model.name}
            to={(model) => place("/models", model.name)}
            csv
            empty={<EmptyState title="No model" />}
          />
          <QualitySection models={answer.data} limits={answer.quality_limits} />
          {answer.data.some((one) => one.state === "removed") && (
            <Section title="Removed" note="Requests to these models get 404. A model can be restored on its page.">
              <DataTable
                label="Removed models"
                list={wholeList(answer.data.filter((one) => one.state === "removed"))}
                columns={REMOVED}
                id={(model) => model.name}
                to={(model) => place("/models", model.name)}
                empty={<EmptyState title="None" />}
              />
            </Section>
          )}
        </>
      )}
      <Dialog
        open={adding}
        onClose={() => setAdding(false)}
        title="Add a model"
        note="A directory in the models folder, on every host of a gateway or an engine. The model is served once the engine has checked its files."
        keep
        wide
      >
        <AddModelForm models={answer?.data ?? []} onDone={() => setAdding(false)} />
      </Dialog>
    </>
  );
}
