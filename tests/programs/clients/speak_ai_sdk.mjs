// The AI SDK from npm, with three providers that its users point at a server like this. `npm install` beside it first.
import { readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const { CLIENT_URL, CLIENT_KEY = "lw_live_nobody", CLIENT_MODEL = "smollm2-135m-instruct" } = process.env;
const prompt = "Say hello in one word.";
const short = { maxOutputTokens: 8, maxRetries: 0 };
globalThis.AI_SDK_LOG_WARNINGS = false;

const official = (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: CLIENT_KEY }).chat(CLIENT_MODEL);
const provider = (url) =>
  createOpenAICompatible({ name: "laneway", baseURL: `${url}/v1`, apiKey: CLIENT_KEY, includeUsage: true });
const anthropic = (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey: CLIENT_KEY })(CLIENT_MODEL);

async function streamed(result) {
  let text = "";
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  const usage = await result.usage;
  if (!(usage.outputTokens >= 1)) throw new Error("no usage");
  return text;
}

async function conversation(model) {
  const messages = [{ role: "user", content: prompt }];
  let text = "";
  for (const said of ["Again.", "And again."]) {
    const answer = await generateText({ model, system: "You are terse.", messages, ...short });
    messages.push(...answer.response.messages, { role: "user", content: said });
    text = answer.text;
  }
  return text;
}

const cases = {
  plain: async (url) => (await generateText({ model: official(url), prompt, maxRetries: 0 })).text,
  plain_compatible: async (url) =>
    (await generateText({ model: provider(url)(CLIENT_MODEL), prompt, maxRetries: 0 })).text,
  stream: async (url) => streamed(streamText({ model: official(url), prompt, ...short })),
  stream_compatible: async (url) => streamed(streamText({ model: provider(url)(CLIENT_MODEL), prompt, ...short })),
  turns: async (url) => conversation(official(url)),
  turns_compatible: async (url) => conversation(provider(url)(CLIENT_MODEL)),
  parameters: async (url) =>
    (
      await generateText({
        model: official(url),
        prompt,
        ...short,
        temperature: 0.7,
        topP: 0.9,
        stopSequences: ["\n\n"],
        seed: 7,
        presencePenalty: 0.5,
        frequencyPenalty: 0.5,
        providerOptions: { openai: { logitBias: { 100: -100 }, logprobs: 3, user: "u-1", store: false } },
      })
    ).text,
  parameters_compatible: async (url) =>
    (
      await generateText({
        model: provider(url)(CLIENT_MODEL),
        prompt,
        ...short,
        temperature: 0.7,
        topP: 0.9,
        stopSequences: ["\n\n"],
        seed: 7,
        presencePenalty: 0.5,
        frequencyPenalty: 0.5,
        providerOptions: { laneway: { user: "u-1", top_k: 40, min_p: 0.05 } },
      })
    ).text,
  parts: async (url) => {
    const content = [
      { type: "text", text: "Say" },
      { type: "text", text: "hello." },
    ];
    return (await generateText({ model: official(url), messages: [{ role: "user", content }], ...short })).text;
  },
  plain_anthropic: async (url) => (await generateText({ model: anthropic(url), prompt, ...short })).text,
  stream_anthropic: async (url) => streamed(streamText({ model: anthropic(url), prompt, ...short })),
  turns_anthropic: async (url) => conversation(anthropic(url)),
  parameters_anthropic: async (url) => {
    const system = { role: "system", content: "You are terse." };
    const cached = { ...system, providerOptions: { anthropic: { cacheControl: { type: "ephemeral" } } } };
    const content = [
      { type: "text", text: "Say" },
      { type: "text", text: "hello." },
    ];
    const answer = await generateText({
      model: anthropic(url),
      messages: [cached, { role: "user", content }],
      allowSystemInMessages: true,
      ...short,
      temperature: 0.7,
      topK: 40,
      stopSequences: ["END"],
    });
    return answer.text;
  },
  completion: async (url) => {
    const model = provider(url).completionModel(CLIENT_MODEL);
    return (await generateText({ model, prompt: "Once upon a time", ...short })).text;
  },
  completion_stream: async (url) => {
    const model = createOpenAI({ baseURL: `${url}/v1`, apiKey: CLIENT_KEY }).completion(CLIENT_MODEL);
    return streamed(streamText({ model, prompt: "Once upon a time", ...short }));
  },
  structured: async (url) => {
    const schema = z.object({ word: z.string() });
    return (await generateObject({ model: official(url), prompt, schema, ...short })).object;
  },
  tools_anthropic: async (url) => {
    const add = tool({ description: "Add", inputSchema: z.object({ a: z.number() }), execute: async () => 1 });
    return (await generateText({ model: anthropic(url), prompt, tools: { add }, ...short })).text;
  },
  tools: async (url) => {
    const add = tool({ description: "Add", inputSchema: z.object({ a: z.number() }), execute: async () => 1 });
    return (await generateText({ model: official(url), prompt, tools: { add }, ...short })).text;
  },
};
const refused = { structured: 400, tools: 400, tools_anthropic: 400 };

const version = (name) =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
const tell = (fields) => console.log(JSON.stringify(fields));

const packages = ["ai", "@ai-sdk/anthropic", "@ai-sdk/openai", "@ai-sdk/openai-compatible"];
tell({ versions: { ...Object.fromEntries(packages.map((name) => [name, version(name)])), node: process.version } });
for (const [name, run] of Object.entries(cases)) {
  const began = Date.now();
  let ok = !(name in refused);
  let detail = "";
  try {
    detail = await run(CLIENT_URL.replace("{case}", name));
  } catch (error) {
    ok = name in refused && error.statusCode === refused[name];
    detail = `${error.name} ${error.statusCode}: ${error.message}`;
  }
  tell({ case: name, ok, seconds: (Date.now() - began) / 1000, detail: String(detail).slice(0, 300) });
}
