"""Decodes the bytes of a body to a typed request, for every endpoint. A refusal names the field that is wrong.

The meaning of a field is not known here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from gateway.api.unknown_fields import UnknownFields, shape_of, unknown_parameter
from gateway.errors import InvalidRequest, UnsupportedParameter, UnsupportedValue


class UnsupportedField(msgspec.Struct, frozen=True):
    """A field of the API that has no effect here. `why`: a sentence without its full stop. `neutral`: the values that
    are accepted because they request nothing; null is always neutral."""

    why: str
    neutral: tuple[Any, ...] = ()


UnservedFields = Mapping[str, UnsupportedField]
"""By the field's name. Of several wrong fields in a request, the refusal names the first in this order."""

Explanations = Sequence[tuple[str, str]]
"""Pairs of a regular expression for a refusal's message and a sentence, without its full stop, that says which values
are accepted."""

Request = TypeVar("Request", bound=msgspec.Struct)

# A message may quote a client's field name or value. The middle of a message over 2 × MESSAGE_PART_CHARS
# is left out: it would fill the answer, and the regular expressions below take quadratic time.
MESSAGE_PART_CHARS = 500

_PATH = re.compile(r"^(?P<text>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>.*)`$", re.DOTALL)
_UNKNOWN = "unknown field"
# The mark of little-endian UTF-32 begins with that of UTF-16.
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


class BodyDecoder(Generic[Request]):
    """Decodes JSON bodies as the struct `kind`, which forbids unknown fields.

    Untyped floats are parsed by Python: msgspec takes 13 µs for a float of an extreme exponent."""

    def __init__(
        self,
        kind: type[Request],
        explanations: Explanations = (),
        prepare: Callable[[Any, UnknownFields], None] | None = None,
    ) -> None:
        """`prepare`: changes the decoded JSON of an invalid body, before the body is checked again."""
        self._kind = kind
        self._prepare = prepare
        self._explanations = [(re.compile(pattern), why) for pattern, why in explanations]
        self._typed = msgspec.json.Decoder(kind, float_hook=float)
        self._untyped = msgspec.json.Decoder(float_hook=float)
        self._shape = shape_of(kind)

    def decode(self, body: bytes, unknown: UnknownFields) -> Request:
        """Raises InvalidRequest that names the field: UnknownParameter for an unknown field that `unknown` refuses."""
        try:
            try:
                return self._typed.decode(body)
            except msgspec.ValidationError as error:
                if _UNKNOWN not in str(error) and self._prepare is None:
                    raise
            value = self._untyped.decode(body)
            if self._prepare is not None:
                self._prepare(value, unknown)
            self._shape.remove_unknown(value, unknown)
            return msgspec.convert(value, self._kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise self._explain(_field_error(str(error))) from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"The body is not valid JSON: {_why_no_json(body) or error}.") from None
        except UnicodeDecodeError:
            raise InvalidRequest("The body is not valid UTF-8.") from None
        except RecursionError:
            raise InvalidRequest("The body is nested too deeply.") from None

    def decode_served(self, body: bytes, unknown: UnknownFields, unserved: UnservedFields) -> Request:
        """`decode`, then `check_served`. Raises InvalidRequest that names the field."""
        request = self.decode(body, unknown)
        check_served(request, unserved)
        return request

    def _explain(self, error: InvalidRequest) -> InvalidRequest:
        """The error with the first matching explanation added, else the error itself."""
        for pattern, why in self._explanations:
            if pattern.search(error.message):
                return UnsupportedValue(f"{error.message} {why}.", param=error.param)
        return error


def _why_no_json(body: bytes) -> str:
    """The likely cause where the parser's message misleads; else ""."""
    if body.startswith(_BYTE_ORDER_MARKS):
        return "it begins with a byte order mark; send UTF-8 without it"
    if b"\0" in body[:2]:
        return "it is not UTF-8, but looks like UTF-16"
    return ""


def check_served(request: msgspec.Struct, unserved: UnservedFields) -> None:
    """Check each field of `unserved`. Raises UnsupportedParameter or UnsupportedValue as `check_value`."""
    for field, entry in unserved.items():
        check_value(field, getattr(request, field), entry)


def check_value(field: str, value: Any, entry: UnsupportedField) -> None:
    """Raises UnsupportedParameter or UnsupportedValue unless the value is null or neutral."""
    if value is not None and not _is_one_of(value, entry.neutral):
        raise _unsupported(field, entry)


def _unsupported(field: str, entry: UnsupportedField) -> InvalidRequest:
    """The refusal, with the values to send instead. A field without a neutral value that is not empty is an unsupported
    parameter, any other an unsupported value."""
    if not any(entry.neutral):
        return UnsupportedParameter(f"Unsupported parameter: {field!r}. {entry.why}; leave it out.", param=field)
    values = " or ".join([msgspec.json.encode(value).decode() for value in entry.neutral])
    message = f"Unsupported value of {field!r}. {entry.why}; send {values}, or leave it out."
    return UnsupportedValue(message, param=field)


def _field_error(message: str) -> InvalidRequest:
    """msgspec's "… - at `$.messages[0]`" as a refusal whose `param` is the wrong, missing or unknown field."""
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
