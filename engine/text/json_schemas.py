"""JSON Schemas as grammar text: the checks that llguidance does not make, and the options that a schema may not set.

llguidance ignores unknown keywords, reads options from the key "x-guidance", and bounds neither `multipleOf` nor the
count of properties in the way that a validator counts them. A schema passes through `checked_schema` first, so that
an answer of the grammar is an instance of the schema, or the schema is refused with a JSON pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, TypeGuard

# Levels of nested schemas; llguidance reads 128 levels of JSON, and a level of schema may take two of them.
SCHEMA_DEPTH_MAX = 48
SCHEMA_NODES_MAX = 20_000
# The grammar of a multiple has a state per remainder: 10,000 compile in about 100 ms.
MULTIPLE_STATES_MAX = 10_000
# Intersections of regular expressions take exponential time, which llguidance's fuel does not count.
PATTERNS_IN_ALL_OF_MAX = 3
WHITESPACE_MAX = 16
REFUSAL_CHARS_MAX = 600
INTEGER_MAX = 2**63 - 1
# A small model often adds digits to a number until the end of its tokens (1.000000000…). So a number between two bounds
# has 10 decimals at most, the most that llguidance can count. Numbers in a narrower range than DECIMALS_RANGE_MIN, or
# with a bound beyond DECIMALS_BOUND_MAX, are left as they are. An integer without a bound has 64 bits:
# INTEGER_BOUND is the largest double below 2**63, since llguidance reads bounds as doubles.
DECIMALS_STEP = 1e-10
DECIMALS_RANGE_MIN, DECIMALS_BOUND_MAX = 1e-3, 1e9
INTEGER_BOUND = 2**63 - 1024

# Keywords of any draft that llguidance 1.9 does not implement. With an older "$schema" it would ignore newer keywords.
UNSUPPORTED = frozenset(
    {
        "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "dependencies",
        "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not", "propertyNames",
        "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    }
)  # fmt: skip
COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
# Every other keyword is left out: it constrains nothing, and a reference into it is refused.
SUPPORTED = frozenset(
    {
        "$anchor", "$defs", "$id", "$ref", "$schema", "additionalItems", "additionalProperties", "allOf", "anyOf",
        "const", "definitions", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems",
        "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
        "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "required", "type",
    }
)  # fmt: skip
_SCHEMA = ("additionalItems", "additionalProperties", "items")
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS = ("$defs", "definitions", "patternProperties", "properties")
_OPTIONS = "x-guidance"
_LOWER_BOUNDS = ("exclusiveMinimum", "minimum")
_UPPER_BOUNDS = ("exclusiveMaximum", "maximum")
_BOUNDS = (*_LOWER_BOUNDS, *_UPPER_BOUNDS)
_CHOICES = ("$ref", "anyOf", "oneOf")
_ANNOTATIONS = frozenset({"$anchor", "$defs", "$id", "$schema", "definitions"})  # constrain no value

# Narrower than the formats of llguidance, which allow 30 February, a leap second at any hour, names over 253 characters
# and durations with any number of digits. Every validator accepts every text that these patterns match.
_DATE = (
    r"(?:[1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))|(?:[1-9]\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_COUNT = r"\d{1,9}"
_DAYS = rf"(?:{_COUNT}D|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?)"
_HOURS = rf"T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_LABEL = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|{_COUNT}W)$",
    "hostname": f"^{_HOST}$",
    "email": rf"^[A-Za-z0-9]{{1,20}}(?:[._+-][A-Za-z0-9]{{1,20}}){{0,2}}@{_HOST}$",
}

# llguidance reads \s as Unicode's white space, other validators as ECMA-262's or Python's. Members of a class: the
# characters that are white space for all of them, and for any of them.
_SPACE_OF_ALL = r"\t\n\x0B\x0C\r\x20\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"
_SPACE_OF_ANY = _SPACE_OF_ALL + r"\x1C-\x1F\u0085\uFEFF"


class GrammarRefused(ValueError):
    """A grammar that cannot be served: the caller's mistake or a limit. The message is fit to be shown to the
    caller."""

    def __init__(self, message: str) -> None:
        if len(message) > REFUSAL_CHARS_MAX:
            half = REFUSAL_CHARS_MAX // 2 - 2
            message = f"{message[:half]} … {message[-half:]}"
        super().__init__(message)


def json_schema_grammar(schema: object, *, whitespace_max: int = 1) -> str:
    """The grammar text of a JSON Schema, as `engine.text.grammars.check_grammar` takes it. `whitespace_max`: whitespace
    characters between two JSON tokens, 0 to WHITESPACE_MAX. Raises GrammarRefused with a JSON pointer."""
    return json.dumps({"grammars": [{"json_schema": guided_schema(schema, whitespace_max=whitespace_max)}]})


def json_object_grammar(*, whitespace_max: int = 1) -> str:
    """The grammar text of any JSON object."""
    return json_schema_grammar({"type": "object"}, whitespace_max=whitespace_max)


def guided_schema(schema: object, *, whitespace_max: int = 1) -> dict[str, Any]:
    """The checked schema with the options for llguidance: a value for "json_schema" of a grammar, and, as JSON, the
    operand of `%json` in Lark. Raises GrammarRefused."""
    checked = checked_schema(schema)
    if not 0 <= whitespace_max <= WHITESPACE_MAX:
        raise ValueError(f"whitespace_max is {whitespace_max}; 0 to {WHITESPACE_MAX} is needed")
    if whitespace_max:
        options: dict[str, Any] = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{whitespace_max}}}"}
    else:
        options = {"whitespace_flexible": False}
    try:
        json.dumps(checked, allow_nan=False)
    except (RecursionError, TypeError, ValueError) as error:  # an integer of over 4,300 digits, a hundred lists
        raise GrammarRefused("the schema has a number or a value that is too large or too deep") from error
    return {**checked, _OPTIONS: options}


def checked_schema(schema: object) -> dict[str, Any]:
    """A copy of the schema without keywords that constrain nothing. Raises GrammarRefused."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        what = "false: no value is an instance of it" if schema is False else "neither an object nor true"
        raise GrammarRefused(f"the schema is {what}")
    found = _Checked().copy(schema, "", 0)
    assert isinstance(found, dict)
    _bound_numbers(found)
    return found


