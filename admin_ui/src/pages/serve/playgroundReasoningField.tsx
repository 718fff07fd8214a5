// The part of the playground's form for models that reason: effort, the budget of reasoning, and whether it is shown.
import { type FormState, SelectField, TextField } from "../../kit";

// As a type, not an interface: a form's values have an index signature.
export type ReasoningValues = { reasoning_effort: string; max_reasoning_tokens: string; include_reasoning: string };

const EFFORTS = [["", "the model's own"], ["none", "none: do not reason"], "low", "medium", "high"] as const;
const SHOWN = [
  ["", "shown"],
  ["false", "left out"],
] as const;

/** `lack`: the chosen models that do not reason. */
export function ReasoningField<V extends ReasoningValues & Record<string, string>>({
  form: whole,
  lack,
}: {
  form: FormState<V>;
  lack: readonly string[];
}) {
  const form = whole as unknown as FormState<ReasoningValues>;
  return (
    <fieldset className="panel playground-reasoning">
      <legend>Reasoning</legend>
      <div className="field-row">
        <SelectField form={form} name="reasoning_effort" label="reasoning_effort" options={EFFORTS} />
        <TextField
          form={form}
          name="max_reasoning_tokens"
          label="max_reasoning_tokens"
          type="number"
          placeholder="no limit"
        />
        <SelectField form={form} name="include_reasoning" label="Reasoning in the answer" options={SHOWN} />
      </div>
      <p className="hint">
        Reasoning is billed as output, also where it is left out.
        {lack.length > 0 && ` The model ${lack.join(" and ")} does not reason.`}
      </p>
    </fieldset>
  );
}
