"""Grammars: what is compiled, what is refused and with which pointer, and that no text ends the process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from engine.protocol import guide_limits
from engine.text import grammars
from engine.text.grammar_process import GrammarProcess
from engine.text.grammars import (
    GrammarRefused,
    GrammarTokenizer,
    check_grammar,
    choice_grammar,
    compile_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from support.paths import REPO

TINY = REPO / "examples" / "models" / "laneway-tiny"
MODEL = GrammarTokenizer.load(TINY)


def accepts(grammar: str, text: str) -> bool:
    """Whether the grammar takes the text and may end there."""
    matcher = compile_grammar(MODEL, grammar)
    ids = MODEL.inner.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def refusal(make: Any) -> str:
    with pytest.raises(GrammarRefused) as caught:
        check_grammar(MODEL, make())
    return str(caught.value)


def test_the_limit_is_that_of_the_frame() -> None:
    assert grammars.GRAMMAR_CHARS_MAX == guide_limits.GRAMMAR_CHARS_MAX


def test_one_tokenizer_per_content() -> None:
    assert GrammarTokenizer.load(TINY) is MODEL
    padded = GrammarTokenizer.load(TINY, MODEL.vocab_size + 100)
    assert padded is not MODEL
    assert padded.vocab_size == MODEL.vocab_size + 100
    assert padded.digest != MODEL.digest
    matcher = compile_grammar(padded, regex_grammar("(.|\n)*"))
    mask = matcher.compute_bitmask()
    assert not any(mask[id_ // 8] >> (id_ % 8) & 1 for id_ in range(MODEL.vocab_size, padded.vocab_size))


def test_a_vocabulary_with_byte_fallback(tmp_path: Path) -> None:
    """As SentencePiece's: ▁ for a space, <0xNN> for a byte."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "é", "{", "}"]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": words[i], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i in range(3)
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                  "vocab": {word: i for i, word in enumerate(words)}, "merges": [["▁", "a"]]},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300, "eos_token_id": 2}))
    model = GrammarTokenizer.load(tmp_path)
    matcher = compile_grammar(model, choice_grammar([" aé", "z"]))
    mask = matcher.compute_bitmask()
    allowed = {i for i in range(300) if mask[i // 8] >> (i % 8) & 1}
    assert allowed == {words.index("▁"), words.index("▁a"), words.index("<0x20>"), words.index("<0x7A>")}
    assert matcher.consume_tokens([words.index("▁a"), words.index("<0xC3>"), words.index("<0xA9>")])
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, ["1", "-20"], ["1.5", '"1"', "01"]),
        ({"type": "string", "maxLength": 2}, ['"ab"', '""'], ['"abc"', "ab"]),
        ({"enum": ["a", 1, None, [1, {"b": 2}]]}, ['"a"', "1", "null", '[1,{"b":2}]'], ['"b"', "2"]),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, ["[]", "[true,false]"], ["[true,true,true]"]),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"],
             "additionalProperties": False},
            ['{"a":1}', '{"a":1,"b":[]}'],
            ["{}", '{"b":1}', '{"a":1,"c":1}'],
        ),
        ({"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
          "$ref": "#/$defs/n"}, ['{"n":{"n":{}}}'], ['{"n":1}']),
        ({"anyOf": [{"type": "integer"}, {"const": "x"}]}, ["1", '"x"'], ['"y"']),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"y"'], ["true"]),
        ({"type": "integer", "minimum": 3, "maximum": 17}, ["3", "17"], ["2", "18"]),
        ({"type": "string", "format": "date"}, ['"2026-11-24"'], ['"2026-13-24"']),
        (True, ["1", "{}", "null"], ["nul"]),
        ({"type": "array", "uniqueItems": False}, ["[1,1]"], []),
        ({"type": "integer", "x-guidance": {"lenient": True}, "title": "t", "deprecated": True}, ["1"], ['"a"']),
    ],
)  # fmt: skip
def test_a_schema_accepts_its_instances_alone(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = json_schema_grammar(schema)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_whitespace_is_bounded() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    for most in (0, 1, 3):
        grammar = json_schema_grammar(schema, whitespace_max=most)
        assert accepts(grammar, "[1," + " " * most + "2]")
        assert not accepts(grammar, "[1," + " " * (most + 1) + "2]")
    assert accepts(json_object_grammar(), '{"a": 1}')
    assert not accepts(json_object_grammar(), "[1]")


@pytest.mark.parametrize(
    "pattern", [r"^\s$", r"^\S$", r"^[a\s]$", r"^[^\s]$", r"^[^\S]$", r"^[\Sa]$", r"^[\s\S]$", r"^[]\s]$"]
)
def test_white_space_of_a_pattern_is_every_validator_s(pattern: str) -> None:
    grammar = json_schema_grammar({"type": "string", "pattern": pattern})
    accepted = {
        char for char in " \x1c\x85\xa0\u1680\u2003\u2028\u202f\ufeff\u200ba-é]" if accepts(grammar, f'"{char}"')
    }
    assert accepted
    for char in accepted:
        assert jsonschema_rs.is_valid({"pattern": pattern}, char), ascii(char)
        assert re.search(pattern, char), ascii(char)


@pytest.mark.parametrize("name", ["<|begin|>", "<|user|>", "<|end|>"])
def test_a_constant_that_is_a_marker_s_name_is_text(name: str) -> None:
    """Its ids are those of its characters: as the marker it would end the answer, or be left out of its text."""
    markers = [token["id"] for token in json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]]
    matcher = compile_grammar(MODEL, json_schema_grammar({"const": name}))
    for id_ in MODEL.inner.tokenize_str(f'"{name}"'):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        assert allowed >> id_ & 1
        assert not any(allowed >> marker & 1 for marker in markers)
        assert matcher.consume_token(id_)
    assert matcher.is_accepting()


