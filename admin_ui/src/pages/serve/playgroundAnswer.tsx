// One answer of the playground: reasoning, text, calls with a box for each result, and its tokens, time and cost.
import { type ReactNode, useRef } from "react";
import {
  Badge,
  CodeBlock,
  Form,
  Id,
  Link,
  Money,
  Problem,
  TextArea,
  count,
  duration,
  fieldError,
  place,
  useForm,
} from "../../kit";
import { indented } from "./playgroundJson";
import type { Call, Turn } from "./playgroundParts";
import type { Run, useRun } from "./playgroundRun";

const SAYS: Record<Run["state"], string> = {
  idle: "",
  waiting: "waiting for the first token",
  answering: "answering",
  done: "done",
  stopped: "stopped",
  refused: "refused",
};

/** `name`: of the model that the next request is for. The heading has the name of the answer's own. */
export function Answer({ name, of, secret }: { name: string; of: ReturnType<typeof useRun>; secret: string }) {
  const { run } = of;
  const head = useRef<HTMLHeadingElement>(null);
  const called = run.body?.model ?? name;
  const busy = run.state === "waiting" || run.state === "answering";
  // An answer that ended with "length" may have ended inside its last call.
  const whole = run.state === "done" && run.finish !== null && run.finish !== "length";
  // The button that was pressed is removed: the focus must not be lost.
  const focusHead = () => head.current?.focus({ preventScroll: true });
  return (
    <section className="panel answer" aria-label={`Response of ${called}`} aria-busy={busy}>
      <div className="answer-head">
        <h2 ref={head} tabIndex={-1}>
          {called}
        </h2>
        <span className="faint" role="status">
          {SAYS[run.state]}
          {run.finish !== null && run.state === "done" ? `: ${run.finish}` : ""}
        </span>
      </div>
      {run.earlier.map((turn, index) => (
        <EarlierTurn key={index} turn={turn} />
      ))}
      {run.reasoning !== "" && <Reasoning text={run.reasoning} tokens={run.reasoning_tokens} busy={busy} open />}
      {(run.text !== "" || (run.calls.length === 0 && run.error === null)) && (
        <p className={run.calls.length === 0 ? "answer-text answer-main" : "answer-text"}>
          {run.text === "" ? <span className="faint">{withoutText(run.state)}</span> : run.text}
        </p>
      )}
      {run.calls.length > 0 &&
        (whole ? (
          <Results
            key={run.request_id}
            calls={run.calls}
            required={run.body?.tool_choice === "required"}
            send={(results) => {
              focusHead();
              void of.continue_(results, secret);
            }}
          />
        ) : (
          <ol className="calls" aria-label="Calls">
            {run.calls.map((call, index) => (
              <CallCard
                key={index}
                call={call}
                title={titleOf(run.calls, index)}
                state={index < run.calls.length - 1 ? "whole" : busy ? "streaming" : "cut"}
              />
            ))}
          </ol>
        ))}
      {run.error !== null && (
        <Problem
          error={run.error}
          again={
            run.earlier.length === 0
              ? undefined
              : () => {
                  focusHead();
                  void of.retry(secret);
                }
          }
        />
      )}
      {run.ignored !== null && (
        <p className="hint">
          Without effect on this answer: <code>{run.ignored}</code>
        </p>
      )}
      <RunFacts run={run} />
      {run.request_id !== null && (
        <p>
          <Link to={place("/requests", run.request_id)}> View request </Link>
        </p>
      )}
    </section>
  );
}

function withoutText(state: Run["state"]): string {
  if (state === "idle") return "Nothing sent yet.";
  return state === "done" ? "The answer has no text." : "…";
}

/** Collapsible; the tokens are known at the end of the answer. */
function Reasoning({
  text,
  tokens,
  busy,
  open,
}: {
  text: string;
  tokens: number | null;
  busy: boolean;
  open?: boolean;
}) {
  return (
    <details className="reasoning" open={open}>
      <summary>
        Reasoning{" "}
        <span className="num">
          {tokens === null ? (busy ? "…" : "") : `${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`}
        </span>
      </summary>
      <div className="reasoning-text" role="region" aria-label="Text of the reasoning" tabIndex={0}>
        {text}
      </div>
    </details>
  );
}

/** The name of the tool, with the number of the call where other calls have the same name. */
function titleOf(calls: readonly Call[], index: number): string {
  const name = calls[index]?.name ?? "";
  return calls.some((call, other) => other !== index && call.name === name) ? `${name}, call ${index + 1}` : name;
}

