"""Every error that a caller can get: its HTTP status, type, code and advice on retries, in the OpenAI API's shape."""

from __future__ import annotations

import math
import random
from http import HTTPStatus

import msgspec

RETRY_AFTER_S_MAX = 60  # the official SDKs ignore a longer Retry-After
# Retry-After has jitter of up to this part of the wait, or up to JITTER_S_MIN seconds if that is more.
JITTER_PART = 0.25
JITTER_S_MIN = 2
JSON_TYPE = b"application/json"
STATUS_CLIENT_LEFT = 499  # for the log only: the client has disconnected


class FieldError(msgspec.Struct, frozen=True):
    """One field at fault."""

    message: str
    param: str | None


class ErrorDetail(msgspec.Struct, frozen=True):
    """`errors`: every field at fault, where an administrative write has several; the first is `param`."""

    message: str
    type: str
    param: str | None
    code: str | None
    errors: list[FieldError] | msgspec.UnsetType = msgspec.UNSET


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error answer, and of an error event in a stream."""

    error: ErrorDetail


class ReachedLimit(msgspec.Struct, frozen=True):
    """The limit that refused a request, by a name such as key_requests_per_minute. `value`: in requests, tokens, bytes
    or picos, as the name says."""

    name: str
    value: int


class ApiError(Exception):
    """An error answer. A subclass has the status, type and code; an instance has the message and optionally the field
    at fault (`param`) and the seconds until a retry makes sense."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    should_retry: bool | None = None  # the header x-should-retry; None: no such header
    # Whether the message may be stored with the request. A message that can quote a value of the request may not.
    stores_message = False
    limit: ReachedLimit | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        # The header Retry-After.
        self.retry_after = None if retry_after_s is None else _spread(retry_after_s)
        self.all_fields: list[FieldError] = []  # if several fields are at fault, with this one
        self.limit_headers: list[tuple[bytes, bytes]] = []  # x-ratelimit-*, if known

    def body(self) -> bytes:
        errors = self.all_fields or msgspec.UNSET
        return encode(ErrorBody(ErrorDetail(self.message, self.type, self.param, self.code, errors)))

    def headers(self) -> list[tuple[bytes, bytes]]:
        """ASGI headers of the answer, without x-request-id."""
        headers = [(b"content-type", JSON_TYPE), *self.limit_headers]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        if self.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        return headers


def _spread(wait_s: float) -> int:
    """Whole seconds with jitter, so that clients refused together do not retry together. At least `wait_s`, unless that
    is above RETRY_AFTER_S_MAX."""
    seconds = max(1, math.ceil(wait_s))
    jitter = random.randint(0, max(JITTER_S_MIN, math.ceil(seconds * JITTER_PART)))
    if seconds + jitter <= RETRY_AFTER_S_MAX:
        return seconds + jitter
    return RETRY_AFTER_S_MAX - jitter if seconds >= RETRY_AFTER_S_MAX else RETRY_AFTER_S_MAX


class InvalidRequest(ApiError):
    """A field has an invalid value, or the body is no valid request."""


class UnknownParameter(InvalidRequest):
    """The endpoint has no field of this name."""

    code = "unknown_parameter"


class UnsupportedParameter(InvalidRequest):
    """A field of the OpenAI or Anthropic API that this server does not implement, with a value that is not neutral."""

    code = "unsupported_parameter"


class UnsupportedValue(InvalidRequest):
    """A field that is implemented, with a value that is not."""

    code = "unsupported_value"


class PreviousResponseNotFound(InvalidRequest):
    """The response that a request continues is not stored. Clients that read this code send the whole input again."""

    code = "previous_response_not_found"


class InvalidEncryptedContent(InvalidRequest):
    """Encrypted reasoning that was changed, is another tenant's, or was encrypted with a secret that was rotated."""

    code = "invalid_encrypted_content"


class InvalidAdapter(ApiError):
    """The uploaded files are no adapter that can be served. The message names the tensor or the configuration's key."""

    code = "invalid_adapter"


class ContextLengthExceeded(ApiError):
    code = "context_length_exceeded"
    stores_message = True


