// The sign-in: a page of its own at first, and over the page when a session has ended, so that one goes on where one was.
import { signIn, stayExpired, useStanding } from "../api/session";
import { Dialog } from "../kit/dialog";
import { Form, TextField, useForm, wrong } from "../kit/form";

function KeyForm() {
  const form = useForm({ key: "" });
  return (
    <Form
      form={form}
      verb="Sign in"
      save={async ({ key }) => {
        if (key.trim() === "") throw wrong("key", "An admin key is needed.");
        try {
          await signIn(key.trim());
        } catch (error) {
          throw wrong("key", error instanceof Error ? error.message : String(error));
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
            It is exchanged for a session of this browser, and not kept. <code>laneway keys create --kind admin</code>{" "}
            makes one.
          </>
        }
      />
    </Form>
  );
}

export function SignInPage() {
  return (
    <main className="sign-in">
      <title>Sign in – Laneway</title>
      <Mark />
      <h1>Laneway</h1>
      <p className="note">Operator console</p>
      <KeyForm />
    </main>
  );
}

/** Over the page: nothing below it is lost, and what was being saved is sent once one is back. */
export function SignInAgain({ open }: { open: boolean }) {
  const { session } = useStanding();
  return (
    <Dialog
      open={open}
      onClose={stayExpired}
      keep
      title="Your session has ended"
      note={
        <>
          Sign in again to go on where you were. You were here with the key <b>{session?.key.name}</b>, …
          {session?.key.last_four}.
        </>
      }
    >
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
