"""Checks one cell against its column: number, moment, currency, unit, key-value pairs, allowed value.

A cell is None (null), a string, or bytes: the text of a number in a format that distinguishes numbers from
strings.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable
from decimal import Decimal

from billing.focus.columns import PRICE_PROPERTIES, Column
from billing.focus.services import CURRENCIES

# Texts that generators often write in place of null.
STAND_INS = frozenset(("null", "none", "nil", "n/a", "nan", "not applicable", "not available", "-", "\\n"))
NUMBER_CHARS_MAX = 64
EXPONENT_MAX = 40  # numbers with a larger exponent are refused: 1E999999999 would need all memory

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_CURRENCY = re.compile(r"[A-Z]{3}")
_DATA = r"(?:[KMGTPE]i?b|[KMGTPE]i?B|b|B)"
_TIME = r"(?:Year|Month|Day|Hour|Minute|Second)"
_NOUN = r"[A-Z][A-Za-z0-9]*(?: [A-Z][A-Za-z0-9]*)*"
_UNIT = re.compile(rf"(?:[1-9]\d* )?(?:{_DATA}|{_NOUN})(?:-{_TIME}s?|/(?:{_TIME}|[1-9]\d* {_TIME}s))?")
# The specification's units in other words or another case.
_WRONG_UNIT = re.compile(
    r"(?i)\b(?:kilo|mega|giga|tera|peta|exa|kibi|mebi|gibi|tebi|pebi|exbi)(?:byte|bit)s?\b|(?<=[bB])s\b"
)
_NUMERIC_PROPERTIES = frozenset(
    ("CoreCount", "DiskMaxIops", "DiskSpace", "GpuCount", "MemorySize", "NetworkMaxIops", "NetworkMaxThroughput")
)

# The broken rule and a message; None: no fault.
Fault = tuple[str, str] | None


def check_cell(column: Column, value: object, typed: bool) -> Fault:
    """Check a cell of a FOCUS column without the other cells of its row. `typed`: the format distinguishes numbers from
    strings."""
    if value is None:
        return None if column.nullable else ("null-forbidden", "must not be null")
    if typed and (fault := _type(column, value)):
        return fault
    text = value.decode() if isinstance(value, bytes) else str(value)
    if not text.strip():
        return "null-stand-in", "is an empty string in place of null"
    if text.lower() in STAND_INS and not column.name.endswith("Name"):  # a name may be such a text
        return "null-stand-in", "is a text in place of null"
    if column.allowed is not None and text not in column.allowed:
        return "allowed-value", "is not one of the allowed values"
    return _KINDS[column.kind](column, text)


def _type(column: Column, value: object) -> Fault:
    if column.kind == "decimal":
        return None if isinstance(value, bytes) else ("type", "is not a number, as the column requires")
    return None if isinstance(value, str) else ("type", f"is no string, and the column is of type {column.kind}")


@functools.lru_cache(maxsize=65_536)  # several rules read the same cells
def number(value: object) -> Decimal | None:
    """The exact number in a cell; None for null and all other cells, and above EXPONENT_MAX."""
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) > NUMBER_CHARS_MAX or not _NUMBER.fullmatch(text):
        return None
    found = Decimal(text)
    return found if abs(found.adjusted()) <= EXPONENT_MAX else None


def moment(value: object) -> str | None:
    """The moment in a cell as text, which sorts by time."""
    return value if isinstance(value, str) and _MOMENT.fullmatch(value) else None


def _decimal(column: Column, text: str) -> Fault:
    if not _NUMBER.fullmatch(text):
        return "decimal-format", "is no plain number: digits, one point, a minus sign, an exponent as in 1E-6"
    found = number(text)
    if found is None:
        return "decimal-format", f"is longer than {NUMBER_CHARS_MAX} characters or 10^{EXPONENT_MAX}"
    if column.least is not None and found < column.least:
        return "number-negative", "is negative, and may not be"
    return None


def _moment(_: Column, text: str) -> Fault:
    if not _MOMENT.fullmatch(text):
        return "moment-format", "is not YYYY-MM-DDTHH:mm:ssZ, in UTC"
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError as error:
        return "moment-format", f"names no moment: {error}"
    return None


def _currency(_: Column, text: str) -> Fault:
    if not _CURRENCY.fullmatch(text):
        return "currency-code", "is not three capital letters"
    return None if text in CURRENCIES else ("currency-code", "is no currency of ISO 4217")


def _unit(_: Column, text: str) -> Fault:
    if not _UNIT.fullmatch(text) or _WRONG_UNIT.search(text):
        return "unit-format", "is not in the specification's unit format, as in Tokens, 1000 Tokens, GB-Hours, GB/Day"
    return None


def _pairs(column: Column, text: str) -> Fault:
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return "pairs-format", "is no JSON"
    if not isinstance(pairs, _Pairs):
        return "pairs-format", "is no JSON object"
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        return "pairs-format", "has a key twice"
    for name, value in pairs:
        if isinstance(value, list):
            return "pairs-format", f"has an object or an array as the value of {name!r}"
        if column.name == "SkuPriceDetails" and (fault := _property(name, value)):
            return fault
    return None


class _Pairs(list[tuple[str, object]]):
    """A JSON object as a list of (key, value) pairs, so that repeated keys are found."""


def _property(name: str, value: object) -> Fault:
    if name.startswith("x_"):
        return None
    if name not in PRICE_PROPERTIES:
        return "price-property", f"has the property {name!r}: neither of FOCUS nor beginning with x_"
    if (name in _NUMERIC_PROPERTIES) == (isinstance(value, int | float) and not isinstance(value, bool)):
        return None
    return "price-property", f"has {name!r} with a value of the wrong type"


def _string(_: Column, text: str) -> Fault:
    return None if text.isascii() else ("string-ascii", "has characters outside ASCII, which FOCUS's validator refuses")


_KINDS: dict[str, Callable[[Column, str], Fault]] = {
    "string": _string,
    "decimal": _decimal,
    "moment": _moment,
    "currency": _currency,
    "unit": _unit,
    "pairs": _pairs,
}
# The rules of severity "should"; all other rules of this module are "must".
SHOULD = frozenset(("unit-format", "string-ascii"))
