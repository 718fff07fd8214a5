// The form of a new price, with a preview of one month's cost before it is published.
import { useState } from "react";
import { type AnswerOf, api, useGet, useWrite } from "../../api";
import {
  type Column,
  Count,
  DataTable,
  EmptyState,
  Form,
  Loaded,
  Money,
  StatTile,
  TextField,
  Tiles,
  exact,
  percent,
  toast,
  useForm,
  wholeList,
  fieldError,
} from "../../kit";
import { TenantName, useTenants } from "../parts/names";
import { CurrencyField } from "../parts/pickers";
import { type CurrentPrice, byUse, perMillion, perTokenOf, plainTier } from "./prices";

type Preview = AnswerOf<"/v1/admin/prices/preview", "post">;
type Row = Preview["tenants"][number];

type MultiplierField = `multiplier_${string}`;

/** The form's field with the multiplier of a tier. */
function fieldOf(tier: string): MultiplierField {
  return `multiplier_${tier}`;
}

type PriceValues = Record<
  "currency" | "input" | "cached_input" | "output" | "embedding" | "effective_from" | "month",
  string
> &
  Record<MultiplierField, string>;

/** The multipliers of a price's tiers, if the price has one multiplier per tier. */
function multipliersOf(current: CurrentPrice | undefined): Record<MultiplierField, string> {
  const price = current?.now;
  const plain = price == null ? undefined : price.tiers[plainTier(price)];
  if (price == null || plain === undefined || plain.input === 0) return {};
  return Object.fromEntries(
    Object.entries(price.tiers).map(([tier, unit]) => [fieldOf(tier), String(unit.input / plain.input)]),
  );
}

interface Props {
  model: string;
  current: readonly CurrentPrice[];
  /** The model does not exist yet, so there is nothing to preview. */
  ahead?: boolean;
  onDone: () => void;
}

/** Without the tiers there is no form: a price that is sent without multipliers has the multiplier 1 in every tier. */
export function PriceForm(props: Props) {
  const found = useGet("/v1/admin/tiers");
  return (
    <Loaded of={found} lines={6}>
      {(answer) => <LoadedForm {...props} tiers={answer.data.map(({ name }) => name)} />}
    </Loaded>
  );
}

