// One base model: state, location and use, prices by tier, changes, and actions.
import type { ReactNode } from "react";
import { api, useGet, useMay, useWrite } from "../../api";
import {
  Badge,
  type Column,
  ConfirmDialog,
  Count,
  DataTable,
  Dialog,
  EmptyState,
  Facts,
  Id,
  Link,
  Loaded,
  PageHead,
  Section,
  Skeleton,
  StatTile,
  Tabs,
  Tiles,
  Time,
  bytes,
  count,
  iso,
  toast,
  useActionDialog,
  useParam,
  wholeList,
} from "../../kit";
import { useAliases } from "./aliasParts";
import { AuditTable } from "../parts/auditTable";
import { ChangeModelForm, useModelChange } from "./modelForms";
import {
  EngineDown,
  InOrder,
  MODELS,
  MayCall,
  type Model,
  ModelState,
  type ModelsAnswer,
  Origin,
  Pinned,
  Refused,
  WeightsBudget,
  coldSaid,
  useModels,
  whereSaid,
} from "./modelParts";
import { PriceForm } from "./priceForm";
import { METERS, METERS_SAID } from "../parts/meters";
import { type Price, type CurrentPrice, perMillion, usePrices } from "./prices";
import { QualitySection, formatsOf } from "./quality";

export default function ModelPage() {
  const name = useParam("model");
  const found = useModels();
  return (
    <Loaded of={found} lines={8}>
      {(answer) => {
        const model = answer.data.find((one) => one.name === name);
        return model === undefined ? (
          <>
            <PageHead title={name} trail={<Link to="/models">Models</Link>} />
            <EmptyState title="Base model not found">
              <p>
                Models are listed in laneway.toml under [[models]], or added on <Link to="/models">Models</Link>.
              </p>
            </EmptyState>
          </>
        ) : (
          <ModelDetails of={model} among={answer} />
        );
      }}
    </Loaded>
  );
}

const MODEL_ACTIONS = ["change", "pin", "remove", "restore"] as const;
type Open = "price" | (typeof MODEL_ACTIONS)[number] | null;

function ModelDetails({ of: model, among }: { of: Model; among: ModelsAnswer }) {
  const may = useMay();
  const [open, setOpen] = useActionDialog([
    ...(may("prices:write") ? (["price"] as const) : []),
    ...(may("models:write") ? MODEL_ACTIONS : []),
  ]);
  const close = () => setOpen(null);
  const { current, versions, known } = usePrices(model.name);
  const active = model.state !== "removed" && model.state !== "draining";
  return (
    <>
      <PageHead
        title={model.name}
        trail={<Link to="/models">Models</Link>}
        note={
          <>
            base model, <code>{model.dtype}</code>, <Origin of={model} />
          </>
        }
      >
        {may("models:write") && active && (
          <>
            <button type="button" className="button" onClick={() => setOpen("remove")}>
              Drain and remove
            </button>
            <button type="button" className="button" onClick={() => setOpen("pin")}>
              {model.pinned ? "Unpin" : "Pin"}
            </button>
            <button type="button" className="button" onClick={() => setOpen("change")}>
              Change
            </button>
          </>
        )}
        {may("models:write") && !active && (
          <button type="button" className="button button-main" onClick={() => setOpen("restore")}>
            Restore
          </button>
        )}
        {may("prices:write") && (
          <button type="button" className={active ? "button button-main" : "button"} onClick={() => setOpen("price")}>
            Publish a price
          </button>
        )}
      </PageHead>
      <EngineDown of={among} />
      <Refused of={model} />
      <StateTiles of={model} />
      <Tabs
        label={`Sections of ${model.name}`}
        tabs={[
          {
            id: "about",
            label: "About",
            content: () => (
              <>
                <About of={model} />
                <QualitySection models={[model]} limits={among.quality_limits} />
                {model.where !== null && (
                  <Section title="Device memory for weights">
                    <WeightsBudget of={among} />
                  </Section>
                )}
              </>
            ),
          },
          ...(may("prices:read")
            ? [
                {
                  id: "prices",
                  label: "Prices",
                  content: () => <AllPrices of={model} current={current} versions={versions} known={known} />,
                },
              ]
            : []),
          ...(may("audit:read") ? [{ id: "changes", label: "Changes", content: () => <Changes of={model} /> }] : []),
        ]}
      />
      <Dialog
        open={open === "price" && known}
        onClose={close}
        title={`Publish a price of ${model.name}`}
        note="Per million tokens. A preview shows what one month's usage would have cost."
        keep
        wide
      >
        <PriceForm model={model.name} current={current} onDone={close} />
      </Dialog>
      <Dialog open={open === "change"} onClose={close} title={`Change ${model.name}`} keep>
        <ChangeModelForm of={model} models={among.data} onDone={close} />
      </Dialog>
      <ModelDialogs of={model} open={open} close={close} />
    </>
  );
}