def test_other_kinds() -> None:
    assert accepts(regex_grammar("[a-c]{2,3}"), "abc")
    assert not accepts(regex_grammar("[a-c]{2,3}"), "abcd")
    assert accepts(choice_grammar(["yes", 'n"o\n', "é😀"]), 'n"o\n')
    assert accepts(choice_grammar(["yes", "é😀"]), "é😀")
    assert not accepts(choice_grammar(["yes"]), "y")
    assert accepts(lark_grammar('start: "a" B\nB: /[0-9]+/'), "a12")
    assert accepts(lark_grammar('start: "<a>" /<b>+/ "c" // <c>\n# <d>'), "<a><b>>c")
    assert accepts(json_schema_grammar({"type": "string", "maxLength": 2.0}), '"ab"')


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"properties": {"a/b": {"uniqueItems": True}}}, "/properties/a~1b/uniqueItems"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "dependentRequired": {}}, "/dependentRequired"),
        ({"items": {"not": {}}}, "/items/not"),
        ({"allOf": [{"if": {}}]}, "/allOf/0/if"),
        ({"items": {"format": "idn-email", "type": "string"}}, "/items/format"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf"),
        ({"$defs": {"x": {"type": "string", "pattern": "(?=a)"}}, "$ref": "#/$defs/x"}, "/$defs/x/pattern"),
        ({"items": {"$ref": "http://localhost:1/integer.json#/$defs/x"}}, "/items/$ref"),
        ({"patternProperties": {"a*": {}, "aaa*": {}}}, "/patternProperties"),
        ({"minProperties": 3, "required": ["a"]}, "/minProperties"),
        ({"const": [2**70]}, "/const/0"),
        ({"multipleOf": 0.00001}, ""),
        ({"multipleOf": 99_999_989}, "/multipleOf"),
        ({"multipleOf": 10**400}, "/multipleOf"),
        ({"multipleOf": 10**5000}, "/multipleOf"),
        ({"maximum": 10**5000}, "too large"),
        ({"format": 10**5000}, "too large"),
        ({"allOf": 3}, "/allOf"),
        ({"properties": 3}, "/properties"),
        ({"items": {"anyOf": 3}}, "/items/anyOf"),
        (False, "false"),
        (3, "object"),
    ],
)
def test_a_refused_schema_is_named_by_its_pointer(schema: Any, where: str) -> None:
    try:
        message = refusal(lambda: json_schema_grammar(schema))
    except pytest.fail.Exception:
        assert where == ""
        return
    assert where in message, message


@pytest.mark.parametrize(
    "make",
    [
        lambda: json_schema_grammar({"$ref": "#"}),
        lambda: json_schema_grammar({"$ref": "https://example.com/x"}),
        lambda: json_schema_grammar({"const": "\ud800"}),
        lambda: lark_grammar("start: A\nA: /a/ & /b/"),
        lambda: lark_grammar("start: b"),
        lambda: lark_grammar("start: <[2]>"),
        lambda: lark_grammar('start: "a"\n  | <|im_end|>'),
        lambda: lark_grammar('start: %json {"x-guidance": {"lenient": true}}'),
        lambda: lark_grammar('%llguidance {"no_forcing": true}\nstart: "a"'),
        lambda: regex_grammar("(a"),
        lambda: regex_grammar(r"(a)\1"),
        lambda: choice_grammar([]),
        lambda: choice_grammar([""]),
        lambda: "",
        lambda: "{}",
        lambda: '{"grammars": []}',
        lambda: '{"grammars": [3]}',
        lambda: '{"grammars": [{"lark_grammar": "start: @x"}]}',
        lambda: "[" * 100_000,
    ],
)  # fmt: skip
def test_a_grammar_that_cannot_be_served_is_refused(make: Any) -> None:
    assert refusal(make)


