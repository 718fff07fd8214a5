"""Finds and removes the fields of a JSON body that its type does not have.

`parsing.BodyDecoder` decodes a body strictly first; only a body with an unknown field is walked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import inspect

from gateway.errors import UnknownParameter

# A request with more ignored fields is refused.
IGNORED_MAX = 64
# Longest part of a path that a refusal or the log shows, in characters.
PATH_CHARS_MAX = 256
# Limits of the response header `laneway-ignored`: names, and characters of each name.
NAMED_MAX = 16
NAME_CHARS_MAX = 64

# Our field of the same meaning, by the name in other APIs.
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
    """Decides on the unknown fields of one request.

    A field whose value is null, "", [] or {} is dropped: SDKs add such fields to messages that they send back. Another
    field is refused; with `ignore` it is dropped, and its path in the body is added to `ignored`."""

    def __init__(self, *, ignore: bool = False) -> None:
        self.ignore = ignore
        self.ignored: list[str] = []

    def ignore_field(self, path: str) -> None:
        """Note that the field at `path`, whose value is not empty, is dropped. Raises UnknownParameter to refuse it."""
        if not self.ignore or len(self.ignored) >= IGNORED_MAX:
            raise unknown_parameter(path)
        self.ignored.append(_cut(path))

    def name_hint(self, path: str) -> None:
        """Note that the field at `path`, which the type has as a hint, changes nothing."""
        if len(self.ignored) < IGNORED_MAX:
            self.ignored.append(_cut(path))


def is_empty(value: Any) -> bool:
    return value is None or (not value and type(value) in (str, list, dict))


def unknown_parameter(path: str) -> UnknownParameter:
    """The refusal of an unknown field. It names our field of the same meaning if COUNTERPARTS has one."""
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
    """The structs that a JSON value of a type may be: an object (`objects`), or an array's items (`items`)."""

    def __init__(self) -> None:
        self.tag_field: str | None = None
        self.objects: dict[Any, dict[str, StructShape | None]] = {}  # by tag, or None without a tag: the fields
        self.items: StructShape | None = None

    def remove_unknown(self, value: Any, unknown: UnknownFields, path: str = "") -> None:
        """Remove from `value`, decoded JSON, the fields that these structs do not have. Raises UnknownParameter."""
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
        """None: no struct has the tag of `value`; the typed decoder refuses it afterwards."""
        tag = None if self.tag_field is None else value.get(self.tag_field)
        return self.objects.get(tag) if tag is None or isinstance(tag, str) else None


def shape_of(kind: type[msgspec.Struct]) -> StructShape:
    """The structs of a request type."""
    shape = _shape(inspect.type_info(kind))
    assert shape is not None
    return shape


def _shape(kind: inspect.Type) -> StructShape | None:
    """None: the type contains no struct."""
    shape = StructShape()
    _collect(kind, shape)
    return shape if shape.objects or shape.items is not None else None


def _collect(kind: inspect.Type, shape: StructShape) -> None:
    match kind:
        case inspect.Metadata():
            _collect(kind.type, shape)
        case inspect.UnionType():
            for member in kind.types:
                _collect(member, shape)
        case inspect.ListType():
            shape.items = _shape(kind.item_type)
        case inspect.StructType():
            shape.tag_field = kind.tag_field
            shape.objects[kind.tag] = {field.encode_name: _shape(field.type) for field in kind.fields}
