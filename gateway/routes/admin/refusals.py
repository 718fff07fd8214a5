"""The HTTP error of each refusal of `gateway.admin.refusals`."""

from __future__ import annotations

from typing import Any, NoReturn

from litestar import Request
from litestar.exceptions import ValidationException

from adapters.files.header import AdapterRefused
from billing.errors import (
    AlreadyExists,
    BillingRefused,
    InvalidValue,
    NotPossibleYet,
    QuotaBytesExceeded,
    RowNotFound,
    TenantQuotaExceeded,
)
from engine.protocol.allowed_words import WRONG_WORD, name_allowed_words
from gateway import errors
from gateway.access.keys import KeyRefused
from gateway.admin.refusals import REFUSALS, ActorKeyEnded, NotPermitted

# The first class that a refusal is an instance of decides.
ERRORS: dict[type[Exception], type[errors.ApiError]] = {
    RowNotFound: errors.NotFound,
    AlreadyExists: errors.Conflict,
    NotPossibleYet: errors.Conflict,
    TenantQuotaExceeded: errors.QuotaExceeded,
    QuotaBytesExceeded: errors.RequestTooLarge,
    NotPermitted: errors.InsufficientRole,
    InvalidValue: errors.InvalidRequest,
    BillingRefused: errors.InvalidRequest,
    KeyRefused: errors.InvalidRequest,
    AdapterRefused: errors.InvalidAdapter,
}


def _raise_refusal(_: Request[Any, Any, Any], refusal: Exception) -> NoReturn:
    kind = next(error for refused, error in ERRORS.items() if isinstance(refusal, refused))
    raise kind(str(refusal), param=getattr(refusal, "param", None)) from refusal


def _raise_unauthorized(request: Request[Any, Any, Any], refusal: Exception) -> NoReturn:
    """The error names the session, not the key, where a session's cookie authorised the request."""
    raise errors.SessionExpired() if request.state.get("by_cookie") else errors.InvalidApiKey() from refusal


def _raise_invalid(request: Request[Any, Any, Any], error: ValidationException) -> NoReturn:
    """The first field that is wrong."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    param = first.get("key") if isinstance(first, dict) else None
    message = first.get("message") if isinstance(first, dict) else None
    body = request.route_handler.parsed_data_field
    if isinstance(message, str) and message.startswith(WRONG_WORD) and param is not None and body is not None:
        message += name_allowed_words(body.annotation, str(param))
    raise errors.InvalidRequest(message or error.detail, param=param) from error


HANDLERS: dict[Any, Any] = {
    ValidationException: _raise_invalid,
    **dict.fromkeys(REFUSALS, _raise_refusal),
    ActorKeyEnded: _raise_unauthorized,
    errors.InvalidApiKey: _raise_unauthorized,
}