function ModelDialogs({ of: model, open, close }: { of: Model; open: Open; close: () => void }) {
  const path = { model: model.name };
  const pin = useModelChange(model.name);
  const remove = useWrite(() => api.delete("/v1/admin/models/{model}", { path }), MODELS);
  const restore = useWrite(() => api.post("/v1/admin/models/{model}/restore", { path }), MODELS);
  const inside = requestsOn(model);
  return (
    <>
      <ConfirmDialog
        open={open === "pin"}
        onClose={close}
        title={model.pinned ? `Unpin ${model.name}?` : `Pin ${model.name}?`}
        verb={model.pinned ? "Unpin" : "Pin"}
        tone="plain"
        action={() => pin.mutateAsync({ pinned: !model.pinned })}
      >
        {model.pinned
          ? "Its weights may be evicted again when another model needs the memory."
          : "Its weights are never evicted, so other models cannot use that memory even while it is idle."}
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "remove"}
        onClose={close}
        title={`Drain and remove ${model.name}?`}
        verb="Drain and remove"
        name={model.name}
        action={async () => {
          const left = await remove.mutateAsync();
          toast(
            left.state === "draining"
              ? `${model.name} is draining: its requests finish first.`
              : `${model.name} is removed.`,
          );
        }}
      >
        {inside === 1 ? (
          "The request that runs or waits on it finishes normally."
        ) : inside > 1 ? (
          <>
            The <b className="num">{count(inside)}</b> requests that run or wait on it finish normally.
          </>
        ) : (
          "No request runs on it now; a request that still arrives before the removal finishes normally."
        )}{" "}
        New requests to it
        {model.adapters > 0 && (
          <>
            or to one of its <b className="num">{count(model.adapters)}</b> adapters
          </>
        )}{" "}
        get 404, and its weights are evicted. It can be restored.
        <Rerouted of={model} />
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "restore"}
        onClose={close}
        title={`Restore ${model.name}?`}
        verb="Restore"
        tone="plain"
        action={async () => {
          await restore.mutateAsync();
          toast(`${model.name} is served again.`);
        }}
      >
        It is served with its former settings and adapters once the engine has checked its files: usually within
        seconds, at most five minutes.
      </ConfirmDialog>
    </>
  );
}

/** The effects of a removal on the aliases of the model and on the models whose fallback it is. */
function Rerouted({ of: model }: { of: Model }) {
  const models = useModels().data?.data ?? [];
  const aliases = useAliases().filter(
    (alias) => alias.active && alias.models.some((target) => target.model === model.name && target.weight > 0),
  );
  const falling = models.filter((one) => one.fallbacks.includes(model.name)).map((one) => one.name);
  return (
    <>
      {aliases.map((alias) => {
        const others = alias.models.filter((target) => target.model !== model.name && target.weight > 0);
        return (
          <p key={alias.name}>
            Requests for the alias <b>{alias.name}</b>{" "}
            {others.length === 0
              ? "get 404: it has no other model."
              : `are then served by ${others.map((target) => target.model).join(", ")}.`}
          </p>
        );
      })}
      {falling.length > 0 && <p>It is no longer a fallback of {falling.join(", ")}.</p>}
    </>
  );
}