function LoadedForm({ model, current, ahead = false, onDone, tiers }: Props & { tiers: readonly string[] }) {
  const first = current[0];
  const plain = first?.now?.tiers[plainTier(first.now)];
  const tenants = useTenants();
  const form = useForm<PriceValues>({
    ...multipliersOf(first),
    currency:
      first?.currency ??
      byUse(
        [...tenants.values()].map((one) => one.currency),
        tenants,
      )[0] ??
      "USD",
    input: plain === undefined ? "" : perMillion(plain.input),
    cached_input: plain === undefined ? "" : perMillion(plain.cached_input),
    output: plain === undefined ? "" : perMillion(plain.output),
    embedding: plain === undefined || plain.embedding === plain.input ? "" : perMillion(plain.embedding),
    effective_from: "",
    month: "",
  });
  const [seen, setSeen] = useState<{ of: string; preview: Preview } | null>(null);
  const publish = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/prices">>[1]["body"]) => api.post("/v1/admin/prices", { body }),
    ["/v1/admin/prices", "/v1/admin/audit_log"],
  );
  const { values } = form;
  // The preview is valid only for these values.
  const multipliers = Object.fromEntries(
    tiers
      .map((name) => [name, (values[fieldOf(name)] ?? "").trim()] as const)
      .filter(([, multiplier]) => multiplier !== ""),
  );
  const asked = JSON.stringify([
    values.currency,
    values.input,
    values.cached_input,
    values.output,
    values.embedding,
    multipliers,
    values.month,
  ]);
  const ready = ahead || seen?.of === asked;
  const body = () => ({
    subject: model,
    subject_kind: "model" as const,
    ahead,
    currency: values.currency.trim(),
    input: perTokenOf(values.input, "input"),
    cached_input: values.cached_input.trim() === "" ? null : perTokenOf(values.cached_input, "cached_input"),
    output: perTokenOf(values.output, "output"),
    embedding: values.embedding.trim() === "" ? null : perTokenOf(values.embedding, "embedding"),
    multipliers,
  });
  const save = async () => {
    if (!ready) {
      const preview = await api.post("/v1/admin/prices/preview", {
        body: { ...body(), month: values.month.trim() === "" ? null : values.month.trim() },
      });
      setSeen({ of: asked, preview });
      return;
    }
    const at = values.effective_from === "" ? null : Date.parse(`${values.effective_from}Z`) / 1000;
    if (Number.isNaN(at)) throw fieldError("effective_from", `'${values.effective_from}' is not a time.`);
    await publish.mutateAsync({ ...body(), effective_from: at });
    toast(at === null ? "The price is in force." : "The price is published and takes effect at its time.");
    onDone();
  };
  return (
    <Form form={form} verb={ready ? "Publish" : "Preview"} onCancel={onDone} save={save}>
      <div className="field-row">
        <TextField form={form} name="input" label="Input" type="number" unit={values.currency} autoFocus />
        <TextField
          form={form}
          name="cached_input"
          label="Cached input"
          type="number"
          unit={values.currency}
          hint="Blank: the input price."
        />
        <TextField form={form} name="output" label="Output" type="number" unit={values.currency} />
        <TextField
          form={form}
          name="embedding"
          label="Embedding"
          type="number"
          unit={values.currency}
          hint="Blank: the input price."
        />
      </div>
      <div className="field-row">
        {tiers.map((name) => (
          <TextField
            key={name}
            form={form}
            name={fieldOf(name)}
            label={`Multiplier of ${name}`}
            type="number"
            placeholder="1"
            hint="Blank: 1."
          />
        ))}
      </div>
      <div className="field-row">
        <CurrencyField form={form} />
        <TextField
          form={form}
          name="effective_from"
          label="In force from, UTC"
          type="datetime-local"
          optional
          hint="Blank: immediately. Holds that exist keep their price."
        />
        {!ahead && (
          <TextField
            form={form}
            name="month"
            label="Month of the preview"
            optional
            placeholder="2026-01"
            hint="Blank: the last complete month."
          />
        )}
      </div>
      {ready && seen !== null && <Seen of={seen.preview} />}
    </Form>
  );
}

function Seen({ of: preview }: { of: Preview }) {
  const [was, would] = [exact(preview.was_picos), exact(preview.would_picos)];
  const change = was === 0n ? null : percent(would - was, was);
  const said = (value: number) => `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(1)} %`;
  const columns: readonly Column<Row>[] = [
    { id: "tenant", header: "Tenant", cell: (row) => <TenantName id={row.tenant_id} />, csv: (row) => row.tenant_id },
    {
      id: "requests",
      header: "Requests",
      end: true,
      cell: (row) => <Count value={row.requests} />,
      csv: (row) => row.requests,
    },
    {
      id: "was",
      header: "Paid",
      end: true,
      cell: (row) => <Money picos={row.was_picos} />,
      csv: (row) => row.was_picos,
    },
    {
      id: "would",
      header: "With this price",
      end: true,
      cell: (row) => <Money picos={row.would_picos} />,
      csv: (row) => row.would_picos,
    },
    {
      id: "change",
      header: "Change",
      end: true,
      cell: (row) =>
        exact(row.was_picos) === 0n ? (
          "–"
        ) : (
          <span className="num">{said(percent(exact(row.would_picos) - exact(row.was_picos), row.was_picos))}</span>
        ),
    },
  ];
  return (
    <div className="stack" role="status">
      <Tiles>
        <StatTile label={`Paid in ${preview.month}`} value={<Money picos={was} currency={preview.currency} short />} />
        <StatTile
          label="Cost with this price"
          value={<Money picos={would} currency={preview.currency} short />}
          note={change === null ? undefined : said(change)}
          tone="accent"
        />
      </Tiles>
      <DataTable
        label={`Cost of ${preview.month} with this price`}
        list={wholeList(preview.tenants)}
        columns={columns}
        id={(row) => row.tenant_id}
        csv
        empty={<EmptyState title={`No usage in ${preview.month}`} />}
      />
    </div>
  );
}
