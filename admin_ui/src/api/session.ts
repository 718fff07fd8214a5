// The session: role, permissions and CSRF token. The cookie itself is visible only to the browser.
import { useSyncExternalStore } from "react";
import { type ApiError, errorOf, reach } from "./errors";
import { parseJson } from "./json";
import type { components } from "./schema";

/** Role, tenant (null: an operator, for all tenants), key or person, and `area:read` / `area:write` permissions. */
export type Session = components["schemas"]["SessionView"];
/** The provider at which people sign in. */
export type Provider = components["schemas"]["ProviderView"];

/** "out": signed out, `session` is null. "expired": the session has ended while a page is open; `session` is the former
 * one. */
export interface SessionState {
  state: "unknown" | "out" | "in" | "expired";
  session: Session | null;
  /** Why the session could not be loaded. */
  error: Error | null;
}

const PATH = "/v1/admin/session";
let current: SessionState = { state: "unknown", session: null, error: null };
let waiting: ((again: boolean) => void)[] = [];
const watchers = new Set<() => void>();

function setCurrent(next: SessionState): void {
  current = next;
  for (const watcher of watchers) watcher();
}

export function useSessionState(): SessionState {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => current,
  );
}

/** The session, for pages that are shown only when signed in. */
export function useSession(): Session {
  const { session } = useSessionState();
  if (session === null) throw new Error("useSession outside the signed-in console");
  return session;
}

/** Whether the session has a permission: `useMay()("people:write")`. */
export function useMay(): (permission: string) => boolean {
  const { session } = useSessionState();
  return (permission) => session?.permissions.includes(permission) ?? false;
}

export function csrfToken(): string | null {
  return current.session?.csrf_token ?? null;
}

/** Loads the session: at start, and after an event stream broke (a stream does not report its status). */
export async function loadSession(): Promise<void> {
  try {
    const answer = await reach(PATH, { credentials: "same-origin" });
    if (answer.status === 401)
      setCurrent({ ...current, state: current.session === null ? "out" : "expired", error: null });
    else enter(await sessionOf(answer));
  } catch (error) {
    if (current.session !== null) return; // keep the page; its own requests will report the failure
    setCurrent({ state: "unknown", session: null, error: error instanceof Error ? error : new Error(String(error)) });
  }
}

/** Who signed in: the person's name, or the key's name and last four characters. */
export function nameOf({ person, key }: Session): string {
  return person?.name ?? `${key?.name} …${key?.last_four}`;
}

/** The provider at which people sign in; null: admin keys alone sign in, or the gateway does not answer. */
export async function loadProvider(): Promise<Provider | null> {
  try {
    const answer = await fetch(`${PATH}/options`, { credentials: "same-origin" });
    return answer.ok ? ((await answer.json()) as components["schemas"]["SignInOptions"]).provider : null;
  } catch {
    return null;
  }
}

/** `code`: of the key's authenticator app; "" at first. Throws the API's error for a wrong key or code. */
export async function signIn(key: string, code: string): Promise<void> {
  const headers = { "content-type": "application/json" };
  const answer = await reach(PATH, {
    method: "POST",
    headers,
    body: JSON.stringify(code === "" ? { key } : { key, code }),
    credentials: "same-origin",
  });
  enter(await sessionOf(answer));
}

/** Resumes waiting requests. If another role or tenant has signed in, the console reloads instead: the former user's
 * data must not be shown or requested. */
function enter(session: Session): void {
  const before = current.session;
  if (before !== null && !sameReach(before, session)) {
    location.reload();
    return;
  }
  setCurrent({ state: "in", session, error: null });
  resumeWaiting(true);
}

export async function signOut(): Promise<void> {
  const headers = { "x-csrf-token": csrfToken() ?? "" };
  await reach(PATH, { method: "DELETE", headers, credentials: "same-origin" });
  location.assign("/admin/");
}

/** Opens the sign-in over the page. Resolves to true after a sign-in, to false if the dialog is closed. */
function signInAgain(): Promise<boolean> {
  if (current.session === null) {
    setCurrent({ state: "out", session: null, error: null });
    return Promise.resolve(false);
  }
  setCurrent({ ...current, state: "expired" });
  return new Promise((resolve) => waiting.push(resolve));
}

/** Whether to send a refused request again: after a new sign-in, or with a new CSRF token because another tab signed
 * in. */
export async function recovered({ status, code }: ApiError): Promise<boolean> {
  // With a cookie, every 401 means an ended session: the browser does not send an expired cookie, so the API sees no
  // key.
  if (status === 401) return signInAgain();
  if (status !== 403 || code !== "csrf_token_invalid") return false;
  const before = csrfToken();
  await loadSession();
  return csrfToken() !== before;
}

/** The sign-in was closed: the page stays readable, and its requests fail with the API's error. */
export function dismissSignIn(): void {
  setCurrent({ ...current, state: "in" });
  resumeWaiting(false);
}

function resumeWaiting(again: boolean): void {
  const resolvers = waiting;
  waiting = [];
  for (const resolve of resolvers) resolve(again);
}

function sameReach(a: Session, b: Session): boolean {
  return a.role === b.role && a.tenant?.id === b.tenant?.id;
}

async function sessionOf(answer: Response): Promise<Session> {
  const text = await answer.text();
  let body: unknown = null;
  try {
    body = parseJson(text);
  } catch {
    // A proxy's page: only the status is reported.
  }
  if (!answer.ok || body === null) throw errorOf(answer.status, body, answer.headers.get("x-request-id"));
  return body as Session;
}
