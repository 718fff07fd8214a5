// All requests of the console: typed by the API's paths, with the session cookie, and with the CSRF token on writes. A
// request whose session has ended waits for a new sign-in and is then sent again.
import { type ApiError, errorOf, reach } from "./errors";
import { parseJson, writeJson } from "./json";
import { csrfToken, recovered } from "./session";
import type { paths } from "./schema";

type Method = "get" | "post" | "put" | "patch" | "delete";
/** The paths that have the method `M`. */
export type PathsOf<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[keyof paths];
type Operation<P extends keyof paths, M extends Method> = paths[P] extends Record<M, infer O> ? O : never;
type Parameters<O> = O extends { parameters: infer A } ? A : never;
type Part<A, N extends string> = A extends { [K in N]?: infer V } ? Exclude<V, undefined> : never;

export type QueryOf<P extends keyof paths, M extends Method = "get"> = Part<Parameters<Operation<P, M>>, "query">;
export type PlaceOf<P extends keyof paths, M extends Method = "get"> = Part<Parameters<Operation<P, M>>, "path">;
export type BodyOf<P extends keyof paths, M extends Method> =
  Part<Operation<P, M>, "requestBody"> extends { content: { "application/json": infer B } }
    ? [Part<Operation<P, M>, "requestBody">] extends [never]
      ? never
      : B
    : never;
type Answers<O> = O extends { responses: infer R } ? R[keyof R & (200 | 201 | 202 | 204)] : never;
export type AnswerOf<P extends keyof paths, M extends Method = "get"> =
  Answers<Operation<P, M>> extends { content: { "application/json": infer B } } ? B : void;

/** The parameters of a request: `path` fills the braces, `query` becomes the query string (blank
 * values are omitted). */
export type Call<P extends keyof paths, M extends Method> = {
  signal?: AbortSignal;
} & ([PlaceOf<P, M>] extends [never] ? { path?: undefined } : { path: PlaceOf<P, M> }) &
  ([QueryOf<P, M>] extends [never] ? { query?: undefined } : { query?: Partial<QueryOf<P, M>> }) &
  ([BodyOf<P, M>] extends [never] ? { body?: undefined } : { body: BodyOf<P, M> });

type Rest<P extends keyof paths, M extends Method> =
  Record<never, never> extends Call<P, M> ? [call?: Call<P, M>] : [call: Call<P, M>];

/** `api.get("/v1/admin/tenants/{tenant_id}", { path: { tenant_id } })`; throws an ApiError for every error response. */
export const api = {
  get: <P extends PathsOf<"get">>(path: P, ...rest: Rest<P, "get">) => send<AnswerOf<P>>("get", path, rest[0]),
  post: <P extends PathsOf<"post">>(path: P, ...rest: Rest<P, "post">) =>
    send<AnswerOf<P, "post">>("post", path, rest[0]),
  put: <P extends PathsOf<"put">>(path: P, ...rest: Rest<P, "put">) => send<AnswerOf<P, "put">>("put", path, rest[0]),
  patch: <P extends PathsOf<"patch">>(path: P, ...rest: Rest<P, "patch">) =>
    send<AnswerOf<P, "patch">>("patch", path, rest[0]),
  delete: <P extends PathsOf<"delete">>(path: P, ...rest: Rest<P, "delete">) =>
    send<AnswerOf<P, "delete">>("delete", path, rest[0]),
};

interface Loose {
  path?: unknown;
  query?: unknown;
  body?: unknown;
  signal?: AbortSignal;
}

/** The URL of a request, with its path parameters filled. */
export function address(path: string, call: Pick<Loose, "path" | "query"> = {}): string {
  const values = (call.path ?? {}) as Record<string, unknown>;
  const filled = path.replaceAll(/\{(\w+)(?::\w+)?\}/g, (_, name: string) => encodeURIComponent(String(values[name])));
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries((call.query ?? {}) as Record<string, unknown>)) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  return query.size ? `${filled}?${query}` : filled;
}

async function send<A>(method: Method, path: string, call: Loose = {}): Promise<A> {
  const ask = () =>
    respond(address(path, call), {
      method: method.toUpperCase(),
      headers: call.body === undefined ? {} : { "content-type": "application/json" },
      body: call.body === undefined ? null : writeJson(call.body),
      signal: call.signal ?? null,
    });
  const answer = await ask();
  return (await read(answer)) as A;
}

/** A fetch with the session cookie, repeated once after a new sign-in or a new CSRF token. Throws an ApiError unless
 * the response is ok. */
export async function respond(url: string, init: RequestInit): Promise<Response> {
  const ask = async () => {
    const headers = new Headers(init.headers);
    const token = csrfToken();
    if (init.method !== "GET" && token !== null) headers.set("x-csrf-token", token);
    return reach(url, { ...init, headers, credentials: "same-origin" });
  };
  let answer = await ask();
  if (answer.ok) return answer;
  let refused = await refusal(answer);
  if (await recovered(refused)) {
    answer = await ask();
    if (answer.ok) return answer;
    refused = await refusal(answer);
  }
  throw refused;
}

async function refusal(answer: Response): Promise<ApiError> {
  const text = await answer.text();
  let body: unknown = null;
  try {
    body = parseJson(text);
  } catch {
    // Not the gateway's error format, but a proxy's page: only the status is known.
  }
  return errorOf(answer.status, body, answer.headers.get("x-request-id"));
}

async function read(answer: Response): Promise<unknown> {
  if (answer.status === 204) return undefined;
  const text = await answer.text();
  return text === "" ? undefined : parseJson(text);
}
