// One base model: where it is and who uses it, what its tokens cost now and next in each tier, who changed it, and what can
// be done to it.
import { type ReactNode, useState } from "react";
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
  useParam,
  wholeList,
} from "../../kit";
import { useAliases } from "./aliasParts";
import { AuditTable } from "../parts/auditTable";
import { ChangeModelForm, useModelChange } from "./modelForms";
import {
  EngineAway,
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
import {
  METERS,
  METERS_SAID,
  type Price,
  type Standing as PriceStanding,
  perMillion,
  plainTier,
  usePrices,
} from "./prices";

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
            <EmptyState title="There is no such base model">
              <p>
                laneway.toml names them under [[models]]; others are added on <Link to="/models">Models</Link>.
              </p>
            </EmptyState>
          </>
        ) : (
          <Whole of={model} among={answer} />
        );
      }}
    </Loaded>
  );
}

type Open = "price" | "change" | "pin" | "remove" | "restore" | null;

function Whole({ of: model, among }: { of: Model; among: ModelsAnswer }) {
  const may = useMay();
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const { standing, versions, known } = usePrices(model.name);
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
              Remove
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
      <EngineAway of={among} />
      <Refused of={model} />
      <Standing of={model} />
      <Tabs
        label={`Of ${model.name}`}
        tabs={[
          {
            id: "about",
            label: "About",
            content: () => (
              <>
                <About of={model} />
                {model.where !== null && (
                  <Section title="Beside the others">
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
                  content: () => <AllPrices of={model} standing={standing} versions={versions} known={known} />,
                },
              ]
            : []),
          ...(may("audit:read") ? [{ id: "changes", label: "Changes", content: () => <Changes of={model} /> }] : []),
        ]}
      />
      <Dialog
        open={open === "price"}
        onClose={close}
        title={`A price of ${model.name}`}
        note="Per million tokens. First it is seen what it would have made of a month's usage."
        keep
        wide
      >
        <PriceForm model={model.name} standing={standing} onDone={close} />
      </Dialog>
      <Dialog open={open === "change"} onClose={close} title={`Change ${model.name}`} keep>
        <ChangeModelForm of={model} models={among.data} onDone={close} />
      </Dialog>
      <Deeds of={model} open={open} close={close} />
    </>
  );
}

function Deeds({ of: model, open, close }: { of: Model; open: Open; close: () => void }) {
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
        deed={() => pin.mutateAsync({ pinned: !model.pinned })}
      >
        {model.pinned
          ? "Its weights leave the device again when others are asked for and there is no room."
          : "Its weights stay on the device while nobody calls it, which others cannot use meanwhile."}
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "remove"}
        onClose={close}
        title={`Remove ${model.name}?`}
        verb="Remove"
        name={model.name}
        deed={async () => {
          const left = await remove.mutateAsync();
          toast(
            left.state === "draining"
              ? `${model.name} drains: what runs on it ends first.`
              : `${model.name} is removed.`,
          );
        }}
      >
        {inside === 1 ? (
          "The request that runs or waits on it ends as it would have."
        ) : inside > 1 ? (
          <>
            The <b className="num">{count(inside)}</b> requests that run or wait on it end as they would have.
          </>
        ) : (
          "Nothing runs on it now; what still comes before ends as it would have."
        )}{" "}
        From now on whoever calls it
        {model.adapters > 0 && (
          <>
            , or one of its <b className="num">{count(model.adapters)}</b> adapters,
          </>
        )}{" "}
        gets 404, its weights leave the device, and it can be restored.
      </ConfirmDialog>
      <ConfirmDialog
        open={open === "restore"}
        onClose={close}
        title={`Restore ${model.name}?`}
        verb="Restore"
        tone="plain"
        deed={async () => {
          await restore.mutateAsync();
          toast(`${model.name} is served again.`);
        }}
      >
        It is served as it was when it was removed, and its adapters with it, once the engine has checked its files:
        within seconds for most, in five minutes at most.
      </ConfirmDialog>
    </>
  );
}

function requestsOn(model: Model): number {
  return (model.running ?? 0) + (model.waiting ?? 0);
}

