// One base model: what the engine makes of it, what its tokens cost now and next in each tier, and a new price.
import { useState } from "react";
import { useGet, useMay } from "../api";
import { Badge, type Column, Count, DataTable, Dialog, EmptyState, Facts, Id, Link, Loaded, PageHead, Section, Time, useParam, wholeList } from "../kit";
import type { Model } from "./models";
import { PriceForm } from "./priceForm";
import { METERS, METERS_SAID, type Price, type Standing, perMillion, plainTier, usePrices } from "./prices";

export default function ModelPage() {
  const name = useParam("model");
  const found = useGet("/v1/admin/models", undefined, { everyMs: 10_000 });
  return (
    <Loaded of={found} lines={8}>
      {(answer) => {
        const model = answer.data.find((one) => one.name === name);
        return model === undefined ? <><PageHead title={name} trail={<Link to="/models">Models</Link>} /><EmptyState title="There is no such base model"><p>laneway.toml names them under [[models]].</p></EmptyState></> : <Whole of={model} />;
      }}
    </Loaded>
  );
}

function Whole({ of: model }: { of: Model }) {
  const may = useMay();
  const [publishing, setPublishing] = useState(false);
  const { standing, versions } = usePrices(model.name);
  return (
    <>
      <PageHead title={model.name} trail={<Link to="/models">Models</Link>} note={<>base model, <code>{model.dtype}</code></>}>
        {may("prices:write") && <button type="button" className="button button-main" onClick={() => setPublishing(true)}>Publish a price</button>}
      </PageHead>
      <Facts
        facts={[
          ["Context", <><Count value={model.context_tokens} /> tokens</>],
          ["Tokens a page", <Count value={model.tokens_per_page} />],
          ["With the whole arena", <><Count value={model.kv_tokens} /> tokens in <Count value={model.pages} /> pages</>],
          ["Vocabulary", <Count value={model.vocab_size} />],
          ["Default max_tokens", <Count value={model.max_tokens_default} />],
          ["Adapters", <Link to="/adapters" query={{ search: model.name }}>{model.adapters} may be called</Link>],
          ["Digest", model.digest === null ? <span className="faint">unknown until an engine connects</span> : <Id value={model.digest} />],
        ]}
      />
      {may("prices:read") && (
        <>
          {standing.length === 0 && <Section title="Price"><EmptyState title="It has no price"><p>Without one its requests are refused.</p></EmptyState></Section>}
          {standing.map((one) => <Prices key={one.currency} of={one} />)}
          <Section title="Versions" note="A version never changes; the latest in force holds.">
            <DataTable label={`Prices of ${model.name}`} list={wholeList(versions)} columns={VERSIONS} id={(price) => price.id} csv empty={<EmptyState title="None yet" />} />
          </Section>
        </>
      )}
      <Dialog open={publishing} onClose={() => setPublishing(false)} title={`A price of ${model.name}`} note="Per million tokens. First it is seen what it would have made of a month's usage." keep wide>
        <PriceForm model={model.name} standing={standing} onDone={() => setPublishing(false)} />
      </Dialog>
    </>
  );
}

function Prices({ of: { currency, now, next } }: { of: Standing }) {
  const order = useGet("/v1/admin/tiers").data?.data.map((tier) => tier.name) ?? [];
  const priced = new Set([...Object.keys(now?.tiers ?? {}), ...Object.keys(next?.tiers ?? {})]);
  const tiers = [...new Set([...order.filter((tier) => priced.has(tier)), ...priced])];
  const cell = (price: Price | null, tier: string, meter: (typeof METERS)[number]) => (price?.tiers[tier] === undefined ? "–" : perMillion(price.tiers[tier][meter]));
  return (
    <Section title={`Price in ${currency}`} note={next === null ? "per million tokens" : <>per million tokens; another from <Time at={next.effective_from} absolute detail="minute" /></>}>
      <div className="table-scroll" tabIndex={0} role="region" aria-label={`Price in ${currency}, by tier`}>
        <table className="table">
          <caption className="sr-only">Price in {currency} per million tokens, by tier</caption>
          <thead><tr><th scope="col">Tier</th>{METERS.map((meter) => <th key={meter} scope="col" className="end">{METERS_SAID[meter]}</th>)}</tr></thead>
          <tbody>
            {tiers.map((tier) => (
              <tr key={tier}>
                <th scope="row">{tier}</th>
                {METERS.map((meter) => (
                  <td key={meter} className="end num">
                    {cell(now, tier, meter)}
                    {next !== null && <div className="warn-word">then {cell(next, tier, meter)}</div>}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

const VERSIONS: readonly Column<Price>[] = [
  { id: "from", header: "In force from", cell: (price) => <span className="row"><Time at={price.effective_from} absolute detail="minute" />{price.effective_from * 1000 > Date.now() && <Badge tone="warn">to come</Badge>}</span>, csv: (price) => price.effective_from },
  { id: "currency", header: "Currency", cell: (price) => price.currency, csv: (price) => price.currency },
  ...METERS.map((meter) => ({
    id: meter,
    header: METERS_SAID[meter],
    end: true,
    cell: (price: Price) => <span className="num">{perMillion(price.tiers[plainTier(price)]?.[meter] ?? 0)}</span>,
    csv: (price: Price) => perMillion(price.tiers[plainTier(price)]?.[meter] ?? 0),
  })),
  { id: "tier", header: "For", wide: true, cell: (price) => <span className="faint">{plainTier(price)}</span>, csv: plainTier },
  { id: "published", header: "Published", wide: true, cell: (price) => <Time at={price.created_at} />, csv: (price) => price.created_at },
];
