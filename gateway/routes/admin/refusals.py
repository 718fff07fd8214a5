"""The HTTP error of each refusal of `gateway.admin.refusals`."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
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
from gateway.admin.refusals import REFUSALS, ActorKeyEnded, BatchEnded, NotPermitted
from gateway.http.parameter_faults import parameter_refusal

BODY_PARAMETER = "data"  # of each route's function: its body

# The first class that a refusal is an instance of decides.
ERRORS: dict[type[Exception], type[errors.ApiError]] = {
    RowNotFound: errors.NotFound,
    AlreadyExists: errors.Conflict,
    NotPossibleYet: errors.Conflict,
    BatchEnded: errors.Conflict,
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
    answer = kind(str(refusal), param=getattr(refusal, "param", None))
    if isinstance(refusal, BillingRefused) and refusal.others:
        answer.all_fields = [errors.FieldError(str(one), one.param) for one in (refusal, *refusal.others)]
    raise answer from refusal


def _raise_unauthorized(request: Request[Any, Any, Any], refusal: Exception) -> NoReturn:
    """The error names the session, not the key, where a session's cookie authorised the request."""
    if request.state.get("by_cookie"):
        raise errors.SessionExpired() from refusal
    raise refusal if isinstance(refusal, errors.InvalidApiKey) else errors.InvalidApiKey() from refusal


def _raise_invalid(request: Request[Any, Any, Any], error: ValidationException) -> NoReturn:
    """The first field that is wrong, and in a body all of them."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    body = request.route_handler.parsed_data_field
    if body is None or not isinstance(first, dict) or first.get("source") != "body":
        raise parameter_refusal(error, request.route_handler) from error
    faults = field_faults(request.state.get("admin_body"), body.annotation)
    param, message = first.get("key"), str(first.get("message") or error.detail)
    if param == BODY_PARAMETER and faults:  # the framework does not name an unknown or a missing field
        param, message = faults[0].param, faults[0].message
    elif message.startswith(WRONG_WORD) and param is not None:
        message += name_allowed_words(body.annotation, str(param))
    answer = errors.InvalidRequest(message, param=param)
    answer.all_fields = faults if len(faults) > 1 else []
    raise answer from error


def field_faults(body: bytes | None, kind: Any) -> list[errors.FieldError]:
    """The faults of the body: each field that its struct refuses. msgspec itself names only the first field."""
    try:
        given = msgspec.json.decode(body or b"")
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return []
    if not isinstance(given, dict):
        return []
    found: list[errors.FieldError] = []
    for name, field in fields.items():
        if name not in given:
            if field.required:
                found.append(errors.FieldError(f"Object missing required field `{name}`", name))
            continue
        try:
            msgspec.convert(given[name], field.type, strict=False)  # as the framework does
        except msgspec.ValidationError as error:
            text = str(error).partition(" - at ")[0]
            if text.startswith(WRONG_WORD):
                text += name_allowed_words(kind, name)
            found.append(errors.FieldError(text, name))
    return found + [errors.FieldError(f"Unknown field `{name}`", name) for name in given if name not in fields]


HANDLERS: dict[Any, Any] = {
    ValidationException: _raise_invalid,
    **dict.fromkeys(REFUSALS, _raise_refusal),
    ActorKeyEnded: _raise_unauthorized,
    errors.InvalidApiKey: _raise_unauthorized,
}
