// The parts of a streamed answer: reasoning, text and calls; and an answer with its results as messages of the history.

export interface Call {
  id: string;
  name: string;
  custom: boolean;
  /** The arguments of a function as JSON, or the input of a custom tool; so far. */
  input: string;
}

export interface Parts {
  text: string;
  reasoning: string;
  calls: readonly Call[];
}

/** An answer with calls whose results were sent: it is part of the conversation. */
export interface Turn extends Parts {
  reasoning_tokens: number | null;
  request_id: string | null;
  /** One for each call. */
  results: readonly string[];
}

export interface Delta {
  content?: string | null;
  reasoning?: string | null;
  tool_calls?: {
    index: number;
    id?: string | null;
    type?: string | null;
    function?: { name?: string | null; arguments?: string | null } | null;
    custom?: { name?: string | null; input?: string | null } | null;
  }[];
}

export const NO_PARTS: Parts = { text: "", reasoning: "", calls: [] };

/** The parts with one more delta; the same object if the delta has none. */
export function withDelta(parts: Parts, delta: Delta): Parts {
  const [content, reasoning, calls] = [delta.content ?? "", delta.reasoning ?? "", delta.tool_calls ?? []];
  if (content === "" && reasoning === "" && calls.length === 0) return parts;
  const list = [...parts.calls];
  for (const call of calls) {
    const before = list[call.index] ?? { id: "", name: "", custom: false, input: "" };
    list[call.index] = {
      id: call.id ?? before.id,
      name: call.function?.name ?? call.custom?.name ?? before.name,
      custom: before.custom || call.custom != null,
      input: before.input + (call.function?.arguments ?? call.custom?.input ?? ""),
    };
  }
  return { text: parts.text + content, reasoning: parts.reasoning + reasoning, calls: list };
}

/** The answer as the assistant's message, and a message with the result of each call. */
export function historyOf(turn: Turn): Record<string, unknown>[] {
  return [
    {
      role: "assistant",
      content: turn.text === "" ? null : turn.text,
      ...(turn.reasoning === "" ? {} : { reasoning: turn.reasoning }),
      tool_calls: turn.calls.map(({ id, name, custom, input }) =>
        custom
          ? { id, type: "custom", custom: { name, input } }
          : { id, type: "function", function: { name, arguments: input } },
      ),
    },
    ...turn.calls.map(({ id }, index) => ({ role: "tool", tool_call_id: id, content: turn.results[index] ?? "" })),
  ];
}
