"""Whatever a schema's grammar allows is an instance of the schema: random walks over the allowed ids, no model."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from engine.text.grammars import GrammarTokenizer, compile_grammar, json_schema_grammar
from engine.text.json_schemas import FORMAT_PATTERNS
from support.engine.schemas import SchemaMaker
from support.paths import REPO

MODEL = GrammarTokenizer.load(REPO / "examples" / "models" / "laneway-tiny")
SCHEMAS = int(os.environ.get("LANEWAY_SCHEMAS", "120"))
IDS_MAX = 600
FORMATS = [*FORMAT_PATTERNS, "ipv4", "ipv6", "uuid"]


def walk(matcher: llguidance.LLMatcher, rng: random.Random) -> str | None:
    """A random text that the grammar accepts; None: it has not ended after IDS_MAX ids."""
    ids: list[int] = []
    while len(ids) < IDS_MAX:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [id_ for id_ in np.nonzero(bits[: MODEL.vocab_size])[0].tolist() if id_ not in MODEL.eos_ids]
        assert allowed or matcher.is_accepting(), matcher.get_error()
        if not allowed or (matcher.is_accepting() and rng.random() < 0.5):
            return MODEL.inner.decode_str(ids)
        # The shorter, the likelier: otherwise few strings end.
        ids.append(min(rng.sample(allowed, min(3, len(allowed))), key=lambda id_: len(MODEL.inner.decode_bytes([id_]))))
        assert matcher.consume_token(ids[-1])
    return None


def check(schema: Any, seed: int, walks: int) -> int:
    compiled = compile_grammar(MODEL, json_schema_grammar(schema))
    rng, ended = random.Random(seed), 0
    for _ in range(walks):
        text = walk(compiled.deep_copy(), rng)
        if text is not None:
            ended += 1
            assert jsonschema_rs.is_valid(schema, json.loads(text), validate_formats=True), (schema, text)
    return ended


def test_random_schemas() -> None:
    maker = SchemaMaker(1)
    ended = 0
    for seed in range(SCHEMAS):
        made = maker.make_schema()
        assert jsonschema_rs.is_valid(made.schema, made.shortest, validate_formats=True), made
        ended += check(made.schema, seed, 3)
    assert ended > 2.5 * SCHEMAS


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name: str) -> None:
    assert check({"type": "string", "format": name}, 1, 60) > 30
    assert check({"type": "string", "format": name, "maxLength": 40}, 1, 20)


def accepts(schema: Any, text: str) -> bool:
    matcher = compile_grammar(MODEL, json_schema_grammar(schema))
    ids = MODEL.inner.tokenize_str(text)
    return matcher.validate_tokens(ids) == len(ids) and all(map(matcher.consume_token, ids)) and matcher.is_accepting()


def test_a_number_between_bounds_has_ten_decimals_at_most() -> None:
    ranged = {"type": "number", "minimum": -0.5, "exclusiveMaximum": 99}
    schema = {"type": "object", "properties": {"a": {"anyOf": [ranged, {"type": "null"}]}}, "required": ["a"]}
    assert accepts(schema, '{"a":98.0123456789}')
    assert accepts(schema, '{"a":-0.25}')
    assert accepts(schema, '{"a":7}')
    assert accepts(schema, '{"a":null}')
    assert not accepts(schema, '{"a":0.00000000001}')
    assert not accepts(schema, '{"a":99}')
    # Not where small numbers may matter, nor beside a step of the schema's own.
    assert accepts({"type": "number", "minimum": 0}, "0.00000000000001")
    assert accepts({"type": "number", "minimum": 0, "maximum": 1e-6}, "0.00000000000001")
    assert accepts({"type": "number"}, "6.02214076e23")
    both = {"allOf": [{"type": "number", "minimum": 0, "maximum": 9}, {"multipleOf": 0.5}]}
    assert accepts({"type": ["integer", "null"], "minimum": 0, "maximum": 9}, "7")
    assert accepts({"allOf": [{"type": "integer"}, {"minimum": 0, "maximum": 9}]}, "7")
    assert accepts({"allOf": [{"type": "number", "minimum": 0, "maximum": 9}, {"minimum": 1, "maximum": 5}]}, "3.25")
    assert accepts({"type": "number", "minimum": 0, "maximum": 9, "anyOf": [{"type": "integer"}]}, "7")
    assert accepts({"type": "number", "minimum": 0.1234567890123, "maximum": 0.1234567890123}, "0.1234567890123")
    assert accepts(both, "3.5")
    assert not accepts(both, "3.25")
    # A step elsewhere in the schema changes nothing; a subschema that may meet another one has no step.
    beside = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 5}, "b": ranged}}
    assert accepts(beside, '{"a":25,"b":0.5}')
    assert not accepts(beside, '{"b":0.00000000001}')
    whole = {"$ref": "#/$defs/a", "type": "integer", "$defs": {"a": {"type": "number", "minimum": 0, "maximum": 9}}}
    assert accepts(whole, "7")
    assert not accepts(whole, "7.5")


def test_an_integer_without_a_bound_has_64_bits() -> None:
    for schema in ({"type": "integer"}, {"type": ["integer", "null"]}, {"allOf": [{"type": "integer"}]}):
        for text in ("0", "-7", "1175928847299117063", "-9223372036854774784"):
            assert accepts(schema, text), (schema, text)
        for text in ("9223372036854775808", "-9223372036854775808", "1" * 40):
            assert not accepts(schema, text), (schema, text)
    assert accepts({"type": "integer", "multipleOf": 5}, "25")
    assert not accepts({"type": "integer", "multipleOf": 5}, "5" * 30)
    assert not accepts({"type": "integer", "minimum": 3}, "3" * 30)
    assert not accepts({"type": "integer", "exclusiveMaximum": 3}, "-" + "3" * 30)
    # Unless the schema names a number beyond it, or allows every number.
    assert accepts({"type": "integer", "const": 2**63 - 1}, str(2**63 - 1))
    assert accepts({"type": "integer", "enum": [3, 5]}, "5")
    assert accepts({"type": ["integer", "number"]}, "1" * 40)


def test_a_duration_is_short() -> None:
    schema = {"type": "string", "format": "duration"}
    for text in ("P1D", "P3Y6M4DT12H30M5S", "PT0S", "P1W", "P2M", "PT36H"):
        assert accepts(schema, json.dumps(text)), text
    for text in ("P", "PT", "P1Y2D", "P1W2D", "P1234567890D"):
        assert not accepts(schema, json.dumps(text)), text