def nested(levels: int, inner: Any, wrap: Any) -> Any:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def rules(count: int, rule: str, last: str) -> str:
    """A chain of rules or terminals; `rule` with {0} and {1} for the numbers."""
    return "\n".join([*(rule.format(i, i + 1) for i in range(count)), last.format(count)])


HOSTILE = {
    "deep objects": lambda: json_schema_grammar(nested(2000, {}, lambda s: {"properties": {"a": s}})),
    "deep arrays": lambda: json_schema_grammar(nested(40, {}, lambda s: {"type": "array", "items": s})),
    "deep constant": lambda: json_schema_grammar({"const": nested(3000, 1, lambda s: [s])}),
    "large enum": lambda: json_schema_grammar({"enum": [f"v{i}" for i in range(20_000)]}),
    "huge enum": lambda: json_schema_grammar({"enum": [f"v{i}" for i in range(200_000)]}),
    "many properties": lambda: json_schema_grammar({"properties": {f"k{i}": {} for i in range(1500)}}),
    "anyOf of objects": lambda: json_schema_grammar(
        {"anyOf": [{"type": "object", "properties": {"a": {"const": i}}} for i in range(2500)]}
    ),
    "oneOf nests": lambda: json_schema_grammar(
        nested(7, {"type": "string"}, lambda s: {"oneOf": [{"type": "object", "properties": {"x": s}}] * 3})
    ),
    "allOf of anyOf": lambda: json_schema_grammar(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(6)]} for i in range(8)]}
    ),
    "cycle with siblings": lambda: json_schema_grammar({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
    "counts in counts": lambda: json_schema_grammar({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}),
    "patterns of one string": lambda: json_schema_grammar(
        {"allOf": [{"type": "string", "pattern": f"[a-z]{{{i}}}.*x.{{{i}}}"} for i in range(1, 40)]}
    ),
    "long string": lambda: json_schema_grammar({"type": "string", "minLength": 100_000}),
    "long array": lambda: json_schema_grammar({"type": "array", "minItems": 10**6}),
    "parentheses": lambda: lark_grammar("start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    "chain of terminals": lambda: lark_grammar(rules(5000, 'A{0}: A{1} "b"', 'A{0}: "a"\nstart: A0')),
    "chain of rules": lambda: lark_grammar(rules(5000, 'a{0}: a{1} "b" | "c"', 'a{0}: "a"\nstart: a0')),
    "chain with attributes": lambda: lark_grammar(rules(5000, 'a{0}[suffix="x"]: a{1} "b"', 'a{0}: "a"\nstart: a0')),
    "doubling terminals": lambda: lark_grammar(rules(60, "A{0}: A{1} A{1}", 'A{0}: "a"\nstart: A0')),
    "doubling rules": lambda: lark_grammar(rules(60, "a{0}: a{1} a{1}", 'a{0}: "a"\nstart: a0')),
    "many alternatives": lambda: lark_grammar("start: " + " | ".join(f'"{i}"' for i in range(100_000))),
    "repetition": lambda: lark_grammar('start: ("a"{0,10000}){0,10000}'),
    "nested regex": lambda: regex_grammar("(" * 50_000 + "a" + ")" * 50_000),
}


@pytest.fixture(scope="module")
def process() -> Iterator[GrammarProcess]:
    """Hostile texts run beside the test: one that ended its process would end the test's."""
    found = GrammarProcess()
    yield found
    found.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_compiled_or_refused(name: str, process: GrammarProcess) -> None:
    killed, began, refusal = process.killed, time.monotonic(), ""
    try:
        process.check_text(TINY, None, HOSTILE[name]())
    except GrammarRefused as refused:
        refusal = str(refused)
    assert len(refusal) <= grammars.REFUSAL_CHARS_MAX
    assert process.killed == killed, "only the clock ended it"
    print(f"{name}: {time.monotonic() - began:.3f} s")


def test_a_grammar_that_takes_too_long_ends_its_process_alone() -> None:
    process = GrammarProcess(check_s_max=0.2)
    # Past the checks of `json_schema_grammar`, as a foreign gateway might send it: 99,999,989 states.
    endless = json.dumps({"grammars": [{"json_schema": {"type": "integer", "multipleOf": 99_999_989}}]})
    try:
        process.check_text(TINY, None, json_object_grammar())
        with pytest.raises(GrammarRefused, match="too large"):
            process.check_text(TINY, None, endless)
        assert process.killed == 1
        process.check_text(TINY, None, json_object_grammar())
        with pytest.raises(ValueError, match="tokenizer"):
            process.check_text(REPO / "docs", None, "start: /a/")
    finally:
        process.close()
