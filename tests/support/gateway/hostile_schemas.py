"""Hostile JSON Schemas and regular expressions of a seed, by family: requests of a tenant that try to crash, block or
mislead a compiler of grammars.

A schema is JSON text, since some of them are no JSON that Python would write (half a surrogate pair, 3,000 levels).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from engine.text.json_schemas import SUPPORTED, UNSUPPORTED
from support.engine.schemas import SchemaMaker

# Characters of a schema, so that a body stays below `gateway.body_bytes_max`.
SCHEMA_CHARS_MAX = 1_500_000
STRANGE = [
    "", '"', "\\", "\u0000", "\u001f", "\u007f", "\u2028", "\ud800", "\udc00\ud800", "🙂", "e\u0301", "\u202eabc",
    "__proto__", "a/b~c", "~1~0", "%22", "$ref", "x-guidance", "a" * 3000, "\ufeff", "\uffff", "{{", "%json", "<|end|>",
    "</tool_call>", "'", "\r\n", "ﬁ", "ａ", "\u200b", "K", "ß",
]  # fmt: skip
PATTERNS = [
    "(a+)+$", "(a|a)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a?){60}a{60}", ".{1000000}", "(.{999}){999}", "a{1,99999}",
    "(?=a)b", "(a)\\1", "[", "(", "*", "(?P<n>a)(?P=n)", "\\p{L}+", "\\p{Nonsense}", "[^\\x00-\\U0010ffff]", "\\x",
    "a^b",
    "$a", "^$", "", "(?i)straße", "(?s).*", "(?-u)\\xff", "((((((((((a*)*)*)*)*)*)*)*)*)*)*", "(x+x+)+y",
    "[a-z]{50000}",
    "(" * 400 + "a" + ")" * 400, "(a|b|c|d|e|f|g|h){500}", "[\\s\\S]{0,100000}", "a)|(b", "\\Z", "\\b\\B", "(?x) a # b",
    ".*.*.*.*.*.*.*.*x.{30}", "(.*a){25}", "[\\d--[0-4]]", "[[:alpha:]]+", "\\u0041", "\\cA", "a{,5}", "a{5,1}", "\\/",
    "[^]", "(?:(?:a{1,100}){1,100}){1,100}", "(a|ab|abc|abcd)*(bcd|cd|d)*e", "\ud800", "🙂{3}", "[🙂-🙃]+", "(?!)",
]  # fmt: skip
# Of users: what mutations begin with.
REAL: list[Any] = [
    {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["location"],
    },
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Invoice",
        "type": "object",
        "properties": {
            "number": {"type": "string", "pattern": "^INV-\\d{4}$"},
            "date": {"type": "string", "format": "date"},
            "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/line"}},
            "total": {"type": "number", "minimum": 0, "multipleOf": 0.01},
        },
        "required": ["number", "lines", "total"],
        "additionalProperties": False,
        "$defs": {
            "line": {
                "type": "object",
                "properties": {"text": {"type": "string", "maxLength": 80}, "count": {"type": "integer", "minimum": 1}},
                "required": ["text", "count"],
                "additionalProperties": False,
            }
        },
    },
    {
        "title": "Tree",
        "$ref": "#/definitions/node",
        "definitions": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "children": {"type": "array", "items": {"$ref": "#/definitions/node"}, "default": []},
                },
                "required": ["value"],
            }
        },
    },
    {
        "type": "object",
        "properties": {
            "type": {"const": "Feature"},
            "geometry": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {
                            "type": {"const": "Point"},
                            "coordinates": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
                        },
                        "required": ["type", "coordinates"],
                    },
                    {"type": "null"},
                ]
            },
            "properties": {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number"]}},
        },
        "required": ["type", "geometry", "properties"],
    },
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^(?:@[a-z0-9-*~][a-z0-9-*._~]*/)?[a-z0-9-~][a-z0-9-._~]*$"},
            "version": {"type": "string"},
            "private": {"type": "boolean"},
            "dependencies": {"type": "object", "additionalProperties": {"type": "string"}},
            "files": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            "author": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]},
        },
        "patternProperties": {"^_": {}},
    },
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "format": "uuid"},
                "when": {"type": "string", "format": "date-time"},
                "score": {"type": "integer", "minimum": 0, "maximum": 100},
                "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
            },
            "required": ["id", "when", "score", "tags"],
            "additionalProperties": False,
        },
        "maxItems": 3,
    },
]
LEAVES: list[Any] = [
    True, False, {}, {"type": "string"}, {"type": "integer"}, {"enum": ["a", 1, None]}, {"const": {"k": [1]}},
    {"type": "string", "format": "email"}, {"type": "string", "pattern": "^[a-z]{1,3}$"}, {"type": "null"},
    {"type": ["string", "null"]}, {"$ref": "#"}, {"type": "number", "multipleOf": 0.1}, {"type": "boolean"},
]  # fmt: skip
# Placeholders of numbers that Python does not write.
DIGITS, INFINITE = "<digits>", "<infinite>"
NUMBERS: list[Any] = [
    0, 1, 2, 3, -1, 0.5, 1.0, 10**6, 10**9, 2**31, 2**63 - 1, 2**63, 10**40, 10**400, 1e-300, 1e308, -1e308, -(2**63),
    1e9,
    None, "3", True, [], 9007199254740993, DIGITS, INFINITE,
]  # fmt: skip


def write(schema: Any) -> str:
    return json.dumps(schema).replace(f'"{DIGITS}"', "1" + "0" * 5000).replace(f'"{INFINITE}"', "1e999")


def nested(choose: random.Random) -> str:
    """A few to thousands of levels."""
    depth = choose.choice([3, 10, 24, 40, 47, 48, 49, 60, 127, 200, 900, 3000])
    head, tail = choose.choice([
        ('{"type":"object","properties":{"a":', '},"required":["a"],"additionalProperties":false}'),
        ('{"type":"array","items":', ',"minItems":1,"maxItems":1}'),
        ('{"anyOf":[', "]}"), ('{"anyOf":[{"type":"null"},', "]}"), ('{"allOf":[', ',{"maxLength":9}]}'),
        ('{"oneOf":[{"type":"null"},', "]}"), ('{"prefixItems":[', "]}"), ('{"additionalProperties":', "}"),
        ('{"patternProperties":{"^a":', "}}"), ('{"$defs":{"a":', '},"$ref":"#/$defs/a"}'), ('{"not":', "}"),
    ])  # fmt: skip
    leaf = choose.choice(
        ['{"type":"string","maxLength":3}', "true", '{"enum":[1]}', '{"const":' + "[" * depth + "]" * depth + "}"]
    )
    return head * depth + leaf + tail * depth


def enums(choose: random.Random) -> str:
    count = choose.choice([1, 50, 999, 1001, 5000, 30_000])
    kind = choose.randrange(5)
    if kind == 0:
        values: list[Any] = [f"{choose.getrandbits(40):x}" for _ in range(count)]
    elif kind == 1:
        values = [choose.randrange(-(10 ** choose.randrange(1, 25)), 10**20) for _ in range(count)]
    elif kind == 2:
        values = [choose.choice(STRANGE) + str(index) for index in range(min(count, 2000))]
    elif kind == 3:
        values = [{"a": [index, {"b": "é" * choose.randrange(5)}]} for index in range(min(count, 5000))]
    else:
        values = ["x" * choose.randrange(1, 200_000), 1.5, None, [], {}, "x", "x"]
    schema: Any = {"enum": values}
    if choose.random() < 0.5:
        schema = {"type": "object", "properties": {"k": schema}, "required": ["k"], "additionalProperties": False}
    return write(schema)


def bounds(choose: random.Random) -> str:
    names = [
        "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    ]  # fmt: skip
    kind = choose.choice(["string", "array", "object", "integer", "number", ["string", "array", "integer"]])
    schema = {"type": kind} | {name: choose.choice(NUMBERS) for name in choose.sample(names, choose.randrange(1, 4))}
    if choose.random() < 0.3:
        schema |= choose.choice(
            [{"items": {"type": "boolean"}}, {"pattern": "^a+$"}, {"format": "uuid"}, {"items": False}]
        )
    return write(choose.choice([schema, {"type": "array", "items": schema, "maxItems": 2}]))


def references(choose: random.Random) -> str:
    names = [
        choose.choice(["a", "b", "é", "a/b", "~", "%", "", '"']) + str(index)
        for index in range(choose.choice([1, 2, 5, 300]))
    ]
    targets = [f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}" for name in names]
    targets += [
        "#",
        "#/",
        "#/$defs",
        "#/properties",
        "#nothing",
        "https://example.com/schema.json",
        "other.json",
        "#/$defs/~9",
    ]
    targets += ["file:///etc/passwd", "", "#" * 50, "#/$defs/" + "a/" * 200, "#/$defs/%61" + "0"]

    def pointing() -> Any:
        to = {"$ref": choose.choice(targets)}
        return choose.choice([
            to, to, {"anyOf": [to, {"$ref": choose.choice(targets)}]},
            {"allOf": [to, {"$ref": choose.choice(targets)}]},
            {"type": "object", "properties": {"n": to}, "required": ["n"]}, {"type": "array", "items": to},
            {**to, "maxLength": 3}, {"type": "string"}, {"const": 1}, {"$ref": choose.choice([5, None, [], {}])},
        ])  # fmt: skip

    ids = choose.choice(
        [{}, {}, {"$id": "https://example.com/schema.json"}, {"$anchor": "nothing"}, {"$dynamicRef": "#x"}]
    )
    return write({**pointing(), "$defs": {name: pointing() for name in names}, **ids})


def explosions(choose: random.Random) -> str:
    """Products of alternatives: of n schemas with m alternatives each."""
    wide, alternatives = choose.choice([(2, 2), (4, 3), (8, 8), (12, 2), (20, 2), (30, 10), (60, 2), (3, 200)])

    def option(number: int) -> Any:
        return choose.choice([
            {"type": "string", "pattern": f"^[a-{choose.choice('xyz')}]*{number}"},
            {"properties": {f"p{number}": {"type": "integer"}}},
            {"required": [f"p{number}"]}, {"minimum": number}, {"type": choose.choice(["object", "string", "array"])},
            {"enum": [number, "x"]},
            {"type": "string", "minLength": number % 7}, {"type": "array", "items": {"multipleOf": number + 2}},
        ])  # fmt: skip

    inner, outer = choose.choice(["anyOf", "oneOf", "allOf"]), choose.choice(["allOf", "anyOf", "oneOf"])
    return write({outer: [{inner: [option(n) for n in range(alternatives)]} for _ in range(wide)]})


def pattern(choose: random.Random, depth: int = 0) -> str:
    """A regular expression."""
    if depth == 0 and choose.random() < 0.5:
        return choose.choice(PATTERNS)
    if depth > 3 or choose.random() < 0.3:
        return choose.choice(
            ["a", ".", "[a-z]", "\\d", "\\w", "[^a]", "é", "\\s", "b", "x{3}", "(?:ab|a)", "$", "^", "\\."]
        )
    below = [pattern(choose, depth + 1) for _ in range(choose.randrange(1, 4))]
    text = "(" + choose.choice(["", "", "|"]).join(below) + ")"
    return text + choose.choice(["", "", "*", "+", "?", "{0,30}", "{40}", "{1,2000}", "*?"])


def patterns(choose: random.Random) -> str:
    found: dict[str, Any] = {"type": "string", "pattern": pattern(choose)}
    extra: list[dict[str, Any]] = [{}, {}, {"minLength": 3, "maxLength": 5}, {"format": "date"}, {"maxLength": 10**6}]
    found |= choose.choice(extra)
    return write(
        choose.choice([
            found, {"allOf": [found, {"pattern": pattern(choose)}, {"pattern": pattern(choose)}]},
            {"type": "object", "patternProperties": {pattern(choose): found, pattern(choose): {"type": "null"}}},
            {"type": "object", "properties": {"a": found}, "required": ["a"], "additionalProperties": False},
            {"type": "array", "items": found, "minItems": 3},
        ])
    )  # fmt: skip


def empty(choose: random.Random) -> str:
    """No value is an instance, or hardly any."""
    schema = choose.choice([
        False, {"enum": []}, {"not": {}}, {"allOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": []},
        {"type": []},
        {"minimum": 5, "maximum": 3, "type": "integer"}, {"type": "string", "minLength": 5, "maxLength": 3},
        {"const": 1, "enum": [2]},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "string", "pattern": "a^b"}, {"type": "integer", "minimum": 0.1, "maximum": 0.9}, {"$ref": "#"},
        {"type": "string", "enum": [1, 2]}, {"type": "string", "format": "ipv4", "maxLength": 2},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {"type": "object", "required": ["b"], "properties": {"a": {}}, "additionalProperties": False},
        {"oneOf": [{}, {}]},
        {"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13},
        {"type": "object", "maxProperties": 0, "required": ["a"]},
        {"allOf": [{"pattern": "^a"}, {"pattern": "^b"}], "type": "string"}, {"type": "null", "enum": [0]},
        {"prefixItems": [False], "minItems": 1},
        {"type": "array", "minItems": 4, "maxItems": 3}, {"type": "object", "minProperties": 3, "maxProperties": 2},
        {"type": "nothing"},
        {"exclusiveMinimum": 1, "exclusiveMaximum": 2, "type": "integer"}, {"type": "string", "pattern": "[^\\s\\S]"},
    ])  # fmt: skip
    return write(
        choose.choice([
            schema, {"anyOf": [schema, {"const": 1}]}, {"type": "object", "properties": {"a": schema}},
            {"type": "object", "properties": {"a": schema}, "required": ["a"]}, {"type": "array", "items": schema},
        ])
    )  # fmt: skip


def strange_names(choose: random.Random) -> str:
    names = [
        choose.choice(STRANGE) + choose.choice(["", "", choose.choice(STRANGE)]) for _ in range(choose.randrange(1, 6))
    ]
    schema = {
        "type": "object",
        "properties": {name: choose.choice([{"const": choose.choice(STRANGE)}, *LEAVES]) for name in names},
        "required": choose.sample(names, choose.randrange(len(names) + 1)),
        "additionalProperties": choose.choice([False, True, {"type": "null"}]),
    }
    if choose.random() < 0.3:
        schema[choose.choice(["title", "$comment", "description", "$id", "$anchor", "format", "$schema"])] = (
            choose.choice(STRANGE)
        )
    return json.dumps(schema, ensure_ascii=choose.random() < 0.5)


def many_properties(choose: random.Random) -> str:
    count = choose.choice([20, 100, 400, 1500, 2500, 5000, 20_000])
    names = [f"{choose.choice('abc')}{index}" for index in range(count)]
    leaf = choose.choice([{"type": "string"}, {"type": "integer"}, {"enum": [1]}, True])
    return write({
        "type": "object",
        "properties": dict.fromkeys(names, leaf),
        "required": choose.choice([[], [], names[-1:], names[::2], names, ["absent"]]),
        "additionalProperties": choose.choice([False, False, True]),
    })  # fmt: skip


def options(choose: random.Random) -> str:
    """Keys that llguidance reads as its options, and its other entries."""
    value: Any = choose.choice([
        {"whitespace_flexible": True}, {"item_separator": "x" * 1000}, {"coerce_one_of": True}, {"lenient": True}, 5,
        None,
        {"whitespace_pattern": "(a+)+"}, {"key_separator": "\u0000"}, {"x": 1}, {"whitespace_pattern": "["}, [], "true",
    ])  # fmt: skip
    schema = copy.deepcopy(choose.choice(REAL))
    place = choose.choice([schema, schema, *schema.get("properties", {}).values()])
    if isinstance(place, dict):
        place[choose.choice(["x-guidance", "x-guidance", "%json", "grammars", "lark_grammar", "x-llguidance"])] = value
    return write(schema)


def huge(choose: random.Random) -> str:
    """Texts at a limit."""
    size = choose.choice([60_000, 200_000, 262_000, 262_144, 270_000, 1_000_000])
    key = choose.choice(["const", "description", "pattern", "enum", "$comment", "default", "title"])
    value: Any = choose.choice(["a", "é", '"', "\\"]) * (size // choose.choice([1, 2, 6]))
    if key == "enum":
        value = [value[:100] + str(index) for index in range(size // 150)]
    return write(
        {"type": "object", "properties": {"a": {key: value}}, "required": ["a"], "additionalProperties": False}
    )


def _random_json(choose: random.Random, depth: int = 0) -> Any:
    if depth > 2 or choose.random() < 0.5:
        return copy.deepcopy(choose.choice([*NUMBERS, *STRANGE[:7], *LEAVES, "string", "object"]))
    if choose.random() < 0.5:
        return [_random_json(choose, depth + 1) for _ in range(choose.randrange(4))]
    return {choose.choice([*KEYWORDS, "a"]): _random_json(choose, depth + 1) for _ in range(choose.randrange(4))}


KEYWORDS = sorted(SUPPORTED | UNSUPPORTED)


def soup(choose: random.Random) -> str:
    """Keywords with values of any type."""
    return write({choose.choice(KEYWORDS): _random_json(choose) for _ in range(choose.randrange(1, 7))})


def _places(node: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value in it."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    found = [(node, key) for key in keys]
    for key in keys:
        found += _places(node[key])
    return found


def mutated(choose: random.Random) -> str:
    schema = copy.deepcopy(choose.choice(REAL))
    for _ in range(choose.randrange(1, 6)):
        places = _places(schema)
        if not places or len(places) > 3000:
            break
        holder, key = choose.choice(places)
        other, other_key = choose.choice(places)
        match choose.randrange(7):
            case 0:
                holder[key] = _random_json(choose)
            case 1:
                del holder[key]
            case 2:
                holder[key] = copy.deepcopy(other[other_key])
            case 3 if isinstance(holder, dict):
                holder[choose.choice(KEYWORDS)] = holder.pop(key)
            case 4 if isinstance(holder, dict):
                holder[choose.choice(KEYWORDS)] = _random_json(choose)
            case 5:
                holder[key] = {
                    choose.choice(["anyOf", "allOf", "oneOf"]): copy.deepcopy([holder[key], choose.choice(LEAVES)])
                }
            case 6 if isinstance(holder[key], list):
                holder[key] = holder[key] * choose.choice([2, 100])
    return write(schema)


def ordinary(choose: random.Random) -> str:
    return write(SchemaMaker(choose.getrandbits(32)).make_schema().schema)


FAMILIES: dict[str, Callable[[random.Random], str]] = {
    "nested": nested, "enums": enums, "bounds": bounds, "references": references, "explosions": explosions,
    "patterns": patterns, "empty": empty, "strange_names": strange_names, "many_properties": many_properties,
    "options": options, "huge": huge, "soup": soup, "mutated": mutated, "ordinary": ordinary,
}  # fmt: skip
WEIGHTS = (4, 3, 7, 7, 5, 10, 7, 7, 2, 4, 2, 10, 20, 12)


def make_schema(choose: random.Random) -> tuple[str, str]:
    """The family and the JSON text."""
    while True:
        [family] = choose.choices(list(FAMILIES), WEIGHTS)
        if len(text := FAMILIES[family](choose)) <= SCHEMA_CHARS_MAX:
            return family, text