class InvalidApiKey(ApiError):
    """The key is missing, malformed, unknown, expired or revoked; the message is the same for all of these. A sign-in
    has a message of its own."""

    status = 401
    code = "invalid_api_key"
    stores_message = True

    def __init__(
        self,
        message: str = "Incorrect API key provided. Send a valid key as 'Authorization: Bearer <key>' or "
        "'x-api-key: <key>'.",
    ) -> None:
        super().__init__(message)


class ResponseCancelled(ApiError):
    """The client cancelled its response in the background. No request is answered with it."""

    code = "response_cancelled"

    def __init__(self) -> None:
        super().__init__("The response was cancelled.")


class AccessEnded(ApiError):
    """The key was revoked, or the tenant suspended, while the request ran."""

    status = 401
    code = "invalid_api_key"
    stores_message = True

    def __init__(self) -> None:
        super().__init__("This key was revoked, or its tenant suspended, while the request ran.")


class InsufficientScope(ApiError):
    status = 403
    type = "permission_error"
    code = "insufficient_scope"
    stores_message = True


class InsufficientRole(ApiError):
    """The role of the admin key lacks the permission; the message names both."""

    status = 403
    type = "permission_error"
    code = "insufficient_role"


class AddressNotAllowed(ApiError):
    """The key or its tenant has a list of networks, and the client's address is in none of them. The message has the
    address, which shows a proxy that is not trusted, and never the list."""

    status = 403
    type = "permission_error"
    code = "ip_not_allowed"
    stores_message = True

    def __init__(self, address: str | None) -> None:
        named = "an unknown address" if address is None else f"the address {address}"
        super().__init__(f"This key may not be used from {named}.")


class CsrfTokenInvalid(ApiError):
    """A write that a session's cookie authenticates lacks a valid CSRF token."""

    status = 403
    type = "permission_error"
    code = "csrf_token_invalid"


class SessionExpired(ApiError):
    """The cookie's session is unknown, expired or signed out, its key is revoked, or its person has no role left."""

    status = 401
    code = "session_expired"

    def __init__(self) -> None:
        super().__init__("There is no session, or it has ended. Sign in again.")


class TotpRequired(ApiError):
    """The key of a sign-in is right, and needs a code of its authenticator app too."""

    status = 401
    code = "totp_required"


class TotpInvalid(ApiError):
    """The code is wrong, or was accepted before."""

    status = 401
    code = "totp_invalid"


class ModelNotFound(ApiError):
    """The model is unknown, or the tenant may not call it. The answer is the same for both, so that it reveals no other
    tenant's names."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model {model!r} does not exist or you do not have access to it.", param="model")


class ModelNotPriced(ApiError):
    """The model has no price in the tenant's currency for the tier. The status is no 5xx, since only an operator can
    change that and a client must not retry."""

    code = "model_not_priced"
    should_retry = False
    stores_message = True

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message} An operator publishes one with: laneway prices publish MODEL. Until then no request can be "
            "served.",
            param="model",
        )


class NotFound(ApiError):
    status = 404


class MethodNotAllowed(ApiError):
    status = 405
    allow: str | None = None  # for the Allow header

    def headers(self) -> list[tuple[bytes, bytes]]:
        allow = [] if self.allow is None else [(b"allow", self.allow.encode())]
        return [*super().headers(), *allow]


class Conflict(ApiError):
    """The write conflicts with the current state, e.g. the name is taken."""

    status = 409
    should_retry = False


class IdempotencyInFlight(ApiError):
    status = 409
    code = "idempotency_in_flight"
    should_retry = False
    stores_message = True

    def __init__(self) -> None:
        super().__init__("A request with this Idempotency-Key is in flight. Repeat this one after it has ended.")


class AnswerNotKept(ApiError):
    """The first request was charged, but its answer was not stored. It must not run again."""

    status = 409
    code = "idempotency_not_kept"
    should_retry = False
    stores_message = True

    def __init__(self) -> None:
        super().__init__("The request with this Idempotency-Key was answered, and its answer could not be kept.")


class AnswerUnreadable(ApiError):
    """The first request was charged, but this gateway cannot decrypt its stored answer. It must not run again."""

    status = 409
    code = "idempotency_unreadable"
    should_retry = False
    stores_message = True

    def __init__(self, ran: str = "answered and charged") -> None:
        super().__init__(
            f"The request with this Idempotency-Key was {ran}, and its answer cannot be read here: it "
            "was kept by a gateway with another secret (gateway.secret_file)."
        )


class IdempotencyMismatch(ApiError):
    status = 422
    code = "idempotency_mismatch"
    should_retry = False
    stores_message = True

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key was used with another body. Use a new key for another request.")


class RequestTooLarge(ApiError):
    status = 413
    code = "request_too_large"
    stores_message = True


class UnsupportedEncoding(ApiError):
    status = 415
    code = "unsupported_content_encoding"

    def __init__(self, encoding: str) -> None:
        super().__init__(f"The Content-Encoding {encoding[:64]!r} is not supported: send the body without one.")

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"accept-encoding", b"identity")]  # RFC 9110 15.5.16


class RateLimited(ApiError):
    """The message is `reason` and "Try again in 3s.", with the seconds of Retry-After or of a longer wait. Codex reads
    the seconds there."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    should_retry = True
    stores_message = True

    def __init__(self, reason: str, *, retry_after_s: float, limit: ReachedLimit | None = None) -> None:
        super().__init__(reason, retry_after_s=retry_after_s)
        self.reason = reason
        self.limit = limit
        assert self.retry_after is not None
        self.message = f"{reason} Try again in {max(self.retry_after, math.ceil(retry_after_s))}s."


