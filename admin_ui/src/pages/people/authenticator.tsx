// The authenticator app of the admin key that signed in: set up, confirmed, removed.
import { useState } from "react";
import { api, useSession } from "../../api";
import { EmptyState, Form, PageHead, TextField, toast, useForm } from "../../kit";

const PATH = "/v1/admin/session/totp";

export default function TwoStep() {
  const { key } = useSession();
  const [secret, setSecret] = useState<{ secret: string; uri: string } | null>(null);
  const [codes, setCodes] = useState<string[] | null>(null);
  if (key === null) {
    return (
      <>
        <PageHead title="Authenticator app" />
        <EmptyState title="Your second factor is the provider's">
          <p>Authenticator apps at Laneway are for admin keys.</p>
        </EmptyState>
      </>
    );
  }
  const enrol = async () => {
    try {
      setSecret(await api.post(PATH));
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <>
      <PageHead
        title="Authenticator app"
        note={`With an app, the key ${key.name} signs in to the console with a code besides. The API needs no code.`}
      />
      {codes !== null ? (
        <>
          <p>
            From now on each sign-in needs a code. Each of these recovery codes replaces a code once; store them now.
          </p>
          <pre>{codes.join("\n")}</pre>
        </>
      ) : secret !== null ? (
        <>
          <p>Enter this secret in the app, or open the link on its device. It is not shown again.</p>
          <pre>{secret.secret}</pre>
          <p>
            <a href={secret.uri}>Open in the app</a>
          </p>
          <CodeForm
            verb="Confirm"
            send={async (code) => setCodes((await api.post(`${PATH}/confirm`, { body: { code } })).recovery_codes)}
          />
        </>
      ) : (
        <>
          <p>
            <button type="button" className="button button-main" onClick={() => void enrol()}>
              Set up
            </button>
          </p>
          <p className="note">To remove the app that is set up, enter a code of it:</p>
          <CodeForm
            verb="Remove"
            send={async (code) => {
              await api.post(`${PATH}/remove`, { body: { code } });
              toast("Sign-ins need no code any more.");
            }}
          />
        </>
      )}
    </>
  );
}

function CodeForm({ verb, send }: { verb: string; send: (code: string) => Promise<void> }) {
  const form = useForm({ code: "" });
  return (
    <Form form={form} verb={verb} save={({ code }) => send(code.trim())}>
      <TextField form={form} name="code" label="Code" mono autoComplete="one-time-code" />
    </Form>
  );
}