function stateNote(model: Model): string | undefined {
  const inside = requestsOn(model);
  if (model.state === "draining")
    return `nobody new may call it; ${inside === 0 ? "what runs on it ends first" : inside === 1 ? "1 request ends first" : `${count(inside)} requests end first`}`;
  if (model.state === "removed") return "nobody may call it";
  if (model.state === "refused") return "nobody is served by it";
  if (model.state === "loading") return "the engine checks its files";
  return coldSaid(model) ?? (model.where === "device" ? "a request can begin at once" : undefined);
}

/** What is read first: whether it serves, where its weights are, and who uses it. */
function Standing({ of: model }: { of: Model }) {
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
            {model.where === null ? "where is not known now" : whereSaid(model)} <Pinned of={model} />
          </>
        }
      />
      <StatTile
        label="Running"
        value={model.running === null ? "–" : count(model.running)}
        note={model.waiting === null ? undefined : `${count(model.waiting)} wait`}
        tone={(model.waiting ?? 0) > 0 ? "warn" : "plain"}
      />
      <StatTile
        label="Loads"
        value={model.loads === null ? "–" : count(model.loads)}
        note="of its weights, since the engine started"
      />
    </Tiles>
  );
}

/** A fact that is known while an engine serves the model. */
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
        ["May call it", <MayCall tenants={model.tenants} />],
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
            {model.adapters} may be called
          </Link>,
        ],
        ...known("Context", model.context_tokens, (tokens) => <>{count(tokens)} tokens</>),
        ["Default max_tokens", <Count value={model.max_tokens_default} />],
        ...known("Tokens a page", model.tokens_per_page, (tokens) => (
          <>
            {count(tokens)}
            {model.page_waste_bytes !== null && (
              <span className="faint">
                ,{" "}
                {model.page_waste_bytes === 0
                  ? "nothing of a page is unused"
                  : `${bytes(model.page_waste_bytes)} of each page unused`}
              </span>
            )}
          </>
        )),
        ...known("With the whole arena", model.kv_tokens, (tokens) => (
          <>
            {count(tokens)} tokens in <Count value={model.pages} /> pages
          </>
        )),
        ...known("Vocabulary", model.vocab_size, (size) => count(size)),
        ["Directory", <code>{model.path}</code>],
        [
          "Digest",
          model.digest === null ? (
            <span className="faint">unknown while no engine serves it</span>
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
      <EmptyState title="Nothing was changed yet">
        <p>It is as laneway.toml says. What was published of its prices is among the versions.</p>
      </EmptyState>
    );
  return <AuditTable object={model.id} />;
}

function AllPrices({
  of: model,
  standing,
  versions,
  known,
}: {
  of: Model;
  standing: readonly PriceStanding[];
  versions: readonly Price[];
  known: boolean;
}) {
  if (!known) return <Skeleton lines={6} />;
  return (
    <>
      {standing.length === 0 && (
        <EmptyState title="It has no price">
          <p>Without one its requests are refused.</p>
        </EmptyState>
      )}
      {standing.map((one) => (
        <Prices key={one.currency} of={one} />
      ))}
      <Section title="Versions" note="A version never changes; the latest in force holds.">
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

function Prices({ of: { currency, now, next } }: { of: PriceStanding }) {
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
            per million tokens; another from <Time at={next.effective_from} absolute detail="minute" />
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

const VERSIONS: readonly Column<Price>[] = [
  {
    id: "from",
    header: "In force from",
    cell: (price) => (
      <span className="row">
        <Time at={price.effective_from} absolute detail="minute" />
        {price.effective_from * 1000 > Date.now() && <Badge tone="warn">to come</Badge>}
      </span>
    ),
    csv: (price) => iso(price.effective_from),
  },
  { id: "currency", header: "Currency", cell: (price) => price.currency, csv: (price) => price.currency },
  ...METERS.map((meter) => ({
    id: meter,
    header: METERS_SAID[meter],
    end: true,
    cell: (price: Price) => <span className="num">{perMillion(price.tiers[plainTier(price)]?.[meter] ?? 0)}</span>,
    csv: (price: Price) => perMillion(price.tiers[plainTier(price)]?.[meter] ?? 0),
  })),
  {
    id: "tier",
    header: "For",
    wide: true,
    cell: (price) => <span className="faint">{plainTier(price)}</span>,
    csv: plainTier,
  },
  {
    id: "published",
    header: "Published",
    wide: true,
    cell: (price) => <Time at={price.created_at} />,
    csv: (price) => iso(price.created_at),
  },
];