function requestsOn(model: Model): number {
  return (model.running ?? 0) + (model.waiting ?? 0);
}

function stateNote(model: Model): string | undefined {
  const inside = requestsOn(model);
  if (model.state === "draining")
    return `new requests are refused; ${inside === 0 ? "its requests finish first" : inside === 1 ? "1 request finishes first" : `${count(inside)} requests finish first`}`;
  if (model.state === "removed") return "requests are refused";
  if (model.state === "refused") return "the engine does not serve it";
  if (model.state === "loading") return "the engine is checking its files";
  return coldSaid(model) ?? (model.where === "device" ? "requests start immediately" : undefined);
}

/** Headline tiles: state, weights, requests and loads. */
function StateTiles({ of: model }: { of: Model }) {
  const moving = model.coming === true || model.leaving === true;
  return (
    <Tiles>
      <StatTile label="State" value={<ModelState of={model} />} note={stateNote(model)} />
      <StatTile
        label="Weights"
        value={model.weights_bytes === null ? "–" : bytes(model.weights_bytes)}
        tone={moving ? "warn" : "plain"}
        note={
          <>
            {model.where === null ? "location unknown" : whereSaid(model)} <Pinned of={model} />
            <br />
            in memory, as {formatsOf(model).weights}. Files may be smaller: they may have another dtype, and a CPU
            engine also holds matrices packed.
          </>
        }
      />
      <StatTile
        label="Running"
        value={model.running === null ? "–" : count(model.running)}
        note={model.waiting === null ? undefined : `${count(model.waiting)} waiting`}
        tone={(model.waiting ?? 0) > 0 ? "warn" : "plain"}
      />
      <StatTile
        label="Loads"
        value={model.loads === null ? "–" : count(model.loads)}
        note="of its weights since the engine started"
      />
    </Tiles>
  );
}

/** A fact that is known only while an engine serves the model. */
function known(name: string, value: number | null, said: (value: number) => ReactNode): [string, ReactNode][] {
  return value === null ? [] : [[name, said(value)]];
}

function About({ of: model }: { of: Model }) {
  const aliases = useAliases().filter((alias) =>
    [...alias.models.map((target) => target.model), ...alias.fallbacks].includes(model.name),
  );
  return (
    <Facts
      facts={[
        ["Allowed tenants", <MayCall tenants={model.tenants} />],
        ["Fallbacks", <InOrder models={model.fallbacks} />],
        [
          "Aliases",
          aliases.length === 0 ? (
            <span className="faint">none</span>
          ) : (
            <Link to="/aliases">{aliases.map((alias) => alias.name).join(", ")}</Link>
          ),
        ],
        [
          "Adapters",
          <Link to="/adapters" query={{ search: model.name }}>
            {model.adapters} active
          </Link>,
        ],
        ...known("Context", model.context_tokens, (tokens) => <>{count(tokens)} tokens</>),
        ["Default max_tokens", <Count value={model.max_tokens_default} />],
        ["Weights", <code>{formatsOf(model).weights}</code>],
        ["KV", <code>{formatsOf(model).kv}</code>],
        ...known("Tokens per page", model.tokens_per_page, (tokens) => (
          <>
            {count(tokens)}
            {model.page_waste_bytes !== null && (
              <span className="faint">
                ,{" "}
                {model.page_waste_bytes === 0
                  ? "no bytes unused"
                  : `${bytes(model.page_waste_bytes)} unused in each page`}
              </span>
            )}
          </>
        )),
        ...known("Whole arena", model.kv_tokens, (tokens) => (
          <>
            {count(tokens)} tokens in <Count value={model.pages} /> pages
          </>
        )),
        ...known("Vocabulary", model.vocab_size, (size) => count(size)),
        ["Directory", <code>{model.path}</code>],
        [
          "Digest",
          model.digest === null ? (
            <span className="faint">unknown until an engine serves it</span>
          ) : (
            <Id value={model.digest} />
          ),
        ],
      ]}
    />
  );
}

