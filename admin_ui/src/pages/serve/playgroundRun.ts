// One streamed response with timings measured in the browser, and its cost from the request afterwards. Results of the
// calls in it continue the conversation with a further request.
import { useEffect, useRef, useState } from "react";
import { type ApiError, type AnswerOf, api, apiError, streamed } from "../../api";
import { type Delta, NO_PARTS, type Parts, type Turn, historyOf, withDelta } from "./playgroundParts";

type RequestView = AnswerOf<"/v1/admin/requests/{request_id}">;

export interface Body extends Record<string, unknown> {
  model: string;
  messages: readonly Record<string, unknown>[];
}

export interface Run extends Parts {
  /** The body of the newest request; null before the first one. */
  body: Body | null;
  /** The answers whose calls have their results in `body`. */
  earlier: readonly Turn[];
  state: "idle" | "waiting" | "answering" | "done" | "stopped" | "refused";
  error: ApiError | null;
  finish: string | null;
  tier: string | null;
  /** The model that served it, from the response: differs for an alias or a fallback. */
  model: string | null;
  request_id: string | null;
  /** Fields of the request that the model cannot follow: the header `laneway-ignored`. */
  ignored: string | null;
  /** Seconds from sending to the first text, measured in the browser. */
  ttft_s: number | null;
  /** Tokens per second, after the first token. */
  tokens_s: number | null;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  /** Of the completion. */
  reasoning_tokens: number | null;
  /** Known once the request is settled. */
  settled: RequestView | null;
}

interface Chunk {
  id: string;
  model?: string;
  service_tier?: string | null;
  choices: { delta: Delta; finish_reason: string | null }[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    completion_tokens_details?: { reasoning_tokens?: number | null } | null;
  } | null;
}

export const IDLE: Run = {
  ...NO_PARTS,
  body: null,
  earlier: [],
  state: "idle",
  error: null,
  finish: null,
  tier: null,
  model: null,
  request_id: null,
  ignored: null,
  ttft_s: null,
  tokens_s: null,
  prompt_tokens: null,
  completion_tokens: null,
  reasoning_tokens: null,
  settled: null,
};
const SETTLED_TRIES = 8;
const SETTLED_MS = 250;

export function useRun() {
  const [run, setRun] = useState(IDLE);
  const stopper = useRef<AbortController | null>(null);
  useEffect(() => () => stopper.current?.abort(), []); // the page is left: an unread answer would be billed
  const start = async (body: Body, secret: string, earlier: readonly Turn[] = []) => {
    const aborter = new AbortController();
    stopper.current = aborter;
    // A late result of an earlier run must not change this one.
    const change = (part: Partial<Run>) => stopper.current === aborter && setRun((now) => ({ ...now, ...part }));
    setRun({ ...IDLE, body, earlier, state: "waiting" });
    const sent = performance.now();
    let [first, last, parts, request_id] = [0, 0, NO_PARTS, null as string | null];
    const opened = (headers: Headers) => change({ ignored: headers.get("laneway-ignored") });
    try {
      for await (const one of streamed("/v1/chat/completions", body, secret, aborter.signal, opened)) {
        const chunk = one as Chunk;
        request_id = `req_${chunk.id.replace(/^chatcmpl-/, "")}`;
        const next = withDelta(parts, chunk.choices[0]?.delta ?? {});
        if (next !== parts) {
          last = performance.now();
          first ||= last;
          parts = next;
        }
        const finish = chunk.choices[0]?.finish_reason ?? null;
        change({
          ...parts,
          request_id,
          state: first === 0 ? "waiting" : "answering",
          ...(finish === null ? {} : { finish }),
          ...(chunk.service_tier == null ? {} : { tier: chunk.service_tier }),
          ...(chunk.model === undefined ? {} : { model: chunk.model }),
          ...(first === 0 ? {} : { ttft_s: (first - sent) / 1000 }),
          ...counted(chunk.usage ?? null, first, last),
        });
      }
      change({ state: "done" });
    } catch (error) {
      if (aborter.signal.aborted) change({ state: "stopped" });
      else change({ state: "refused", error: apiError(error) });
    }
    if (request_id !== null) change({ settled: await settled(request_id) });
  };
  /** Sends the results of the calls in the answer, one for each. */
  const continue_ = async (results: readonly string[], secret: string) => {
    if (run.body === null) return;
    const { text, reasoning, calls, reasoning_tokens, request_id } = run;
    const turn = { text, reasoning, calls, reasoning_tokens, request_id, results };
    // A choice that requires a call would be followed by a further call without end.
    const choice = run.body.tool_choice === "required" ? { tool_choice: "auto" } : {};
    const body = { ...run.body, ...choice, messages: [...run.body.messages, ...historyOf(turn)] };
    await start(body, secret, [...run.earlier, turn]);
  };
  const retry = async (secret: string) => {
    if (run.body !== null) await start(run.body, secret, run.earlier);
  };
  const clear = () => {
    stopper.current = null;
    setRun(IDLE);
  };
  return { run, start, continue_, retry, stop: () => stopper.current?.abort(), clear };
}

function counted(usage: Chunk["usage"], first: number, last: number): Partial<Run> {
  if (usage == null) return {};
  const { prompt_tokens, completion_tokens } = usage;
  const tokens_s = completion_tokens > 1 && last > first ? ((completion_tokens - 1) * 1000) / (last - first) : null;
  const reasoning_tokens = usage.completion_tokens_details?.reasoning_tokens ?? null;
  return { prompt_tokens, completion_tokens, reasoning_tokens, tokens_s };
}

/** The request once its cost is known; null after a timeout, or if the role may not read it. */
async function settled(request_id: string): Promise<RequestView | null> {
  for (let tries = 0; tries < SETTLED_TRIES; tries++) {
    try {
      const found = await api.get("/v1/admin/requests/{request_id}", { path: { request_id } });
      if (found.status !== "held") return found;
    } catch {
      return null;
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLED_MS));
  }
  return null;
}
