// The collapsible part of the playground's form: tools, the choice of a tool, and the schema of the answer.
import { useState } from "react";
import { type FormState, SelectField, TextArea, count } from "../../kit";
import { TOOL_CHOICES, readFormat, readTools, toolNames, withExample } from "./playgroundTools";

// As a type, not an interface: a form's values have an index signature.
export type ToolValues = { tools: string; tool_choice: string; response_format: string };
const FIELDS = /^(?:tools|tool_choice|response_format)\b/;

/** `lack`: the chosen models that cannot do it; `served`: a chosen model can. */
export function ToolsField<V extends ToolValues & Record<string, string>>({
  form: whole,
  lack,
  served,
}: {
  form: FormState<V>;
  lack: { tools: string[]; response_format: string[] };
  served: { tools: boolean; response_format: boolean };
}) {
  const [open, setOpen] = useState(false);
  const form = whole as unknown as FormState<ToolValues>;
  const { values, error } = form;
  const refused = error?.param != null && FIELDS.test(error.param); // a closed field cannot show its error
  const example = withExample(values.tools);
  return (
    <details
      className="panel playground-tools"
      open={open || refused}
      onToggle={(event) => setOpen(event.currentTarget.open)}
    >
      <summary>
        <b>Tools</b> <span className="faint">{summaryOf(values, served)}</span>
      </summary>
      <div className="form">
        <TextArea
          form={form}
          name="tools"
          label="Tool definitions"
          optional
          mono
          rows={8}
          placeholder='[{"type": "function", "function": {"name": "…", "parameters": {…}}}]'
          disabled={!served.tools}
          hint={toolsHint(values, lack.tools, served.tools, error !== null)}
        />
        <div className="field-row playground-choice">
          <SelectField
            form={form}
            name="tool_choice"
            label="Tool choice"
            options={TOOL_CHOICES}
            disabled={!served.tools}
          />
          <button
            type="button"
            className="button"
            disabled={!served.tools || example === null}
            onClick={() => form.set("tools", example ?? values.tools)}
          >
            Add the example get_weather
          </button>
        </div>
        <TextArea
          form={form}
          name="response_format"
          label="JSON schema of the answer (response_format)"
          optional
          mono
          rows={5}
          placeholder='{"type": "object", "properties": {…}}'
          disabled={!served.response_format}
          hint={formatHint(values, lack.response_format, served.response_format, error !== null)}
        />
      </div>
    </details>
  );
}

/** A summary of the field, shown while it is closed. */
function summaryOf(values: ToolValues, served: { tools: boolean; response_format: boolean }): string {
  const tools = readTools(values.tools);
  const said = [];
  if (!served.tools) said.push("not served by this model");
  else if ("fault" in tools) said.push("the definitions have an error");
  else if (tools.value.length > 0) said.push(`${toolsOf(tools.value.length)}, tool choice ${values.tool_choice}`);
  else said.push("none");
  if (served.response_format && values.response_format.trim() !== "") said.push("the answer has a schema");
  return said.join("; ");
}

/** With an error of the form shown, the hint does not repeat it. */
function toolsHint(values: ToolValues, lack: string[], served: boolean, refused: boolean): string {
  if (!served) return `Disabled: ${modelsOf(lack, "has no tools", "have no tools")}. Definitions are not sent.`;
  const tools = readTools(values.tools);
  const warning = lack.length === 0 ? "" : ` The model ${lack.join(" and ")} has no tools and refuses the request.`;
  if ("fault" in tools) return (refused ? "A JSON list of OpenAI's tool definitions." : tools.fault) + warning;
  if (tools.value.length === 0) return "A JSON list of OpenAI's tool definitions." + warning;
  const names = toolNames(tools.value).join(", ");
  return `${toolsOf(tools.value.length)}: ${names}.${warning}`;
}

function formatHint(values: ToolValues, lack: string[], served: boolean, refused: boolean): string {
  if (!served) {
    const said = modelsOf(lack, "does not serve schemas", "do not serve schemas");
    return `Disabled: ${said}. The schema is not sent.`;
  }
  const format = readFormat(values.response_format);
  if ("fault" in format && !refused) return format.fault;
  return "The text of the answer is JSON that follows the schema. A whole response_format is accepted too.";
}

function toolsOf(number: number): string {
  return `${count(number)} ${number === 1 ? "tool" : "tools"}`;
}

function modelsOf(names: readonly string[], one: string, several: string): string {
  return names.length === 1 ? `the model ${names[0]} ${one}` : `the models ${names.join(" and ")} ${several}`;
}
