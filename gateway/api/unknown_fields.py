"""Finds and removes the fields of a JSON body that its type does not have.

A body is decoded strictly first; only a body with an unknown field is walked here. It must never know what a field
means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import inspect

from gateway.errors import UnknownParameter

# Fields that one request may have ignored. A request with more is refused.
IGNORED_MAX = 64
# Of a path: characters that a refusal or the log shows.
PATH_CHARS_MAX = 256
# Of the header `laneway-ignored`: names, and characters of each.
NAMED_MAX = 16
NAME_CHARS_MAX = 64

# By foreign name: the field that has its meaning here.
COUNTERPARTS = {
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_tokens_to_sample": "max_tokens",
    "stop_words": "stop",
    "stop_strings": "stop",
    "random_seed": "seed",
}


class UnknownFields:
    """What one request's unknown fields become. A field that is null, "", [] or {} asks for nothing and is dropped:
    SDKs add such fields to what they send back. Any other is refused, or with `ignore` dropped and named in `ignored`,
    by its path in the body."""

    def __init__(self, *, ignore: bool = False) -> None:
        self.ignore = ignore
        self.ignored: list[str] = []

    def ignore_field(self, path: str) -> None:
        """Account for the unknown field at `path`, whose value is not empty. Raises UnknownParameter."""
        if not self.ignore or len(self.ignored) >= IGNORED_MAX:
            raise unknown_parameter(path)
        self.ignored.append(_cut(path))


def is_empty(value: Any) -> bool:
    return value is None or (not value and type(value) in (str, list, dict))


def unknown_parameter(path: str) -> UnknownParameter:
    """Names the field that has the same meaning here, where there is such a field."""
    path = _cut(path)
    instead = COUNTERPARTS.get(path)
    advice = f"use {instead!r}" if instead else "this endpoint has no such field; leave it out"
    return UnknownParameter(f"Unknown parameter: {path!r}: {advice}.", param=path)


def _cut(path: str) -> str:
    return path if len(path) <= PATH_CHARS_MAX else f"{path[:PATH_CHARS_MAX]}…"


def header_value(ignored: Sequence[str]) -> bytes:
    """The value of the response header `laneway-ignored`: the paths, percent-encoded beyond visible ASCII. At most
    NAMED_MAX names; the number of further names follows as `+3`."""
    names = [quote(path[:NAME_CHARS_MAX], safe="[]._-$") for path in ignored[:NAMED_MAX]]
    if len(ignored) > NAMED_MAX:
        names.append(f"+{len(ignored) - NAMED_MAX}")
    return ", ".join(names).encode()


class StructShape:
    """The structs of a type: what a JSON object or the items of a JSON array may be there."""

    def __init__(self) -> None:
        self.tag_field: str | None = None
        self.objects: dict[Any, dict[str, StructShape | None]] = {}  # fields by tag; by None without a tag
        self.items: StructShape | None = None

    def remove_unknown(self, value: Any, unknown: UnknownFields, path: str = "") -> None:
        """Remove from `value`, decoded JSON, what these structs do not have. Raises UnknownParameter."""
        if isinstance(value, dict):
            fields = self._fields(value)
            if fields is None:
                return
            for name in [name for name in value if name not in fields and name != self.tag_field]:
                if not is_empty(value.pop(name)):
                    unknown.ignore_field(f"{path}.{name}" if path else name)
            for name, inner in fields.items():
                if inner is not None and name in value:
                    inner.remove_unknown(value[name], unknown, f"{path}.{name}" if path else name)
        elif isinstance(value, list) and self.items is not None:
            for index, item in enumerate(value):
                self.items.remove_unknown(item, unknown, f"{path}[{index}]")

    def _fields(self, value: dict[str, Any]) -> dict[str, StructShape | None] | None:
        """None: no struct has this tag; the typed decoder will say so."""
        tag = None if self.tag_field is None else value.get(self.tag_field)
        return self.objects.get(tag) if tag is None or isinstance(tag, str) else None


def shape_of(kind: type[msgspec.Struct]) -> StructShape:
    """The structs of a request type, found once."""
    found = _shape(inspect.type_info(kind))
    assert found is not None
    return found


def _shape(kind: inspect.Type) -> StructShape | None:
    """None: no struct lies in this type."""
    shape = StructShape()
    _collect(kind, shape)
    return shape if shape.objects or shape.items is not None else None


def _collect(kind: inspect.Type, shape: StructShape) -> None:
    match kind:
        case inspect.Metadata():
            _collect(kind.type, shape)
        case inspect.UnionType():
            for one in kind.types:
                _collect(one, shape)
        case inspect.ListType():
            shape.items = _shape(kind.item_type)
        case inspect.StructType():
            shape.tag_field = kind.tag_field
            shape.objects[kind.tag] = {field.encode_name: _shape(field.type) for field in kind.fields}
