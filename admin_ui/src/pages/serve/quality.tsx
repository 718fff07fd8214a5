// The quality of quantised models: their formats and how far each is from its unquantised weights, drawn against the
// limits of the gate.
import type { ReactNode } from "react";
import { type Column, Count, DataTable, EmptyState, Link, Section, Time, iso, place, wholeList } from "../../kit";
import type { Model, ModelsAnswer } from "./modelParts";
import "./models.css";
import "./quality.css";

type Limits = ModelsAnswer["quality_limits"];
type Quality = NonNullable<Model["quality"]>;

/** Where the limit is drawn, in percent of a bar. */
const LIMIT_AT = 80;

const part = (value: number) => `${(value * 100).toFixed(1)} %`;
const nats = (value: number) => value.toFixed(4);

/** Whether the weights or the KV of the model have, or are configured to have, another format than its dtype. */
export function isQuantised(model: Model): boolean {
  const differs = (format: string | null) => format !== null && format !== model.dtype;
  return (
    model.quality !== null ||
    model.quantize !== "none" ||
    model.kv_dtype !== "auto" ||
    differs(model.weights_format) ||
    differs(model.kv_format)
  );
}

/** The formats of the weights and of the KV: those of the engine, or without one those of the settings. */
export function formatsOf(model: Model): { weights: string; kv: string } {
  return {
    weights: model.weights_format ?? (model.quantize === "none" ? model.dtype : model.quantize),
    kv: model.kv_format ?? (model.kv_dtype === "auto" ? model.dtype : model.kv_dtype),
  };
}

/** A measure with a bar: the distance from the reference as a part of the distance that the limit allows. */
function Measured({
  said,
  limit,
  label,
  used,
  allowed,
}: {
  said: string;
  limit: string;
  label: string;
  used: number;
  allowed: number;
}) {
  const over = used > allowed;
  const width = allowed > 0 ? Math.min(100, (used / allowed) * LIMIT_AT) : over ? 100 : 0;
  return (
    <div className="measured">
      <span className="num no-break">
        {said} <span className="faint">{limit}</span>
      </span>
      <svg
        className={over ? "measured-bar measured-over" : "measured-bar"}
        viewBox="0 0 100 10"
        preserveAspectRatio="none"
        role="img"
        aria-label={`${label}: ${said}, limit ${limit}`}
      >
        <rect className="measured-all" y="2" width="100" height="6" />
        <rect className="measured-used" y="2" width={width} height="6" />
        <line className="measured-limit" x1={LIMIT_AT} x2={LIMIT_AT} y1="0" y2="10" vectorEffect="non-scaling-stroke" />
      </svg>
    </div>
  );
}

function unmeasured(model: Model) {
  return <span className="faint">{model.state === "refused" ? "refused" : "not measured"}</span>;
}

/** A column of the CSV alone. */
function number(id: string, header: string, csv: (quality: Quality) => number): Column<Model> {
  return {
    id,
    header,
    hidden: true,
    cell: () => null,
    csv: (model) => (model.quality === null ? null : csv(model.quality)),
  };
}

/** A column over the report of a model. */
function measure(
  id: string,
  header: string,
  cell: (quality: Quality, model: Model) => ReactNode,
  csv: (quality: Quality) => number,
): Column<Model> {
  return {
    id,
    header,
    cell: (model) => (model.quality === null ? <span className="faint">–</span> : cell(model.quality, model)),
    csv: (model) => (model.quality === null ? null : csv(model.quality)),
  };
}

function columnsOf(limits: Limits): readonly Column<Model>[] {
  return [
    {
      id: "name",
      header: "Model",
      cell: (model) => <Link to={place("/models", model.name)}>{model.name}</Link>,
      csv: (model) => model.name,
    },
    {
      id: "weights",
      header: "Weights",
      cell: (model) => (
        <div className="two-lines">
          <code className="no-break">{formatsOf(model).weights}</code>
          {model.quality !== null && model.quality.kept_layers > 0 && (
            <span className="faint num">{model.quality.kept_layers} matrices in 16 bits</span>
          )}
        </div>
      ),
      csv: (model) => formatsOf(model).weights,
    },
    {
      id: "kv",
      header: "KV",
      cell: (model) => <code className="no-break">{formatsOf(model).kv}</code>,
      csv: (model) => formatsOf(model).kv,
    },
    {
      id: "mean_kl",
      header: "KL divergence, nats",
      cell: (model) =>
        model.quality === null ? (
          unmeasured(model)
        ) : (
          <Measured
            label={`KL divergence of ${model.name}`}
            said={nats(model.quality.mean_kl)}
            limit={`≤ ${limits.mean_kl_max}`}
            used={model.quality.mean_kl}
            allowed={limits.mean_kl_max}
          />
        ),
      csv: (model) => model.quality?.mean_kl ?? null,
    },
    measure(
      "top1",
      "Top-1 agreement",
      ({ top1 }, { name }) => (
        <Measured
          label={`Top-1 agreement of ${name}`}
          said={part(top1)}
          limit={`≥ ${part(limits.top1_min)}`}
          used={1 - top1}
          allowed={1 - limits.top1_min}
        />
      ),
      ({ top1 }) => top1,
    ),
    measure(
      "perplexity",
      "Perplexity",
      (quality) => (
        <div className="two-lines">
          <span className="num">{quality.perplexity.toFixed(2)}</span>
          <span className="faint num no-break">{quality.reference_perplexity.toFixed(2)} unquantised</span>
        </div>
      ),
      ({ perplexity }) => perplexity,
    ),
    number("reference_perplexity", "Perplexity, unquantised", (quality) => quality.reference_perplexity),
    measure(
      "worst_layer",
      "Worst layer",
      ({ worst_layer, worst_layer_error }, { name }) => (
        <Measured
          label={`Error of layer ${worst_layer} of ${name}`}
          said={`layer ${worst_layer}, ${part(worst_layer_error)}`}
          limit={`≤ ${part(limits.layer_error_max)}`}
          used={worst_layer_error}
          allowed={limits.layer_error_max}
        />
      ),
      ({ worst_layer }) => worst_layer,
    ),
    number("layer_error", "Error of the worst layer", (quality) => quality.worst_layer_error),
    number("kept", "Matrices in 16 bits", (quality) => quality.kept_layers),
    number("tokens", "Tokens", (quality) => quality.tokens),
    {
      id: "measured",
      header: "Measured",
      wide: true,
      cell: (model) =>
        model.quality === null ? (
          <span className="faint">–</span>
        ) : (
          <div className="two-lines">
            <Time at={model.quality.measured_at} />
            <span className="faint no-break">
              <Count value={model.quality.tokens} /> tokens
            </span>
          </div>
        ),
      csv: (model) => (model.quality === null ? null : iso(model.quality.measured_at)),
    },
  ];
}

/** The quantised ones of `models`; nothing without any. */
export function QualitySection({ models, limits }: { models: readonly Model[]; limits: Limits }) {
  const quantised = models.filter((model) => model.state !== "removed" && isQuantised(model));
  if (quantised.length === 0) return null;
  return (
    <Section
      title="Quality of quantised models"
      note="Measured once on a held-out text, against the unquantised weights. The line in a bar is the limit of the quality gate; a model beyond it is refused."
    >
      <DataTable
        label="Quality of quantised models"
        list={wholeList(quantised)}
        columns={columnsOf(limits)}
        id={(model) => model.name}
        csv
        empty={<EmptyState title="None" />}
      />
    </Section>
  );
}