def _bound_numbers(schema: dict[str, Any]) -> None:
    """Bound the digits of numbers: see DECIMALS_STEP and INTEGER_BOUND.

    llguidance cannot combine the step with another step, nor with the type integer, so a schema that combines
    subschemas gets no step. A schema that names a number beyond INTEGER_BOUND gets no further bounds of integers."""
    nodes = list(_nodes(schema))
    combines = any(_combines(node) for node in nodes)
    is_wide = any(abs(number) > INTEGER_BOUND for node in nodes for number in _named_numbers(node))
    for node in nodes:
        lower = [node[name] for name in _LOWER_BOUNDS if _is_number(node.get(name))]
        upper = [node[name] for name in _UPPER_BOUNDS if _is_number(node.get(name))]
        types = node.get("type")
        types = types if isinstance(types, list) else [types]
        if "integer" in types and "number" not in types:
            if not is_wide and not lower:
                node["minimum"] = -INTEGER_BOUND
            if not is_wide and not upper:
                node["maximum"] = INTEGER_BOUND
        elif "number" in types and "integer" not in types and lower and upper and not combines:
            is_plain = "multipleOf" not in node and max(map(abs, lower + upper)) <= DECIMALS_BOUND_MAX
            if is_plain and min(upper) - max(lower) >= DECIMALS_RANGE_MIN:
                node["multipleOf"] = DECIMALS_STEP


def _combines(node: dict[str, Any]) -> bool:
    """Whether one value may have to satisfy two subschemas of a node, or the node and a subschema."""
    if "patternProperties" in node and len(node["patternProperties"]) + len(node.get("properties", ())) > 1:
        return True
    return "allOf" in node or (not node.keys().isdisjoint(_CHOICES) and len(node.keys() - _ANNOTATIONS) > 1)


