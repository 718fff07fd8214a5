// The AI SDK's agent loop over three of its providers: tools, streams, objects. `npm install` beside it first.
import { readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  defaultSettingsMiddleware, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool,
  wrapLanguageModel,
} from "ai";
import { z } from "zod";

const { CLIENT_URL, CLIENT_KEY = "lw_live_nobody", CLIENT_MODEL = "smollm2-135m-instruct" } = process.env;
globalThis.AI_SDK_LOG_WARNINGS = false;

const MAX_TOKENS_CUT = 24; // ends inside the arguments of the case `cut`
const LOOP = { maxOutputTokens: 200, maxRetries: 0, stopWhen: stepCountIs(5) };
const forecast = z.object({ city: z.string(), sky: z.enum(["clear", "grey"]) });
const called = [];
const tools = (strict) => ({
  get_weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    strict,
    execute: ({ city }) => {
      called.push(city);
      if (city === "Nowhere") throw new Error("There is no such city.");
      return "12 degrees";
    },
  }),
  now: tool({
    description: "The time of day.",
    inputSchema: z.object({}),
    strict,
    execute: () => {
      called.push("now");
      return "noon";
    },
  }),
});

const compatible = (url) =>
  createOpenAICompatible({
    name: "laneway",
    baseURL: `${url}/v1`,
    apiKey: CLIENT_KEY,
    includeUsage: true,
    supportsStructuredOutputs: true,
  })(CLIENT_MODEL);
const anthropic = (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey: CLIENT_KEY })(CLIENT_MODEL);
// The default model of @ai-sdk/openai speaks the Responses API. Without `store: false` it refers to stored items.
const responses = (url) =>
  wrapLanguageModel({
    model: createOpenAI({ baseURL: `${url}/v1`, apiKey: CLIENT_KEY })(CLIENT_MODEL),
    middleware: defaultSettingsMiddleware({ settings: { providerOptions: { openai: { store: false } } } }),
  });
const ask = (name) => {
  called.length = 0;
  return `Case ${name}. What is the weather?`;
};

function same(found, wanted) {
  const [left, right] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`${left} is not ${right}`);
  return found;
}

async function talk(model, name, said, calls, more = {}) {
  const { strict, ...settings } = more;
  const { text } = await generateText({ model, tools: tools(strict), prompt: ask(name), ...LOOP, ...settings });
  same([...called].sort(), [...calls].sort());
  return same(text, said);
}

async function streamed(model) {
  const result = streamText({ model, tools: tools(), prompt: ask("streamed"), ...LOOP });
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  const steps = await result.steps;
  same(steps[0].text.trim(), "I look.");
  same([...called].sort(), ["Paris", "now"]);
  return same(await result.text, "It is 12 degrees in Paris at noon.");
}

async function forced(model) {
  for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
    const answer = await generateText({
      model,
      tools: tools(),
      toolChoice,
      prompt: ask("forced"),
      ...LOOP,
      stopWhen: stepCountIs(1),
    });
    same([answer.toolCalls.map((call) => call.input), answer.finishReason], [[{ city: "Paris" }], "tool-calls"]);
  }
  return "twice";
}

async function cut(model) {
  const settings = { ...LOOP, maxOutputTokens: MAX_TOKENS_CUT, stopWhen: stepCountIs(1) };
  const answer = await generateText({ model, tools: tools(), prompt: ask("cut"), ...settings });
  return same(answer.finishReason, "length");
}

const [AT_NOON, IN_PARIS] = ["It is 12 degrees in Paris at noon.", "It is 12 degrees in Paris."];
const object = { schema: forecast, maxOutputTokens: 200, maxRetries: 0 };
const wanted = { city: "Paris", sky: "grey" };

const both = {
  plain: async (model) => same((await generateText({ model, prompt: ask("none"), ...LOOP })).text, "I call nothing."),
  single: (model) => talk(model, "single", IN_PARIS, ["Paris"]),
  parallel: (model) => talk(model, "parallel", "It is 12 degrees in Paris and in Rome.", ["Paris", "Rome"]),
  streamed,
  no_arguments: (model) => talk(model, "no_arguments", "It is noon.", ["now"]),
  forced,
  none: (model) => talk(model, "none", "I call nothing.", [], { toolChoice: "none" }),
  strict: (model) => talk(model, "strict", IN_PARIS, ["Paris"], { strict: true }),
  cut,
  loop: (model) => talk(model, "loop", AT_NOON, ["Paris", "now"]),
  failing: (model) => talk(model, "failing", IN_PARIS, ["Nowhere", "Paris"]),
};

// Of OpenAI's APIs.
const openai = {
  ...both,
  thinking: (model) => talk(model, "thinking", IN_PARIS, ["Paris"]),
  object: async (model) =>
    same((await generateObject({ model, prompt: ask("schema"), ...object })).object, wanted),
  object_stream: async (model) => {
    const result = streamObject({ model, prompt: ask("schema"), ...object });
    for await (const _ of result.partialObjectStream);
    return same(await result.object, wanted);
  },
  schema_after_tool: async (model) => {
    const output = Output.object({ schema: forecast });
    const prompt = ask("schema_after_tool");
    return same((await generateText({ model, tools: tools(), prompt, output, ...LOOP })).output, wanted);
  },
};
const over = (provider, prefix, kinds) =>
  Object.fromEntries(Object.entries(kinds).map(([name, run]) => [prefix + name, (url) => run(provider(url))]));
const cases = {
  ...over(compatible, "", openai),
  ...over(anthropic, "anthropic_", both),
  ...over(responses, "responses_", openai),
};

const version = (name) =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
const versions = Object.fromEntries(
  ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"].map((name) => [name, version(name)]),
);
const tell = (fields) => process.stdout.write(`${JSON.stringify(fields)}\n`);

tell({ versions: { ...versions, node: process.versions.node } });
for (const [name, run] of Object.entries(cases)) {
  const began = performance.now();
  let [ok, detail] = [true, ""];
  try {
    detail = await run(CLIENT_URL.replace("{case}", name));
  } catch (error) {
    [ok, detail] = [false, `${error.name} ${error.statusCode}: ${error.message} ${error.responseBody ?? ""}`];
  }
  const seconds = Number(((performance.now() - began) / 1000).toFixed(2));
  tell({ case: name, ok, seconds, detail: (typeof detail === "string" ? detail : JSON.stringify(detail)).slice(0, 300) });
}