class BudgetExceeded(ApiError):
    """A budget is used up until its next window or an operator's change; retrying does not help."""

    status = 429
    type = "insufficient_quota"
    should_retry = False
    stores_message = True

    def __init__(
        self,
        message: str,
        *,
        code: str,
        nothing_left: bool = False,
        resets_at: int | None = None,
        limit: ReachedLimit | None = None,
    ) -> None:
        """`nothing_left`: no request fits the budget before its window ends, at `resets_at` (microseconds UTC), or
        before an administrative write. `limit`: the budget's, in tokens or picos."""
        super().__init__(message)
        self.code = code
        self.limit = limit
        self.nothing_left = nothing_left
        self.resets_at = resets_at


class QuotaExceeded(ApiError):
    """A tenant's quota is used up: the tenant must remove something, or an operator must raise the limit."""

    status = 429
    type = "insufficient_quota"
    code = "quota_exceeded"
    should_retry = False
    stores_message = True

    def __init__(self, message: str, limit: ReachedLimit | None = None, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.limit = limit


class Unavailable(ApiError):
    status = 503
    type = "service_unavailable_error"
    should_retry = True
    stores_message = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class Overloaded(Unavailable):
    code = "server_is_overloaded"


class EngineDown(Unavailable):
    code = "engine_unavailable"


class ModelUnavailable(Unavailable):
    """The tenant may call the model, but it cannot be loaded. The reason is shown to operators only."""

    code = "model_unavailable"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model {model!r} cannot be loaded now. Try again later.", retry_after_s=30.0)


class FileStoreDown(Unavailable):
    """The store of files' contents cannot be read or written."""

    code = "file_store_unavailable"


class FileStoreFull(ApiError):
    """The store of files' contents has too little space; a retry does not help before an operator makes some."""

    status = 507
    type = "server_error"
    code = "file_store_full"
    should_retry = False
    stores_message = True


class DatabaseDown(Unavailable):
    code = "budget_unavailable"


class InternalError(ApiError):
    """A fault of the server. The log has the traceback under the request id."""

    status = 500
    type = "server_error"
    stores_message = True

    def __init__(self) -> None:
        super().__init__(
            "The server had an error while processing your request. Quote the x-request-id when reporting."
        )


class OutputUnreadable(ApiError):
    """The output of a line of a batch cannot be decrypted. The message says whether the line was charged."""

    status = 500
    type = "server_error"
    code = "output_unreadable"


class OtherStatus(ApiError):
    """A status that the web framework chose, in the shape of all other errors."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message or HTTPStatus(status).phrase)
        self.status = status
        if status >= 500:
            self.type = "server_error"


encode = msgspec.json.Encoder().encode
