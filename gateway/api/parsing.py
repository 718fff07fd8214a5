"""From the bytes of a body to a typed request, and from what is wrong with them to a refusal that names the field.

The same for every endpoint. It must never know what a field means.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from gateway.api.unknown_fields import UnknownFields, shape_of, unknown_parameter
from gateway.errors import InvalidRequest, UnsupportedParameter, UnsupportedValue


class UnsupportedField(msgspec.Struct, frozen=True):
    """A field of the API that has no effect here. `why`: a sentence without its full stop. `neutral`: the values,
    beside null, that ask for nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


UnservedFields = Mapping[str, UnsupportedField]
"""By name. Where two fields of a request are wrong, the first in this order is named."""

Explanations = Sequence[tuple[str, str]]
"""By patterns of a refusal's message: a sentence, without its full stop, that says what is served."""

Request = TypeVar("Request", bound=msgspec.Struct)

# Of a message that quotes a caller's name or value, this many characters at the beginning and at the end are kept. A
# longer message would fill the answer, and the patterns below take quadratic time.
MESSAGE_PART_CHARS = 500

_PATH = re.compile(r"^(?P<text>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>.*)`$", re.DOTALL)
_UNKNOWN = "unknown field"
# UTF-32's begins with UTF-16's.
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


class BodyDecoder(Generic[Request]):
    """Decodes bodies of JSON as `kind`, which forbids unknown fields. Python parses untyped floats: msgspec takes 13 µs
    for a float of an extreme exponent."""

    def __init__(self, kind: type[Request], explanations: Explanations = ()) -> None:
        self._kind = kind
        self._explanations = [(re.compile(pattern), why) for pattern, why in explanations]
        self._typed = msgspec.json.Decoder(kind, float_hook=float)
        self._untyped = msgspec.json.Decoder(float_hook=float)
        self._shape = shape_of(kind)

    def decode(self, body: bytes, unknown: UnknownFields) -> Request:
        """Raises InvalidRequest that names the field; UnknownParameter as `unknown` decides."""
        try:
            try:
                return self._typed.decode(body)
            except msgspec.ValidationError as error:
                if _UNKNOWN not in str(error):
                    raise
            value = self._untyped.decode(body)
            self._shape.remove_unknown(value, unknown)
            return msgspec.convert(value, self._kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise self._explained(_named(str(error))) from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"The body is not valid JSON: {_why_no_json(body) or error}.") from None
        except UnicodeDecodeError:
            raise InvalidRequest("The body is not valid UTF-8.") from None
        except RecursionError:
            raise InvalidRequest("The body is nested too deeply.") from None

    def _explained(self, error: InvalidRequest) -> InvalidRequest:
        for pattern, why in self._explanations:
            if pattern.search(error.message):
                return UnsupportedValue(f"{error.message} {why}.", param=error.param)
        return error


def _why_no_json(body: bytes) -> str:
    """The likely cause, where the parser's own message misleads; else ""."""
    if body.startswith(_BYTE_ORDER_MARKS):
        return "it begins with a byte order mark; send UTF-8 without it"
    if b"\0" in body[:2]:
        return "it is not UTF-8, but looks like UTF-16"
    return ""


def check_served(request: msgspec.Struct, unserved: UnservedFields) -> None:
    """Raises UnsupportedParameter or UnsupportedValue for a field that asks for what is not served."""
    for field, entry in unserved.items():
        check_value(field, getattr(request, field), entry)


def check_value(field: str, value: Any, entry: UnsupportedField) -> None:
    """Raises UnsupportedParameter or UnsupportedValue unless the value is neutral."""
    if value is not None and not _is_one_of(value, entry.neutral):
        raise _unsupported(field, entry)


def _unsupported(field: str, entry: UnsupportedField) -> InvalidRequest:
    """The refusal, with what to send instead. A field whose neutral values are all empty is unsupported as a whole."""
    if not any(entry.neutral):
        return UnsupportedParameter(f"Unsupported parameter: {field!r}. {entry.why}; leave it out.", param=field)
    values = " or ".join([msgspec.json.encode(value).decode() for value in entry.neutral])
    message = f"Unsupported value of {field!r}. {entry.why}; send {values}, or leave it out."
    return UnsupportedValue(message, param=field)


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
        return unknown_parameter(param)
    if not path:
        return InvalidRequest(f"The body is wrong: {text}.")
    return InvalidRequest(f"{path!r} is wrong: {text}.", param=path)


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    # True == 1 and False == 0 in Python, not in JSON.
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed)
