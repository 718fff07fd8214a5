// A new price: what it would have made of a month's usage is seen before it is published.
import { useState } from "react";
import { type AnswerOf, api, useGet, useWrite } from "../../api";
import {
  type Column,
  Count,
  DataTable,
  EmptyState,
  Form,
  Money,
  StatTile,
  TextField,
  Tiles,
  exact,
  percent,
  toast,
  useForm,
  wholeList,
  wrong,
} from "../../kit";
import { TenantName } from "../parts/names";
import { type Standing, perMillion, perTokenOf, plainTier } from "./prices";

type Preview = AnswerOf<"/v1/admin/prices/preview", "post">;
type Row = Preview["tenants"][number];

/** "premium 3, batch 0.5" by tier. */
export function multipliersOf(text: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const one of text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean)) {
    const [, tier, times] = /^(\S+)\s*[\s=:×]\s*([\d.]+)$/.exec(one) ?? [];
    if (tier === undefined || times === undefined)
      throw wrong(
        "multipliers",
        `'${one}' is not a tier and what its prices are times the plain ones, as in 'premium 3'.`,
      );
    found[tier] = times;
  }
  return found;
}

/** What the tiers of a price are times its plain one, where that can be said shortly. */
function multipliersSaid(standing: Standing | undefined): string {
  const price = standing?.now;
  if (price == null) return "";
  const plain = price.tiers[plainTier(price)];
  if (plain === undefined || plain.input === 0) return "";
  return Object.entries(price.tiers)
    .map(([tier, unit]) => `${tier} ${unit.input / plain.input}`)
    .join(", ");
}

/** `ahead`: the model is not there yet, and nobody has used it: there is nothing to preview. */
export function PriceForm({
  model,
  standing,
  ahead = false,
  onDone,
}: {
  model: string;
  standing: readonly Standing[];
  ahead?: boolean;
  onDone: () => void;
}) {
  const first = standing[0];
  const plain = first?.now?.tiers[plainTier(first.now)];
  const tiers = useGet("/v1/admin/tiers").data?.data ?? [];
  const form = useForm({
    currency: first?.currency ?? "USD",
    input: plain === undefined ? "" : perMillion(plain.input),
    cached_input: plain === undefined ? "" : perMillion(plain.cached_input),
    output: plain === undefined ? "" : perMillion(plain.output),
    multipliers: multipliersSaid(first),
    effective_from: "",
    month: "",
  });
  const [seen, setSeen] = useState<{ of: string; preview: Preview } | null>(null);
  const publish = useWrite(
    (body: Parameters<typeof api.post<"/v1/admin/prices">>[1]["body"]) => api.post("/v1/admin/prices", { body }),
    ["/v1/admin/prices", "/v1/admin/audit_log"],
  );
  const { values } = form;
  // What was seen holds for these values alone.
  const asked = JSON.stringify([
    values.currency,
    values.input,
    values.cached_input,
    values.output,
    values.multipliers,
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
    multipliers: multipliersOf(values.multipliers),
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
    if (Number.isNaN(at)) throw wrong("effective_from", `'${values.effective_from}' is no moment.`);
    await publish.mutateAsync({ ...body(), effective_from: at });
    toast(at === null ? "The price is in force." : "The price is published, and comes into force in its time.");
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
          hint="Blank: as input."
        />
        <TextField form={form} name="output" label="Output" type="number" unit={values.currency} />
      </div>
      <div className="field-row">
        <TextField
          form={form}
          name="multipliers"
          label="Tiers"
          placeholder="premium 3, batch 0.5"
          hint={`What each tier's prices are times these; a tier not named: 1.${tiers.length > 0 ? ` There are ${tiers.map((tier) => tier.name).join(", ")}.` : ""}`}
        />
        <TextField form={form} name="currency" label="Currency" mono />
      </div>
      <div className="field-row">
        <TextField
          form={form}
          name="effective_from"
          label="In force from, UTC"
          type="datetime-local"
          optional
          hint="Blank: at once. Holds that were taken keep the price they were taken at."
        />
        {!ahead && (
          <TextField
            form={form}
            name="month"
            label="Month of the preview"
            optional
            placeholder="2026-01"
            hint="Blank: the last whole one."
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
      header: "It paid",
      end: true,
      cell: (row) => <Money picos={row.was_picos} />,
      csv: (row) => row.was_picos,
    },
    {
      id: "would",
      header: "It would have",
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
          label="It would have been"
          value={<Money picos={would} currency={preview.currency} short />}
          note={change === null ? undefined : said(change)}
          tone="accent"
        />
      </Tiles>
      <DataTable
        label={`What ${preview.month} would have cost`}
        list={wholeList(preview.tenants)}
        columns={columns}
        id={(row) => row.tenant_id}
        csv
        empty={<EmptyState title={`Nothing used it in ${preview.month}`} />}
      />
    </div>
  );
}
