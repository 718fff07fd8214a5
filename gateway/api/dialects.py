"""The format of error answers: Anthropic's on the paths of its API, OpenAI's (`gateway/errors.py`) elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gateway import errors

_ANTHROPIC_PATH = re.compile(r"^(/t/[^/]+)?/v1/messages(/|$)")
# On these paths the header decides, which Anthropic's API requires of every request.
_SHARED_PATH = re.compile(r"^(/t/[^/]+)?/v1/models(/|$)")
VERSION_HEADER = b"anthropic-version"

# Anthropic's error type by HTTP status; any other status is an `api_error`.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


class AnthropicDetail(msgspec.Struct, frozen=True):
    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of an error answer on /v1/messages and below, and the data of an error event in a stream."""

    error: AnthropicDetail
    request_id: str


def speaks_anthropic(path: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> bool:
    """Whether a request calls Anthropic's API: by its path, with or without the /t/<tenant> prefix, or on
    /v1/models by its `anthropic-version`. `headers`: names in lower case, and values, as ASGI has them."""
    if _ANTHROPIC_PATH.match(path) is not None:
        return True
    return _SHARED_PATH.match(path) is not None and any(name == VERSION_HEADER for name, _ in headers)


def anthropic_error(error: errors.ApiError, request_id: str) -> bytes:
    """The JSON of an AnthropicError."""
    match error:
        case errors.Overloaded():
            kind = "overloaded_error"
        case errors.BudgetExceeded():
            kind = "billing_error"
        case _:
            kind = _TYPES.get(error.status, "api_error")
    return errors.encode(AnthropicError(AnthropicDetail(kind, error.message), request_id))
