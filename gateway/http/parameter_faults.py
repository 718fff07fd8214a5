"""The refusal of a parameter that the framework could not read: its name, the fault and the allowed values."""

from __future__ import annotations

from typing import Any

from litestar.exceptions import ValidationException

from engine.protocol.allowed_words import WRONG_WORD, name_allowed_words
from gateway import errors


def parameter_refusal(error: ValidationException, handler: Any) -> errors.InvalidRequest:
    """For the first parameter of `handler`, the route's handler, that is not valid."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else None
    if not isinstance(first, dict) or "message" not in first:
        return errors.InvalidRequest(error.detail)
    name, message = first.get("key"), str(first["message"])
    if name is None:
        return errors.InvalidRequest(message)
    parameter = handler.parsed_fn_signature.parameters.get(name)
    if message.startswith(WRONG_WORD) and parameter is not None:
        message += name_allowed_words(parameter.annotation, "")
    return errors.InvalidRequest(f"{name}: {message}", param=str(name))
