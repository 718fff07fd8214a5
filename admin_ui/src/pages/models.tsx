// Base models: what the engine makes of each, and what its tokens cost.
import { type AnswerOf, useGet } from "../api";
import { type Column, Count, DataTable, EmptyState, Link, PageHead, Problem, Skeleton, Time, place, wholeList } from "../kit";
import { perMillion, plainTier, usePrices } from "./prices";

export type Model = AnswerOf<"/v1/admin/models">["data"][number];

/** Input, cached input and output per million tokens. */
function PriceNow({ of: model }: { of: Model }) {
  const { standing, known } = usePrices(model.name);
  if (!known) return <span className="faint">…</span>;
  if (standing.every((one) => one.now === null)) return <span className="warn-word">no price: it refuses</span>;
  return (
    <div className="deliveries">
      {standing.map(({ currency, now, next }) => {
        const unit = now?.tiers[plainTier(now)];
        return (
          <span key={currency} className="num">
            {unit !== undefined && now !== null && <>{perMillion(unit.input)} · {perMillion(unit.cached_input)} · {perMillion(unit.output)} {currency} <span className="faint">in {plainTier(now)}</span></>}
            {next !== null && <span className="warn-word"> another <Time at={next.effective_from} /></span>}
          </span>
        );
      })}
    </div>
  );
}

const COLUMNS: readonly Column<Model>[] = [
  { id: "name", header: "Model", cell: (model) => <b>{model.name}</b>, csv: (model) => model.name },
  { id: "dtype", header: "Type", cell: (model) => <code>{model.dtype}</code>, csv: (model) => model.dtype },
  { id: "context", header: "Context", end: true, cell: (model) => <Count value={model.context_tokens} />, csv: (model) => model.context_tokens },
  { id: "page", header: "Tokens a page", end: true, cell: (model) => <Count value={model.tokens_per_page} />, csv: (model) => model.tokens_per_page },
  { id: "adapters", header: "Adapters", end: true, cell: (model) => <Link to="/adapters" query={{ search: model.name }} className="num">{model.adapters}</Link>, csv: (model) => model.adapters },
  { id: "price", header: "Input · cached · output, per million tokens", cell: (model) => <PriceNow of={model} /> },
];

export default function Models() {
  const found = useGet("/v1/admin/models", undefined, { everyMs: 10_000 });
  return (
    <>
      <PageHead title="Models" note="The base models that are served, as laneway.toml names them." />
      {found.data === undefined ? (
        found.error === null ? <Skeleton lines={5} /> : <Problem error={found.error} again={() => void found.refetch()} />
      ) : (
        <>
          {found.data.engine_away !== null && <div className="problem" role="status"><p>The engine is away: {found.data.engine_away} What it made of its models is as it last said.</p></div>}
          <DataTable label="Models" list={wholeList(found.data.data)} columns={COLUMNS} id={(model) => model.name} to={(model) => place("/models", model.name)} csv empty={<EmptyState title="No model" />} />
        </>
      )}
    </>
  );
}
