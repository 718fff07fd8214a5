// A refusal in the API's own words: what it said, about which field, and by which code.

export class ApiError extends Error {
  constructor(
    /** The HTTP status; 0 when no answer came. */
    readonly status: number,
    readonly code: string | null,
    /** The field that is wrong, where the API names one. */
    readonly param: string | null,
    message: string,
    readonly requestId: string | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** Any thrown thing as an ApiError, so that there is one way to show it. */
export function apiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(0, null, null, error instanceof Error ? error.message : String(error));
}

/** The refusal in an answer's body, whoever wrote it: our error shape, or a proxy's page. */
export function errorOf(status: number, body: unknown, requestId: string | null): ApiError {
  const detail = (body as { error?: { message?: unknown; code?: unknown; param?: unknown } } | null)?.error;
  const text = (value: unknown) => (typeof value === "string" ? value : null);
  const message = text(detail?.message) ?? `The server answered ${status} without saying why.`;
  return new ApiError(status, text(detail?.code), text(detail?.param), message, requestId);
}