function CallCard({
  call,
  title,
  state,
  children,
}: {
  call: Call;
  title: string;
  state: "streaming" | "whole" | "cut";
  children?: ReactNode;
}) {
  const what = call.custom ? "Input" : "Arguments";
  const shown = state === "whole" && !call.custom ? (indented(call.input) ?? call.input) : call.input;
  return (
    <li className="call">
      <div className="call-head">
        <h3>{title}</h3>
        {state === "streaming" && <Badge tone="accent">streaming</Badge>}
        {state === "cut" && <Badge tone="warn">not whole</Badge>}
        <Id value={call.id} />
      </div>
      <CodeBlock label={`${what} of ${title}`} text={shown} />
      {children}
    </li>
  );
}

/** The calls of a whole answer, with a field for the result of each. */
function Results({
  calls,
  required,
  send,
}: {
  calls: readonly Call[];
  required: boolean;
  send: (results: string[]) => void;
}) {
  const form = useForm<Record<string, string>>(Object.fromEntries(calls.map((_, index) => [nameOf(index), ""])));
  const save = async (values: Record<string, string>) => {
    const results = calls.map((_, index) => values[nameOf(index)] ?? "");
    const blank = results.findIndex((result) => result.trim() === "");
    if (blank >= 0) throw fieldError(nameOf(blank), `Enter the result of ${titleOf(calls, blank)}.`);
    send(results);
  };
  return (
    <Form form={form} verb={calls.length === 1 ? "Send the result" : "Send the results"} save={save}>
      <ol className="calls" aria-label="Calls">
        {calls.map((call, index) => (
          <CallCard key={call.id} call={call} title={titleOf(calls, index)} state="whole">
            <TextArea
              form={form}
              name={nameOf(index)}
              label={`Result of ${titleOf(calls, index)}`}
              mono
              rows={2}
              placeholder="What the tool returns, as text or JSON"
            />
          </CallCard>
        ))}
      </ol>
      {required && <p className="hint">The next request has the tool choice auto, so that its answer can be text.</p>}
    </Form>
  );
}

function nameOf(index: number): string {
  return `result_${index}`;
}

/** An answer whose calls have their results. */
function EarlierTurn({ turn }: { turn: Turn }) {
  return (
    <div className="answer-earlier">
      {turn.reasoning !== "" && <Reasoning text={turn.reasoning} tokens={turn.reasoning_tokens} busy={false} />}
      {turn.text !== "" && <p className="answer-text">{turn.text}</p>}
      <ol className="calls" aria-label="Calls with their results">
        {turn.calls.map((call, index) => (
          <CallCard key={call.id} call={call} title={titleOf(turn.calls, index)} state="whole">
            <p className="faint">Result</p>
            <CodeBlock label={`Result of ${titleOf(turn.calls, index)}`} text={turn.results[index] ?? ""} />
          </CallCard>
        ))}
      </ol>
      {turn.request_id !== null && (
        <p>
          <Link to={place("/requests", turn.request_id)}>View the request with these calls</Link>
        </p>
      )}
    </div>
  );
}

function RunFacts({ run }: { run: Run }) {
  const { settled } = run;
  const completion = settled?.completion_tokens ?? run.completion_tokens;
  return (
    <dl className="answer-facts num">
      <div>
        <dt>Served by</dt>
        <dd>{run.model ?? "–"}</dd>
      </div>
      <div>
        <dt>First token</dt>
        <dd>{run.ttft_s === null ? "–" : duration(run.ttft_s)}</dd>
      </div>
      <div>
        <dt>Tokens per second</dt>
        <dd>{run.tokens_s === null ? "–" : run.tokens_s.toFixed(1)}</dd>
      </div>
      <div>
        <dt>Prompt</dt>
        <dd>
          {run.prompt_tokens === null && settled === null
            ? "–"
            : count(settled?.prompt_tokens ?? run.prompt_tokens ?? 0)}
        </dd>
      </div>
      <div>
        <dt>Completion</dt>
        <dd>{completion === null ? "–" : count(completion)}</dd>
      </div>
      <div>
        <dt>Tier</dt>
        <dd>{settled?.tier ?? run.tier ?? "–"}</dd>
      </div>
      <div>
        <dt>Cost</dt>
        <dd>
          {settled?.cost_picos == null ? (
            "–"
          ) : (
            <Money picos={settled.cost_picos} currency={settled.currency ?? undefined} />
          )}
        </dd>
      </div>
    </dl>
  );
}