def _named_numbers(node: dict[str, Any]) -> Iterator[int | float]:
    """The node's bounds and constants that are numbers."""
    choices = node.get("enum")
    constants = [node.get("const"), *(choices if isinstance(choices, list) else ())]
    yield from (value for value in (*constants, *map(node.get, _BOUNDS)) if _is_number(value))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each subschema that is an object, the schema itself included."""
    stack: list[object] = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack += [child for _, child in _children(node, "")]


def pointers(schema: object, keyword: str) -> Iterator[tuple[str, Any]]:
    """(JSON pointer, value) of each use of a keyword in a checked schema."""
    stack: list[tuple[str, object]] = [("", schema)]
    while stack:
        at, node = stack.pop()
        if not isinstance(node, dict):
            continue
        if keyword in node:
            yield f"{at}/{keyword}", node[keyword]
        stack += [(below, child) for below, child in _children(node, at)]


def _children(node: dict[str, Any], at: str) -> Iterator[tuple[str, object]]:
    for name in _SCHEMA:
        value = node.get(name)
        if isinstance(value, list):
            yield from ((f"{at}/{name}/{index}", child) for index, child in enumerate(value))
        elif name in node:
            yield f"{at}/{name}", value
    for name in _SCHEMAS:
        if isinstance(node.get(name), list):
            yield from ((f"{at}/{name}/{index}", child) for index, child in enumerate(node[name]))
    for name in _NAMED_SCHEMAS:
        if isinstance(node.get(name), dict):
            yield from ((f"{at}/{name}/{_escaped(key)}", child) for key, child in node[name].items())


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class _Checked:
    """One walk over a schema."""

    def __init__(self) -> None:
        self._nodes = 0

    def copy(self, node: object, at: str, depth: int) -> object:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise GrammarRefused(f"schema {at or '/'}: {type(node).__name__} is no schema")
        self._nodes += 1
        if self._nodes > SCHEMA_NODES_MAX:
            raise GrammarRefused(f"the schema has more than {SCHEMA_NODES_MAX} subschemas")
        if depth > SCHEMA_DEPTH_MAX:
            raise GrammarRefused(f"schema {at}: more than {SCHEMA_DEPTH_MAX} levels of schemas")
        for name, value in node.items():
            if name in UNSUPPORTED and (name, value) != ("uniqueItems", False):
                raise GrammarRefused(f"schema {at}/{name}: the keyword {name!r} is not supported")
        found = {name: value for name, value in node.items() if name in SUPPORTED}
        format_ = found.get("format")
        if isinstance(format_, str) and (pattern := FORMAT_PATTERNS.get(format_)) is not None:
            del found["format"]
            narrowed = found.get("allOf")
            if "pattern" not in found:
                found["pattern"] = pattern
            elif narrowed is None or isinstance(narrowed, list):
                found["allOf"] = [*(narrowed or ()), {"pattern": pattern}]
        if isinstance(pattern := found.get("pattern"), str):
            found["pattern"] = _narrowed_spaces(pattern)
        for name in COUNTS:
            if isinstance(count := found.get(name), float) and count.is_integer():
                found[name] = int(count)  # llguidance accepts no 2.0
        _check_values(found, at)
        _check_counts(found, at)
        for name in _SCHEMA:
            if isinstance(found.get(name), list):
                found[name] = [self.copy(c, f"{at}/{name}/{i}", depth + 1) for i, c in enumerate(found[name])]
            elif name in found:
                found[name] = self.copy(found[name], f"{at}/{name}", depth + 1)
        for name in _SCHEMAS:
            if name in found:
                if not isinstance(found[name], list):
                    raise GrammarRefused(f"schema {at}/{name}: a list of schemas is needed")
                found[name] = [self.copy(c, f"{at}/{name}/{i}", depth + 1) for i, c in enumerate(found[name])]
        for name in _NAMED_SCHEMAS:
            if name in found:
                if not isinstance(found[name], dict):
                    raise GrammarRefused(f"schema {at}/{name}: an object of schemas is needed")
                found[name] = {k: self.copy(c, f"{at}/{name}/{_escaped(k)}", depth + 1) for k, c in found[name].items()}
        return found


def _narrowed_spaces(pattern: str) -> str:
    r"""The regular expression with classes for \s and \S, so that every validator accepts what it matches."""
    for any_character in (r"[\s\S]", r"[\S\s]"):
        pattern = pattern.replace(any_character, "(?s:.)")
    parts: list[str] = []
    classes: list[bool] = []  # of each class that is open: whether it is negated
    at = 0
    while at < len(pattern):
        two = pattern[at : at + 2]
        negated = sum(classes) % 2 == 1
        if two == "\\s":
            members = _SPACE_OF_ANY if negated else _SPACE_OF_ALL
            parts.append(members if classes else f"[{members}]")
        elif two == "\\S":
            parts.append(f"[^{_SPACE_OF_ALL if negated else _SPACE_OF_ANY}]")
        elif two[0] == "\\" or two == "[^":
            parts.append(two)
        else:
            parts.append(two[0])
        if two[0] == "[":
            classes.append(two == "[^")
            at += len(two) - 1 if two == "[^" else 0
            if pattern[at + 1 : at + 2] == "]":  # the first member
                parts.append("]")
                at += 1
        elif two[0] == "]" and classes:
            classes.pop()
        elif two[0] == "\\":
            at += 1
        at += 1
    return "".join(parts)


def _check_values(node: dict[str, Any], at: str) -> None:
    """Numbers that JSON or llguidance's 64 bits would change."""
    for name in ("const", "enum"):
        if name in node:
            _check_constant(node[name], f"{at}/{name}", 0)
    step = node.get("multipleOf")
    if isinstance(step, int | float) and not isinstance(step, bool):
        # An integer may be too large for a float, and too large to be written.
        if (isinstance(step, float) and not math.isfinite(step)) or step <= 0:
            raise GrammarRefused(f"schema {at}/multipleOf: a finite number above 0 is needed")
        text = "" if step > MULTIPLE_STATES_MAX else repr(step)
        digits = len(text.partition(".")[2]) if "e" not in text else 0
        if not text or "e" in text or step * 10**digits > MULTIPLE_STATES_MAX:
            raise GrammarRefused(
                f"schema {at}/multipleOf: {text or 'the number'} is not supported; at most {MULTIPLE_STATES_MAX} in its"
                " last digit"
            )
    whole = node.get("allOf")
    parts = whole if isinstance(whole, list) else ()
    patterns = [1 for child in parts if isinstance(child, dict) and {"pattern", "format"} & {*child}]
    if len(patterns) > PATTERNS_IN_ALL_OF_MAX:
        raise GrammarRefused(
            f"schema {at}/allOf: more than {PATTERNS_IN_ALL_OF_MAX} patterns or formats of one string are not supported"
        )


def _check_constant(value: object, at: str, depth: int) -> None:
    if depth > SCHEMA_DEPTH_MAX:
        raise GrammarRefused(f"schema {at}: more than {SCHEMA_DEPTH_MAX} levels")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INTEGER_MAX:
        raise GrammarRefused(f"schema {at}: an integer of more than 64 bits is not supported")
    if isinstance(value, float) and not math.isfinite(value):
        raise GrammarRefused(f"schema {at}: a number that JSON does not have")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_constant(item, f"{at}/{index}", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_constant(item, f"{at}/{_escaped(key)}", depth + 1)


def _check_counts(node: dict[str, Any], at: str) -> None:
    """A grammar cannot forbid that a key beyond `properties` is repeated, and a repeated key counts once."""
    least = node.get("minProperties")
    if isinstance(least, int) and not isinstance(least, bool):
        required = node.get("required")
        listed = len(set(required)) if isinstance(required, list) and all(isinstance(n, str) for n in required) else 0
        if least - listed > 1:
            raise GrammarRefused(
                f"schema {at}/minProperties: {least} is not supported; at most one more than the {listed} required keys"
            )
