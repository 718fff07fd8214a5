"""The allowed values of a field that is one of several words, for the messages of refusals: msgspec's message names no
value."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect

# As msgspec's messages begin.
WRONG_WORD = "Invalid enum value"


def name_allowed_words(kind: Any, path: str) -> str:
    """The end of a refusal, "; it must be a, b or c", if only these words are allowed at `path` of `kind`; "" for any
    other field, and for a path that does not exist. `path` as in msgspec's messages: "models[0].dtype"."""
    found = [inspect.type_info(kind)]
    for name in re.findall(r"\[[^\]]*\]|[^.\[\]]+", path):
        found = [inner for info in found for inner in _inner(info, name)]
    values = [str(value) for info in found for one in _variants(info) for value in _words(one)]
    if not values:
        return ""
    *others, last = values
    return f"; it must be {', '.join(others)} or {last}" if others else f"; it must be {last}"


def _variants(info: inspect.Type) -> list[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        return _variants(info.type)
    if isinstance(info, inspect.UnionType):
        return [one for each in info.types for one in _variants(each)]
    return [info]


def _inner(info: inspect.Type, name: str) -> list[inspect.Type]:
    """The types at the field `name`; of a list or an object with any names, the types of its values."""
    found: list[inspect.Type] = []
    for one in _variants(info):
        if isinstance(one, inspect.StructType):
            found += [field.type for field in one.fields if field.encode_name == name]
        elif isinstance(one, inspect.ListType | inspect.VarTupleType):
            found.append(one.item_type)
        elif isinstance(one, inspect.DictType):
            found.append(one.value_type)
    return found


def _words(info: inspect.Type) -> tuple[Any, ...]:
    return tuple(info.values) if isinstance(info, inspect.LiteralType) else ()


def explain_wrong_word(error: msgspec.ValidationError, kind: Any) -> str:
    """msgspec's message of an error while it read `kind`; that of a wrong word with the allowed ones after it."""
    message = str(error)
    path = re.search(r" - at `\$\.(.*)`$", message)
    if not message.startswith(WRONG_WORD) or path is None:
        return message
    return message + name_allowed_words(kind, path[1])
