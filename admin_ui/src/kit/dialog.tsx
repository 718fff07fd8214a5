// Dialogs, confirmations and toasts.
import { Dialog as Primitive } from "radix-ui";
import { type ReactNode, useState, useSyncExternalStore } from "react";
import { type ApiError, apiError } from "../api/errors";
import { Problem } from "./parts";

/** A modal dialog; `open` is the page's state. The first field gets the focus. */
export function Dialog({
  open,
  onClose,
  title,
  note,
  children,
  wide,
  keep,
}: {
  open: boolean;
  onClose: () => void;
  title: string;
  note?: ReactNode;
  children: ReactNode;
  wide?: boolean;
  /** A click outside does not close it: for typed input, or a secret shown once. */
  keep?: boolean;
}) {
  return (
    <Primitive.Root open={open} onOpenChange={(next) => !next && onClose()}>
      <Primitive.Portal>
        <Primitive.Overlay className="overlay" />
        <Primitive.Content
          className={wide ? "dialog dialog-wide" : "dialog"}
          {...(note === undefined ? { "aria-describedby": undefined } : {})}
          onPointerDownOutside={(event) => keep && event.preventDefault()}
          // Escape in an open list of a lookup closes the list, not the dialog.
          onEscapeKeyDown={(event) =>
            (event.target as Element | null)?.closest?.(".combobox")?.querySelector("[aria-expanded=true]") &&
            event.preventDefault()
          }
        >
          <div className="dialog-head">
            <Primitive.Title asChild>
              <h2>{title}</h2>
            </Primitive.Title>
            <Primitive.Close className="close" aria-label="Close">
              ×
            </Primitive.Close>
          </div>
          {note !== undefined && (
            <Primitive.Description asChild>
              <div className="note">{note}</div>
            </Primitive.Description>
          )}
          {children}
        </Primitive.Content>
      </Primitive.Portal>
    </Primitive.Root>
  );
}

/** Asks before an action. `name` must be typed, for actions that cannot be undone. `action` runs on confirmation; its
 * error is shown here. `decline`: the text of the button that closes the dialog without the action. */
export function ConfirmDialog({
  open,
  onClose,
  title,
  children,
  verb,
  name,
  action,
  decline = "Cancel",
  tone = "bad",
}: {
  open: boolean;
  onClose: () => void;
  title: string;
  children: ReactNode;
  verb: string;
  name?: string;
  action: () => Promise<unknown>;
  decline?: string;
  tone?: "bad" | "plain";
}) {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const close = () => {
    setTyped("");
    setError(null);
    onClose();
  };
  const run = async () => {
    setBusy(true);
    setError(null);
    try {
      await action();
      close();
    } catch (thrown) {
      setError(apiError(thrown));
    } finally {
      setBusy(false);
    }
  };
  const ready = !busy && (name === undefined || typed === name);
  return (
    <Dialog open={open} onClose={close} title={title} note={children}>
      <form
        className="form"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) void run();
        }}
      >
        {name !== undefined && (
          <div className="field">
            <label htmlFor="confirm-name">
              Type <code>{name}</code> to confirm
            </label>
            <input
              id="confirm-name"
              value={typed}
              onChange={(event) => setTyped(event.target.value)}
              autoComplete="off"
              spellCheck={false}
              autoFocus
            />
          </div>
        )}
        {error !== null && <Problem error={error} />}
        <div className="form-end">
          <button type="button" className="button" onClick={close}>
            {decline}
          </button>
          <button
            type="submit"
            className={tone === "bad" ? "button button-bad" : "button button-main"}
            disabled={!ready}
          >
            {busy ? "Working…" : verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface Told {
  id: number;
  text: string;
  bad: boolean;
}
let told: readonly Told[] = [];
let last = 0;
const watchers = new Set<() => void>();

function change(next: readonly Told[]): void {
  told = next;
  for (const watcher of watchers) watcher();
}

/** Shows a message for six seconds on any page; `bad`: a failure. */
export function toast(text: string, bad = false): void {
  const id = ++last;
  change([...told.slice(-3), { id, text, bad }]);
  setTimeout(() => change(told.filter((one) => one.id !== id)), bad ? 12_000 : 6_000);
}

/** Where toasts appear; once, in the shell. */
export function Toasts() {
  const all = useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => told,
  );
  return (
    <div className="toasts" role="status" aria-live="polite">
      {all.map((one) => (
        <div key={one.id} className={one.bad ? "toast toast-bad" : "toast"}>
          <span>{one.text}</span>
          <button
            type="button"
            className="close"
            aria-label="Dismiss"
            onClick={() => change(told.filter((other) => other.id !== one.id))}
          >
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
