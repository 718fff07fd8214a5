// Event streams, streamed responses and uploads with progress.
import { useEffect, useRef, useState } from "react";
import { respond } from "./client";
import { ApiError, errorOf, reach } from "./errors";
import { parseJson, writeJson } from "./json";
import { loadSession, csrfToken, recovered } from "./session";

/** Reads an event stream while the tab is visible; `on` maps event names to handlers. Returns the state of the stream.
 * A broken stream is opened again. */
export function useEvents(url: string, on: Record<string, (data: unknown) => void>): "opening" | "open" | "broken" {
  const [state, setState] = useState<"opening" | "open" | "broken">("opening");
  const handlers = useRef(on);
  useEffect(() => {
    handlers.current = on;
  });
  const names = Object.keys(on).sort().join(" ");
  useEffect(() => {
    let source: EventSource | null = null;
    let later: ReturnType<typeof setTimeout> | undefined;
    const close = () => {
      clearTimeout(later);
      source?.close();
      source = null;
    };
    const open = () => {
      close();
      const made = new EventSource(url);
      source = made;
      made.onopen = () => setState("open");
      made.onerror = () => {
        setState("broken");
        if (made.readyState !== EventSource.CLOSED) return; // EventSource reconnects by itself
        void loadSession(); // an event stream does not report its status: check the session
        later = setTimeout(open, 5_000);
      };
      for (const name of names.split(" ")) {
        made.addEventListener(name, (event) =>
          handlers.current[name]?.(parseJson((event as MessageEvent<string>).data)),
        );
      }
    };
    const seen = () => (document.hidden ? close() : open());
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => {
      document.removeEventListener("visibilitychange", seen);
      close();
    };
  }, [url, names]);
  return state;
}

/** A streamed response: POSTs `body` and yields the data of each event until `[DONE]`. `key`: a bearer token to use
 * instead of the session (the playground calls as a tenant). `opened` receives the headers of an accepted request.
 * Throws an ApiError, also for an error event. */
export async function* streamed(
  url: string,
  body: unknown,
  key: string | null,
  signal: AbortSignal,
  opened?: (headers: Headers) => void,
): AsyncGenerator<unknown> {
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (key !== null) headers.authorization = `Bearer ${key}`;
  const init = { method: "POST", headers, body: writeJson(body), signal };
  const answer = key === null ? await respond(url, init) : await reach(url, { ...init, credentials: "omit" });
  if (!answer.ok || answer.body === null) throw await refusedBy(answer);
  opened?.(answer.headers);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (kept + value).split("\n\n");
    kept = events.pop() ?? "";
    for (const event of events) {
      const data = event
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trim())
        .join("\n");
      if (data === "") continue;
      if (data === "[DONE]") return;
      const chunk = parseJson(data);
      if (typeof chunk === "object" && chunk !== null && "error" in chunk) throw errorOf(answer.status, chunk, null);
      yield chunk;
    }
  }
}

async function refusedBy(answer: Response): Promise<ApiError> {
  const text = await answer.text();
  try {
    return errorOf(answer.status, parseJson(text), answer.headers.get("x-request-id"));
  } catch {
    return errorOf(answer.status, null, answer.headers.get("x-request-id"));
  }
}

/** Sends a form with files. `progress` receives 0 to 1. Throws an ApiError; an ended session asks for
 * a sign-in first. */
export async function upload(
  url: string,
  form: FormData,
  progress: (share: number) => void,
  signal?: AbortSignal,
): Promise<unknown> {
  try {
    return await sendForm(url, form, progress, signal);
  } catch (error) {
    if (!(error instanceof ApiError) || !(await recovered(error))) throw error;
    return sendForm(url, form, progress, signal);
  }
}

function sendForm(
  url: string,
  form: FormData,
  progress: (share: number) => void,
  signal?: AbortSignal,
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    const token = csrfToken();
    if (token !== null) request.setRequestHeader("x-csrf-token", token);
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) progress(event.loaded / event.total);
    };
    request.onload = () => {
      let body: unknown = null;
      try {
        body = parseJson(request.responseText);
      } catch {
        // A proxy's page: only the status is reported.
      }
      if (request.status >= 200 && request.status < 300) resolve(body);
      else reject(errorOf(request.status, body, request.getResponseHeader("x-request-id")));
    };
    request.onerror = () =>
      reject(new ApiError(0, null, null, "The connection broke before the upload finished. Try again."));
    request.onabort = () => reject(new ApiError(0, null, null, "The upload was stopped."));
    signal?.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}
