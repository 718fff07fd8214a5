"""OpenAI's limits of a strict schema: what `strict: true` promises is checked before anything is held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

PROPERTIES_MAX = 5000
LEVELS_MAX = 10
NAME_CHARS_MAX = 120_000  # of all names of properties and definitions, and values of enum and const
ENUM_VALUES_MAX = 1000

_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS = ("$defs", "definitions", "properties")


class NotStrict(ValueError):
    """The message names the place by a JSON pointer."""


def check_strict(schema: dict[str, Any]) -> None:
    """Raises NotStrict."""
    if schema.get("type") != "object" or "anyOf" in schema:
        raise NotStrict("a strict schema is an object at its root")
    properties = chars = values = 0
    for at, node, level in _nodes(schema, "", 0):
        if level > LEVELS_MAX:
            raise NotStrict(f"{at}: a strict schema has at most {LEVELS_MAX} levels of objects")
        enum = node.get("enum")
        if isinstance(enum, list):
            values += len(enum)
            chars += sum([len(value) for value in enum if isinstance(value, str)])
        if isinstance(node.get("const"), str):
            chars += len(node["const"])
        for name in _NAMED_SCHEMAS:
            if isinstance(node.get(name), dict):
                chars += sum(map(len, node[name]))
        if isinstance(node.get("properties"), dict):
            properties += len(node["properties"])
        _check_object(node, at)
    if properties > PROPERTIES_MAX:
        raise NotStrict(f"a strict schema has at most {PROPERTIES_MAX} properties, here {properties}")
    if chars > NAME_CHARS_MAX:
        raise NotStrict(f"a strict schema has at most {NAME_CHARS_MAX} characters of names and values, here {chars}")
    if values > ENUM_VALUES_MAX:
        raise NotStrict(f"a strict schema has at most {ENUM_VALUES_MAX} values of 'enum', here {values}")


def _check_object(node: dict[str, Any], at: str) -> None:
    kind = node.get("type")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind) and "properties" not in node:
        return
    if node.get("additionalProperties") is not False:
        raise NotStrict(f'{at or "/"}: a strict schema needs "additionalProperties": false in every object')
    required = node.get("required")
    required = required if isinstance(required, list) else []
    absent = [name for name in _named(node, "properties") if name not in required]
    if absent:
        raise NotStrict(f"{at or '/'}: a strict schema requires every property; {absent[0]!r} is not in 'required'")


def _named(node: dict[str, Any], name: str) -> dict[str, Any]:
    found = node.get(name)
    return found if isinstance(found, dict) else {}


def _nodes(node: object, at: str, level: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(JSON pointer, schema, levels of objects and lists above it), without recursion of the interpreter."""
    stack: list[tuple[object, str, int]] = [(node, at, level)]
    while stack:
        node, at, level = stack.pop()
        if not isinstance(node, dict):
            continue
        yield at, node, level
        if level > LEVELS_MAX:
            continue
        for name in _NAMED_SCHEMAS:
            deeper = level + (name == "properties")
            stack += [(child, f"{at}/{name}/{key}", deeper) for key, child in _named(node, name).items()]
        stack.append((node.get("items"), f"{at}/items", level + 1))
        for name in _SCHEMAS:
            found = node.get(name)
            stack += [
                (child, f"{at}/{name}/{index}", level)
                for index, child in enumerate(found if isinstance(found, list) else ())
            ]
