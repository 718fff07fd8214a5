// Who is signed in. The cookie is the browser's alone; this knows the role, the permissions and the CSRF token.
import { useSyncExternalStore } from "react";
import { type ApiError, errorOf } from "./errors";
import { parseJson } from "./json";
import type { components } from "./schema";

/** Who it is: role, tenant (null: the operator's side, all tenants), key, `area:read` and `area:write` permissions. */
export type Session = components["schemas"]["SessionView"];

/** `session` null with `state` "out": nobody; with "expired": one was signed in, and the page is still there. */
export interface Standing {
  state: "unknown" | "out" | "in" | "expired";
  session: Session | null;
  /** Why it could not be asked. */
  error: Error | null;
}

const PATH = "/v1/admin/session";
let standing: Standing = { state: "unknown", session: null, error: null };
let waiting: ((again: boolean) => void)[] = [];
const watchers = new Set<() => void>();

function become(next: Standing): void {
  standing = next;
  for (const watcher of watchers) watcher();
}

export function useStanding(): Standing {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => standing,
  );
}

/** The session of a page that is shown only to those who have one. */
export function useSession(): Session {
  const { session } = useStanding();
  if (session === null) throw new Error("useSession outside the signed-in console");
  return session;
}

/** Whether this session may: `useMay()("people:write")`. */
export function useMay(): (permission: string) => boolean {
  const { session } = useStanding();
  return (permission) => session?.permissions.includes(permission) ?? false;
}

export function csrfToken(): string | null {
  return standing.session?.csrf_token ?? null;
}

/** The first call at load, and after a stream broke that cannot say why. */
export async function askSession(): Promise<void> {
  try {
    const answer = await fetch(PATH, { credentials: "same-origin" });
    if (answer.status === 401)
      become({ ...standing, state: standing.session === null ? "out" : "expired", error: null });
    else enter(await sessionOf(answer));
  } catch (error) {
    if (standing.session !== null) return; // the page stays; what it asks will say that nothing answers
    become({ state: "unknown", session: null, error: error instanceof Error ? error : new Error(String(error)) });
  }
}

/** Throws the API's refusal of a wrong key. */
export async function signIn(key: string): Promise<void> {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(PATH, {
    method: "POST",
    headers,
    body: JSON.stringify({ key }),
    credentials: "same-origin",
  });
  enter(await sessionOf(answer));
}

/** What waited goes on. Someone else's pages must not be seen by whoever signed in: nothing of theirs is asked again or
 * shown, everything begins anew. */
function enter(session: Session): void {
  const before = standing.session;
  if (before !== null && !sameReach(before, session)) {
    location.reload();
    return;
  }
  become({ state: "in", session, error: null });
  settle(true);
}

export async function signOut(): Promise<void> {
  const headers = { "x-csrf-token": csrfToken() ?? "" };
  await fetch(PATH, { method: "DELETE", headers, credentials: "same-origin" });
  location.assign("/admin/");
}

/** Opens the sign-in over the page. True once one is signed in again; false when one would rather not. */
function signInAgain(): Promise<boolean> {
  if (standing.session === null) {
    become({ state: "out", session: null, error: null });
    return Promise.resolve(false);
  }
  become({ ...standing, state: "expired" });
  return new Promise((resolve) => waiting.push(resolve));
}

/** Whether a refused call is worth asking again: the session had ended and one has signed in again, or its token was one
 * of a session before, because another tab signed in. */
export async function mended({ status, code }: ApiError): Promise<boolean> {
  // By cookie every 401 means so: a cookie that is past its age is not even sent, and the API sees no key at all.
  if (status === 401) return signInAgain();
  if (status !== 403 || code !== "csrf_token_invalid") return false;
  const before = csrfToken();
  await askSession();
  return csrfToken() !== before;
}

/** One closed the sign-in: the page stays to be read, and its calls fail with the API's words. */
export function stayExpired(): void {
  become({ ...standing, state: "in" });
  settle(false);
}

function settle(again: boolean): void {
  const told = waiting;
  waiting = [];
  for (const resolve of told) resolve(again);
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
    // A proxy's page; the status is said instead.
  }
  if (!answer.ok || body === null) throw errorOf(answer.status, body, answer.headers.get("x-request-id"));
  return body as Session;
}
