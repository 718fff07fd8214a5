// The sign-in: a page at first, and a dialog over the current page when the session has ended.
import { useEffect, useState } from "react";
import { ApiError } from "../api/errors";
import { type Provider, dismissSignIn, loadProvider, nameOf, signIn, useSessionState } from "../api/session";
import { Dialog } from "../kit/dialog";
import { Form, TextField, useForm, fieldError } from "../kit/form";

function KeyForm() {
  const form = useForm({ key: "", code: "" });
  const [needsCode, setNeedsCode] = useState(false);
  return (
    <Form
      form={form}
      verb="Sign in"
      save={async ({ key, code }) => {
        if (key.trim() === "") throw fieldError("key", "Enter an admin key.");
        try {
          await signIn(key.trim(), code.trim());
        } catch (error) {
          const about = error instanceof ApiError ? error.code : null;
          if (about === "totp_required") setNeedsCode(true);
          const field = about === "totp_required" || about === "totp_invalid" ? "code" : "key";
          throw fieldError(field, error instanceof Error ? error.message : String(error));
        }
      }}
    >
      <TextField
        form={form}
        name="key"
        label="Admin key"
        type="password"
        placeholder="lw_admin_…"
        mono
        autoFocus
        autoComplete="current-password"
        hint={
          <>
            It is exchanged for a session of this browser and is not stored.{" "}
            <code>laneway keys create --kind admin</code> creates a key.
          </>
        }
      />
      {needsCode && (
        <TextField
          form={form}
          name="code"
          label="Code of the authenticator app"
          mono
          autoFocus
          autoComplete="one-time-code"
          hint="Six digits, or a recovery code."
        />
      )}
    </Form>
  );
}

/** A link to the provider's sign-in, which returns to this page. Nothing without a provider. */
function ProviderLink() {
  const [provider, setProvider] = useState<Provider | null>(null);
  useEffect(() => void loadProvider().then(setProvider), []);
  if (provider === null) return null;
  const here = location.pathname + location.search;
  return (
    <div className="sign-in-provider">
      <a className="button button-main" href={`${provider.start}?return_to=${encodeURIComponent(here)}`}>
        Sign in with {provider.name}
      </a>
      <p className="note">or with an admin key:</p>
    </div>
  );
}

export function SignInPage() {
  return (
    <main className="sign-in">
      <title>Sign in – Laneway</title>
      <Mark />
      <h1>Laneway</h1>
      <p className="note">Operator console</p>
      <ProviderLink />
      <KeyForm />
    </main>
  );
}

/** A dialog over the page: its input is kept, and waiting requests are sent after the sign-in. */
export function SignInAgain({ open }: { open: boolean }) {
  const { session } = useSessionState();
  return (
    <Dialog
      open={open}
      onClose={dismissSignIn}
      keep
      title="Your session has ended"
      note={
        <>
          Sign in again to continue where you were. You were signed in {session?.person ? "as" : "with the key"}{" "}
          <b>{session !== null && nameOf(session)}</b>.
        </>
      }
    >
      <ProviderLink />
      <KeyForm />
    </Dialog>
  );
}

export function Mark() {
  return (
    <svg className="mark" viewBox="0 0 24 24" aria-hidden="true">
      <rect x="2" y="4" width="20" height="3" rx="1.5" />
      <rect x="2" y="10.5" width="13" height="3" rx="1.5" />
      <rect x="2" y="17" width="7" height="3" rx="1.5" />
    </svg>
  );
}
