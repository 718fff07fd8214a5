import assert from "node:assert/strict";
import { test } from "node:test";
import { indented, jsonFault } from "./playgroundJson";
import { NO_PARTS, historyOf, withDelta } from "./playgroundParts";
import { lacking, readFormat, readTools, toolNames, withExample } from "./playgroundTools";

test("a text is JSON exactly if JSON.parse takes it, and a fault has its line and column", () => {
  const texts = ["", " ", "{}", "[]", "0", "-0.5e+7", '"a\\u00e9\\n"', '{"a":[1,{"b":null}],"c":true}', " [ 1 , 2 ] "];
  texts.push("[1,]", '{"a":1,}', "{a:1}", '{"a" 1}', "01", "1.", "+1", "[1 2]", '"a', '"a\\x"', '"\t"', "nul", "nulls");
  texts.push("]", "[}", '{"a"}', "[1]]", "{},", "'a'", "[1,,2]", '{"a":}', "[", '{"a":1', "1a", "truefalse", '"a""b"');
  for (const text of texts) {
    let parses = true;
    try {
      JSON.parse(text);
    } catch {
      parses = false;
    }
    assert.equal(jsonFault(text) === null, parses, text);
  }
  assert.equal(jsonFault('[\n  {"a": 1,}\n]'), "Line 2, column 11: expected a name in quotation marks, found }.");
  assert.equal(
    jsonFault('{"a": 1'),
    "Line 1, column 8: expected a comma or the closing bracket, found the end of the text.",
  );
  assert.equal(
    jsonFault("[" + "[".repeat(200_000)),
    "Line 1, column 200002: expected a value or ], found the end of the text.",
  );
});

test("indented JSON has the same tokens", () => {
  assert.equal(
    indented('{"a":[1.0,{"b":"x, {y}"}],"c":{},"d":[]}'),
    `{
  "a": [
    1.0,
    {
      "b": "x, {y}"
    }
  ],
  "c": {},
  "d": []
}`,
  );
  assert.equal(indented('{"a": 1'), null);
});

test("tools are a list of definitions with a type and a name", () => {
  const faultOf = (text: string) => {
    const read = readTools(text);
    return "fault" in read ? read.fault : null;
  };
  assert.match(faultOf("[") ?? "", /^Line 1, column 2/);
  assert.match(faultOf("{}") ?? "", /must be a list/);
  assert.match(faultOf("[1]") ?? "", /^tools\[0\] must be an object/);
  assert.match(faultOf('[{"name": "f"}]') ?? "", /^tools\[0\]\.type/);
  assert.match(faultOf('[{"type": "function"}]') ?? "", /^tools\[0\]\.function must/);
  assert.match(faultOf('[{"type": "custom", "custom": {}}]') ?? "", /^tools\[0\]\.custom\.name/);
  const example = withExample("");
  assert.notEqual(example, null);
  const read = readTools(example ?? "");
  assert.ok("value" in read);
  assert.deepEqual(toolNames(read.value), ["get_weather"]);
  assert.equal(withExample(example ?? ""), null);
  const both = readTools(withExample('[{"type": "custom", "custom": {"name": "f"}}]') ?? "");
  assert.deepEqual("value" in both && toolNames(both.value), ["f", "get_weather"]);
});

test("a schema is wrapped, a whole response_format is not, and integers of a schema are exact", () => {
  assert.deepEqual(readFormat(" "), { value: null });
  assert.deepEqual(readFormat('{"type": "json_object"}'), { value: { type: "json_object" } });
  assert.deepEqual(readFormat('{"type": "integer", "maximum": 9223372036854775807}'), {
    value: {
      type: "json_schema",
      json_schema: { name: "answer", schema: { type: "integer", maximum: 9223372036854775807n } },
    },
  });
  assert.ok("fault" in readFormat("[]"));
});

test("a model lacks what it is known to lack", () => {
  const card = (id: string, tools: boolean | null) => ({
    id,
    created: 0,
    object: "model" as const,
    owned_by: "",
    capabilities: tools === null ? null : { tools, reasoning: false, structured_outputs: true, embeddings: true },
  });
  const cards = [card("a", true), card("b", false), card("c", null)];
  assert.deepEqual(lacking(cards, ["a", "b", "c", "d"], "tools"), ["b"]);
  assert.deepEqual(lacking(cards, ["a", "b@2", "d@1"], "tools"), ["b@2"]);
  assert.deepEqual(lacking(cards, ["a", "b"], "structured_outputs"), []);
});

test("deltas add up to parts, and parts with results to messages", () => {
  const deltas = [
    { role: "assistant" },
    { reasoning: "Par", reasoning_content: "Par" },
    { reasoning: "is." },
    { content: "I look." },
    { tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "f", arguments: "" } }] },
    { tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] },
    { tool_calls: [{ index: 0, function: { arguments: ":1}" } }] },
    { tool_calls: [{ index: 1, id: "call_2", type: "custom", custom: { name: "g", input: "" } }] },
    { tool_calls: [{ index: 1, custom: { input: "text" } }] },
    {},
  ];
  const parts = deltas.reduce(withDelta, NO_PARTS);
  assert.equal(withDelta(parts, {}), parts);
  assert.deepEqual(parts, {
    text: "I look.",
    reasoning: "Paris.",
    calls: [
      { id: "call_1", name: "f", custom: false, input: '{"a":1}' },
      { id: "call_2", name: "g", custom: true, input: "text" },
    ],
  });
  assert.deepEqual(historyOf({ ...parts, text: "", reasoning_tokens: 2, request_id: null, results: ["one", "two"] }), [
    {
      role: "assistant",
      content: null,
      reasoning: "Paris.",
      tool_calls: [
        { id: "call_1", type: "function", function: { name: "f", arguments: '{"a":1}' } },
        { id: "call_2", type: "custom", custom: { name: "g", input: "text" } },
      ],
    },
    { role: "tool", tool_call_id: "call_1", content: "one" },
    { role: "tool", tool_call_id: "call_2", content: "two" },
  ]);
});
