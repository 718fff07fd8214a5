// An action on several rows: one confirmation that names all of them, then a result for each.
import { type ReactNode, useState } from "react";
import { type ApiError, apiError } from "../../api";
import { Badge, Dialog } from "../../kit";

export interface BulkItem {
  id: string;
  name: string;
}

interface Result {
  error: ApiError | null;
  /** The result of the action, such as a new secret. */
  shown?: ReactNode;
}

/** `action` runs for one item after the other; its result is shown beside the item's name. `word`: must be typed,
 * for actions that cannot be undone. */
export function BulkDialog({
  open,
  onClose,
  title,
  note,
  verb,
  items,
  action,
  word,
  children,
  keepUntil,
}: {
  open: boolean;
  onClose: () => void;
  title: string;
  note: ReactNode;
  verb: string;
  items: readonly BulkItem[];
  action: (item: BulkItem) => Promise<ReactNode>;
  word?: string;
  /** Fields of the action, between the names and the buttons. */
  children?: ReactNode;
  /** The text of the button that closes the dialog, if results must be read: only this button closes it. */
  keepUntil?: string;
}) {
  const [typed, setTyped] = useState("");
  const [state, setState] = useState<"asking" | "running" | "done">("asking");
  const [results, setResults] = useState<ReadonlyMap<string, Result>>(new Map());
  const failed = items.filter((item) => results.get(item.id)?.error);
  const close = () => {
    setTyped("");
    setState("asking");
    setResults(new Map());
    onClose();
  };
  const run = async (wanted: readonly BulkItem[]) => {
    setState("running");
    for (const item of wanted) {
      let result: Result;
      try {
        result = { error: null, shown: await action(item) };
      } catch (thrown) {
        result = { error: apiError(thrown) };
      }
      setResults((now) => new Map(now).set(item.id, result));
    }
    setState("done");
  };
  const held = state === "running" || (state === "done" && keepUntil !== undefined);
  return (
    <Dialog open={open} onClose={() => !held && close()} title={title} note={note} keep wide>
      <form
        className="form"
        onSubmit={(event) => {
          event.preventDefault();
          if (state === "asking" && (word === undefined || typed === word)) void run(items);
        }}
      >
        <ul className="bulk-list" aria-label="Affected">
          {items.map((item) => {
            const result = results.get(item.id);
            return (
              <li key={item.id}>
                <span>{item.name}</span>
                {result === undefined ? (
                  state === "running" && <span className="faint">waiting…</span>
                ) : result.error === null ? (
                  <Badge tone="good">done</Badge>
                ) : (
                  <Badge tone="bad">failed</Badge>
                )}
                {result?.error && <p className="field-error">{result.error.message}</p>}
                {result?.shown}
              </li>
            );
          })}
        </ul>
        {state === "asking" && children}
        {state === "asking" && word !== undefined && (
          <div className="field">
            <label htmlFor="bulk-word">
              Type <code>{word}</code> to confirm
            </label>
            <input
              id="bulk-word"
              value={typed}
              onChange={(event) => setTyped(event.target.value)}
              autoComplete="off"
              spellCheck={false}
            />
          </div>
        )}
        <p className="sr-only" role="status">
          {state === "done" && `${items.length - failed.length} done, ${failed.length} failed`}
        </p>
        <div className="form-end">
          {state === "done" ? (
            <>
              {failed.length > 0 && (
                <button type="button" className="button" onClick={() => void run(failed)}>
                  Try the failed again
                </button>
              )}
              <button type="button" className="button button-main" onClick={close}>
                {keepUntil ?? "Close"}
              </button>
            </>
          ) : (
            <>
              <button type="button" className="button" onClick={close} disabled={state === "running"}>
                Cancel
              </button>
              <button
                type="submit"
                className={word === undefined ? "button button-main" : "button button-bad"}
                disabled={state === "running" || (word !== undefined && typed !== word)}
              >
                {state === "running" ? `${results.size} of ${items.length}…` : verb}
              </button>
            </>
          )}
        </div>
      </form>
    </Dialog>
  );
}
