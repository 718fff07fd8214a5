// Tools and the schema of an answer, from the texts of the playground's form to fields of a request.
import { parseJson, writeJson } from "../../api/json";
import type { components } from "../../api/schema";
import { indented, jsonFault } from "./playgroundJson";

export type Card = components["schemas"]["ModelCard"];
type Fields = Record<string, unknown>;
/** The value of a text, or the fault because of which it has none. */
type Read<T> = { value: T } | { fault: string };

export const TOOL_CHOICES = [
  ["auto", "auto: text, calls or both"],
  ["required", "required: one call or several"],
  ["none", "none: no calls"],
] as const;
const FORMAT_TYPES = new Set<unknown>(["text", "json_object", "json_schema"]);
const EXAMPLE_NAME = "get_weather";
const EXAMPLE = {
  type: "function",
  function: {
    name: EXAMPLE_NAME,
    description: "The weather in a city now.",
    parameters: {
      type: "object",
      properties: {
        city: { type: "string", description: "The name of the city." },
        unit: { type: "string", enum: ["celsius", "fahrenheit"] },
      },
      required: ["city", "unit"],
      additionalProperties: false,
    },
    strict: true,
  },
};

/** The list of tools. A blank text is an empty list. The API validates what this does not. */
export function readTools(text: string): Read<Fields[]> {
  const read = text.trim() === "" ? { value: [] } : readJson(text);
  if ("fault" in read) return read;
  const tools = read.value;
  if (!Array.isArray(tools)) return { fault: "The tools must be a list, between [ and ]." };
  for (const [index, tool] of tools.entries()) {
    const fault = toolFault(tool, `tools[${index}]`);
    if (fault !== null) return { fault };
  }
  return { value: tools as Fields[] };
}

/** The names of tools that `readTools` accepted. */
export function toolNames(tools: readonly Fields[]): string[] {
  return tools.map((tool) => String((tool[tool.type as string] as Fields).name));
}

/** `response_format` from a JSON schema, or from a whole `response_format`; null for a blank text. */
export function readFormat(text: string): Read<Fields | null> {
  if (text.trim() === "") return { value: null };
  const read = readJson(text);
  if ("fault" in read) return read;
  if (!isObject(read.value)) return { fault: "The schema must be an object, between { and }." };
  if (FORMAT_TYPES.has(read.value.type)) return { value: read.value };
  return { value: { type: "json_schema", json_schema: { name: "answer", schema: read.value } } };
}

/** The field's tools with the example tool appended, as text; null if the text has a fault, or the example tool already. */
export function withExample(text: string): string | null {
  const read = readTools(text);
  if ("fault" in read || toolNames(read.value).includes(EXAMPLE_NAME)) return null;
  return indented(writeJson([...read.value, EXAMPLE]));
}

/** The named models whose card says that they lack the capability; a model without a card is left out. The card of an
 * adapter's version `name@2` is that of `name`. */
export function lacking(
  cards: readonly Card[],
  names: readonly string[],
  capability: "tools" | "structured_outputs" | "reasoning",
): string[] {
  const cardOf = (name: string) => cards.find((card) => card.id === name || card.id === name.replace(/@\d+$/, ""));
  return names.filter((name) => cardOf(name)?.capabilities?.[capability] === false);
}

function toolFault(tool: unknown, at: string): string | null {
  if (!isObject(tool)) return `${at} must be an object, between { and }.`;
  const kind = tool.type;
  if (kind !== "function" && kind !== "custom") return `${at}.type must be "function" or "custom".`;
  const definition = tool[kind];
  if (!isObject(definition)) return `${at}.${kind} must be an object, between { and }.`;
  const { name } = definition;
  return typeof name === "string" && name !== "" ? null : `${at}.${kind}.name must be the name of the tool.`;
}

function readJson(text: string): Read<unknown> {
  const fault = jsonFault(text);
  return fault === null ? { value: parseJson(text) } : { fault };
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
