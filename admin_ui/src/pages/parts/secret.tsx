// A dialog for a secret that is shown once, of a key or a webhook. It closes only after confirmation that the secret is
// stored.
import { useState } from "react";
import { CodeBlock, Dialog, useLeaveGuard } from "../../kit";

export interface Shown {
  title: string;
  secret: string;
  /** Its purpose, in a sentence. */
  note: string;
  /** Ready to paste, with the secret in it. */
  example?: { label: string; text: string };
}

export function SecretDialog({ shown, onStored }: { shown: Shown | null; onStored: () => void }) {
  const [asked, setAsked] = useState(false);
  useLeaveGuard(shown !== null, () => setAsked(true));
  const stored = () => {
    setAsked(false);
    onStored();
  };
  return (
    <Dialog
      open={shown !== null}
      onClose={() => setAsked(true)}
      title={shown?.title ?? ""}
      note={shown?.note}
      keep
      wide
    >
      {shown !== null && (
        <>
          <CodeBlock label="The secret" text={shown.secret} />
          {shown.example !== undefined && (
            <div className="stack">
              <h3>{shown.example.label}</h3>
              <CodeBlock label={shown.example.label} text={shown.example.text} />
            </div>
          )}
          {asked && (
            <div className="problem" role="alert">
              <p>The secret is shown only once and cannot be read again. Confirm that you have stored it.</p>
            </div>
          )}
          <div className="form-end">
            <button type="button" className="button button-main" onClick={stored}>
              I have stored it
            </button>
          </div>
        </>
      )}
    </Dialog>
  );
}

/** A curl command that uses this secret. */
export function curlOf(kind: string, secret: string, model: string | undefined): string {
  const { origin } = location;
  const bearer = `-H 'Authorization: Bearer ${secret}'`;
  if (kind === "admin")
    return `curl ${origin}/v1/admin/session -H 'content-type: application/json' -d '${JSON.stringify({ key: secret })}'`;
  if (model === undefined) return `curl ${origin}/v1/models ${bearer}`;
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }], max_tokens: 32 });
  return `curl ${origin}/v1/chat/completions ${bearer} -H 'content-type: application/json' -d '${body}'`;
}
