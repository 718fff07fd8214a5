"""From the bytes of a body to a typed request, and from what is wrong with them to a refusal that names the field.

The same for every endpoint. It must never know what a field means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gateway.errors import InvalidRequest

Neutral = Mapping[str, tuple[Any, ...]]
"""Of fields that do not work here: the values, beside null, that ask for nothing."""

Request = TypeVar("Request", bound=msgspec.Struct)

# Of a message that quotes a caller's name or value, this many characters at the beginning and at the end are kept. A
# longer message would fill the answer, and the patterns below take quadratic time.
MESSAGE_PART_CHARS = 500

_PATH = re.compile(r"^(?P<text>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>.*)`$", re.DOTALL)


def json_decoder(kind: type[Request]) -> msgspec.json.Decoder[Request]:
    """A decoder in which Python parses untyped floats: msgspec takes 13 µs for a float of an extreme exponent."""
    return msgspec.json.Decoder(kind, float_hook=float)


def decode(decoder: msgspec.json.Decoder[Request], body: bytes) -> Request:
    """The request in a body of JSON. Raises InvalidRequest that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None


def check_neutral(request: msgspec.Struct, neutral: Neutral) -> None:
    """Raises InvalidRequest for a field that asks for something we do not do."""
    for field, allowed in neutral.items():
        value = getattr(request, field)
        if value is not None and not _is_one_of(value, allowed):
            raise unsupported(field, allowed)


def unsupported(field: str, allowed: tuple[Any, ...]) -> InvalidRequest:
    values = ", ".join(["null", *(msgspec.json.encode(value).decode() for value in allowed)])
    return InvalidRequest(f"{field!r} is not supported beyond its neutral values ({values}).", param=field)


def _named(message: str) -> InvalidRequest:
    """msgspec's "… - at `$.messages[0]`" as an error whose param is the field that is wrong, missing or unknown."""
    if len(message) > 2 * MESSAGE_PART_CHARS:
        message = f"{message[:MESSAGE_PART_CHARS]}…{message[-MESSAGE_PART_CHARS:]}"
    match = _PATH.match(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    path = path.lstrip(".").replace("[...]", "")
    if field := _FIELD.search(text):
        param = f"{path}.{field['field']}" if path else field["field"]
        if "required" in text:
            return InvalidRequest(f"Missing required field {param!r}.", param=param)
        return InvalidRequest(f"{param!r} is not a field of this endpoint, or not supported.", param=param)
    if not path:
        return InvalidRequest(f"The body is wrong: {text}.")
    return InvalidRequest(f"{path!r} is wrong: {text}.", param=path)


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    # True == 1 and False == 0 in Python, not in JSON.
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed)
