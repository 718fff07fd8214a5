// An error response of the API: message, field and code.

export interface FieldFault {
  param: string | null;
  message: string;
}

export class ApiError extends Error {
  constructor(
    /** The HTTP status; 0 without a response. */
    readonly status: number,
    readonly code: string | null,
    /** The invalid field, if the API names one. */
    readonly param: string | null,
    message: string,
    readonly requestId: string | null = null,
    /** All invalid fields with their messages, where the API or the form found several; the first is `param`. */
    readonly fields: readonly FieldFault[] = param === null ? [] : [{ param, message }],
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** Any thrown value as an ApiError, so that pages show all errors alike. */
export function apiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(0, null, null, error instanceof Error ? error.message : String(error));
}

/** A fetch. Throws an ApiError with status 0 if no response arrives; an abort is thrown as it is. */
export async function reach(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, null, null, "The gateway cannot be reached. Check the network and try again.");
  }
}

/** The error in a response body: the gateway's error format, or a proxy's page. */
export function errorOf(status: number, body: unknown, requestId: string | null): ApiError {
  const detail = (body as { error?: { message?: unknown; code?: unknown; param?: unknown; errors?: unknown } } | null)
    ?.error;
  const text = (value: unknown) => (typeof value === "string" ? value : null);
  const message = text(detail?.message) ?? `The server answered ${status} without an error message.`;
  const all = Array.isArray(detail?.errors) ? (detail.errors as FieldFault[]) : undefined;
  return new ApiError(status, text(detail?.code), text(detail?.param), message, requestId, all);
}
