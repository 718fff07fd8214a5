"""Selects the parts of a request's error that may be stored: none can quote the request's texts."""

from __future__ import annotations

import re

from gateway.errors import ApiError, UnknownParameter
from gateway.log import LineError, RequestLine

MESSAGE_CHARS_MAX = 500
# A field of the API. An unknown field's name is the caller's own text, and so are the names below a known field.
_FIELD = re.compile(r"[a-z_]{1,64}")
# The names of models and adapters; a text with a space, for instance, is no name.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


def note_error(line: RequestLine, error: ApiError) -> None:
    """Note the error that the caller gets. A later error replaces it: the caller saw the last error."""
    limit = error.limit
    line.error = LineError(
        status=error.status,
        code=error.code or error.type,
        message=error.message[:MESSAGE_CHARS_MAX] if error.stores_message else None,
        param=_field(error),
        limit_name=None if limit is None else limit.name,
        limit_value=None if limit is None else limit.value,
        retry_after_s=error.retry_after,
    )


def model_name(asked: str | None) -> str | None:
    """The model that a request named, if the value can be a name; None: the value is no name, and may be a text."""
    return asked if asked is not None and _MODEL.fullmatch(asked) else None


def _field(error: ApiError) -> str | None:
    """The top-level field at fault, without the names below it."""
    if error.param is None or isinstance(error, UnknownParameter):
        return None
    found = _FIELD.match(error.param)
    return None if found is None else found[0]
