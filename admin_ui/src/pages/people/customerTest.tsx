// The last step of the New customer page: a request with the new key, and a snippet that repeats it.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { type ApiError, type RowOf, useMay } from "../../api";
import { errorOf, reach } from "../../api/errors";
import { Badge, CodeBlock, Form, Link, SelectField, place, useForm } from "../../kit";
import { curlOf } from "../parts/secret";
import { KeyStep } from "./customerForms";
import type { NewSecret } from "./setup";

/** The secret until the user confirms that it is stored. `asked`: the user tried to leave the page. */
export function SecretBlock({ of, asked, onStored }: { of: NewSecret; asked: boolean; onStored: () => void }) {
  if (of.stored) return null;
  return (
    <div className="stack">
      <p className="note">The secret of {of.name} is shown only once. Laneway stores only its hash.</p>
      <CodeBlock label="The secret" text={of.secret} />
      {asked && (
        <div className="problem" role="alert">
          <p>Confirm that you have stored the secret. It cannot be read again.</p>
        </div>
      )}
      <div>
        <button type="button" className="button" onClick={onStored}>
          I have stored it
        </button>
      </div>
    </div>
  );
}

interface Completion {
  id: string;
  model: string;
  choices: { message: { content: string | null } }[];
  usage: { prompt_tokens: number; completion_tokens: number };
}

async function called<A>(path: string, secret: string, body?: unknown): Promise<A> {
  const answer = await reach(path, {
    headers: {
      authorization: `Bearer ${secret}`,
      ...(body === undefined ? {} : { "content-type": "application/json" }),
    },
    ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
    credentials: "omit",
  });
  const read: unknown = await answer.json();
  if (!answer.ok) throw errorOf(answer.status, read, answer.headers.get("x-request-id"));
  return read as A;
}

export function TestStep({
  tenant,
  secret,
  projects,
  onSecret,
}: {
  tenant: string;
  secret: NewSecret | null;
  projects: readonly RowOf<"/v1/admin/projects">[];
  onSecret: (secret: NewSecret) => void;
}) {
  const [making, setMaking] = useState(false);
  if (secret !== null) return <TestCall key={secret.id} tenant={tenant} of={secret} />;
  return (
    <div className="stack">
      <p>A secret is known only to the page that created its key. A test call from here needs a new key.</p>
      {making ? (
        <KeyStep tenant={tenant} projects={projects} onDone={onSecret} />
      ) : (
        <div className="row">
          <button type="button" className="button button-main" onClick={() => setMaking(true)}>
            Create another key
          </button>
          <Link to={place("/tenants", tenant)}>Open the tenant's page</Link>
        </div>
      )}
      <CodeBlock label="Snippet" text={snippetOf(null, undefined)} />
    </div>
  );
}

function snippetOf(secret: string | null, model: string | undefined): string {
  const key = secret ?? "$LANEWAY_KEY";
  const text = curlOf("live", key, model);
  return secret === null ? text.replaceAll(`'Authorization: Bearer ${key}'`, `"Authorization: Bearer ${key}"`) : text;
}

function TestCall({ tenant, of }: { tenant: string; of: NewSecret }) {
  const mayRequests = useMay()("requests:read");
  const models = useQuery<{ data: { id: string }[] }, ApiError>({
    queryKey: ["/v1/models", of.id],
    queryFn: () => called("/v1/models", of.secret),
  });
  const names = models.data?.data.map((model) => model.id) ?? [];
  const form = useForm({ model: "" });
  const [answer, setAnswer] = useState<Completion | null>(null);
  const model = form.values.model || names[0];
  return (
    <div className="stack">
      <Form
        form={{ ...form, values: { model: model ?? "" } }}
        verb={answer === null ? "Send a test call" : "Send another"}
        save={async () => {
          const messages = [{ role: "user", content: "Say hello." }];
          setAnswer(await called("/v1/chat/completions", of.secret, { model, messages, max_tokens: 16 }));
        }}
      >
        <SelectField
          form={{ ...form, values: { model: model ?? "" } }}
          name="model"
          label="Model"
          options={names.length === 0 ? [["", models.error?.message ?? "…"]] : names}
          hint={`The call is billed to ${tenant}, with its limits and budgets.`}
        />
      </Form>
      {answer !== null && (
        <div className="panel stack" role="status">
          <div className="row">
            <Badge tone="good">It works</Badge>
            <span className="note">
              {answer.model}: {answer.usage.prompt_tokens} prompt tokens, {answer.usage.completion_tokens} completion
              tokens
            </span>
          </div>
          <pre className="setup-answer">{answer.choices[0]?.message.content}</pre>
          <div className="row">
            {mayRequests && (
              <Link to={place("/requests", `req_${answer.id.replace(/^chatcmpl-/, "")}`)}>Open the request</Link>
            )}
            <Link to={place("/tenants", tenant)}>Open the tenant's page</Link>
          </div>
        </div>
      )}
      <div className="stack">
        <h3>{of.stored ? "Snippet, with the secret in LANEWAY_KEY" : "Snippet"}</h3>
        <CodeBlock label="Snippet" text={snippetOf(of.stored ? null : of.secret, model)} />
      </div>
    </div>
  );
}