function Changes({ of: model }: { of: Model }) {
  if (model.id === null)
    return (
      <EmptyState title="No changes yet">
        <p>The model is as laneway.toml defines it. Its price versions are listed under Prices.</p>
      </EmptyState>
    );
  return <AuditTable object={model.id} />;
}

function AllPrices({
  of: model,
  current,
  versions,
  known,
}: {
  of: Model;
  current: readonly CurrentPrice[];
  versions: readonly Price[];
  known: boolean;
}) {
  if (!known) return <Skeleton lines={6} />;
  return (
    <>
      {current.length === 0 && (
        <EmptyState title="No price">
          <p>Requests to it are refused until it has a price.</p>
        </EmptyState>
      )}
      {current.map((one) => (
        <Prices key={one.currency} of={one} />
      ))}
      <Section title="Versions" note="A version never changes; the latest one in force applies.">
        <DataTable
          label={`Prices of ${model.name}`}
          list={wholeList(versions)}
          columns={VERSIONS}
          id={(price) => price.id}
          csv
          empty={<EmptyState title="None yet" />}
        />
      </Section>
    </>
  );
}

function Prices({ of: { currency, now, next } }: { of: CurrentPrice }) {
  const order = useGet("/v1/admin/tiers").data?.data.map((tier) => tier.name) ?? [];
  const priced = new Set([...Object.keys(now?.tiers ?? {}), ...Object.keys(next?.tiers ?? {})]);
  const tiers = [...new Set([...order.filter((tier) => priced.has(tier)), ...priced])];
  const cell = (price: Price | null, tier: string, meter: (typeof METERS)[number]) =>
    price?.tiers[tier] === undefined ? "–" : perMillion(price.tiers[tier][meter]);
  return (
    <Section
      title={`Price in ${currency}`}
      note={
        next === null ? (
          "per million tokens"
        ) : (
          <>
            per million tokens; next price from <Time at={next.effective_from} absolute detail="minute" />
          </>
        )
      }
    >
      <div className="table-scroll" tabIndex={0} role="region" aria-label={`Price in ${currency}, by tier`}>
        <table className="table">
          <caption className="sr-only">Price in {currency} per million tokens, by tier</caption>
          <thead>
            <tr>
              <th scope="col">Tier</th>
              {METERS.map((meter) => (
                <th key={meter} scope="col" className="end">
                  {METERS_SAID[meter]}
                </th>
              ))}
            </tr>
          </thead>
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

/** The tiers of a price, the dearest first. */
function byTier(price: Price): [string, Price["tiers"][string]][] {
  return Object.entries(price.tiers).sort(([, a], [, b]) => b.output - a.output || b.input - a.input);
}

const VERSIONS: readonly Column<Price>[] = [
  {
    id: "from",
    header: "In force from",
    cell: (price) => (
      <span className="row">
        <Time at={price.effective_from} absolute detail="minute" />
        {price.effective_from * 1000 > Date.now() && <Badge tone="warn">scheduled</Badge>}
      </span>
    ),
    csv: (price) => iso(price.effective_from),
  },
  { id: "currency", header: "Currency", cell: (price) => price.currency, csv: (price) => price.currency },
  {
    id: "tier",
    header: "Tier",
    cell: (price) => (
      <>
        {byTier(price).map(([tier]) => (
          <div key={tier}>{tier}</div>
        ))}
      </>
    ),
  },
  ...METERS.map((meter) => ({
    id: meter,
    header: METERS_SAID[meter],
    end: true,
    cell: (price: Price) => (
      <>
        {byTier(price).map(([tier, unit]) => (
          <div key={tier} className="num">
            {perMillion(unit[meter])}
          </div>
        ))}
      </>
    ),
    csv: (price: Price) =>
      byTier(price)
        .map(([tier, unit]) => `${tier} ${perMillion(unit[meter])}`)
        .join("; "),
  })),
  {
    id: "published",
    header: "Published",
    wide: true,
    cell: (price) => <Time at={price.created_at} />,
    csv: (price) => iso(price.created_at),
  },
];
