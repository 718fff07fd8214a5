"""Answers cut into random pieces have the same parts as whole answers; malformed answers lose no character."""

from __future__ import annotations

import os
import random

import pytest

from gateway.tools.definitions import ToolSpec
from gateway.tools.formats import FORMATS, HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS, QWEN3_CODER, ToolFormat
from gateway.tools.parser import AnswerParser, AnswerSyntax, ReasoningMarkers
from gateway.tools.parts import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Part, ReasoningDelta, join_parts
from gateway.tools.scanning import AnswerMarkers

CHUNKINGS = int(os.environ.get("LANEWAY_TOOL_CHUNKINGS", "200"))
TOOLS = {
    "get_weather": ToolSpec(
        "get_weather",
        parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    ),
    "run": ToolSpec("run", custom=True),
}
VALUES = [
    '{"city": "Paris"}',
    "{}",
    '{"city": "</tool_call> \\" } ] {", "days": [1, {"x": null}]}',
    '{"city":\n"\\ud83d\\ude00 é 日本"}',
    '{"input": "a\\nb\\\\\\u00e9\\ud83d\\ude00 \\ud83d x"}',
]
TEXTS = [
    "",
    "Hello",
    " \n",
    "I look.\n\n",
    "{",
    '{"name',
    "<tool",
    "<tool_call",
    "a < b",
    "é\n日本",
    "</think>",
    "\n" * 300,
]


def parser_of(format_: ToolFormat, ids: dict[str, int], *, reasoning_open: bool = False) -> AnswerParser:
    texts = [*format_.markers, "<think>", "</think>", "<|python_tag|>"]
    syntax = AnswerSyntax(AnswerMarkers(texts, ids), ReasoningMarkers(), reasoning_open, format_, TOOLS)
    numbers = iter(range(1000))
    return AnswerParser(syntax, lambda: f"call_{next(numbers)}")


def parts_of(parser: AnswerParser, pieces: list[str]) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parser.push_text(piece)
        parts += parser.take_parts()
    parser.finish()
    return join_parts(parts + parser.take_parts())


def cut_at_random(text: str, chance: random.Random) -> list[str]:
    cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.choice([1, 3, len(text) // 4 + 1, len(text)])))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def random_call(format_: ToolFormat, chance: random.Random) -> str:
    name = chance.choice(["get_weather", "run", "unknown"])
    blank = chance.choice(["", " ", "\n"])
    if format_ is QWEN3_CODER:
        value = chance.choice(["Paris", "3", "[1]", "a\n\nb", "", "\n", "x </paramet", "</tool_call>"])
        key = chance.choice(["city", "days", "other"])
        parameter = f"<parameter={key}>\n{value}\n</parameter>\n" * chance.randrange(3)
        return f"<tool_call>\n<function={name}>\n{parameter}</function>{blank}</tool_call>"
    if format_ is MISTRAL_ARGS:
        own_id = chance.choice(["", "", f"[CALL_ID]{blank}abc123XYZ", "[CALL_ID]", "x y"])
        return f"[TOOL_CALLS]{blank}{name}{own_id}{blank}[ARGS]{blank}{chance.choice(VALUES)}"
    key = "parameters" if format_ is LLAMA3_JSON else "arguments"
    one = f'{{{blank}"name": "{name}", "{key}":{blank}{chance.choice(VALUES)}{blank}}}'
    if format_ is HERMES:
        return f"<tool_call>{blank}{one}\n</tool_call>"
    if format_ is MISTRAL:
        return f"[TOOL_CALLS] [{one}, {one}]"
    return f"{one};{blank}{one}"


def random_answer(format_: ToolFormat, chance: random.Random) -> str:
    """Text, reasoning and calls, at times cut or with characters changed."""
    parts = [chance.choice(["", "<think>\nI think.\n\n</think>\n\n"])]
    for _ in range(chance.randrange(4)):
        parts += [chance.choice(TEXTS), random_call(format_, chance)]
    text = "".join(parts) + chance.choice(TEXTS)
    match chance.randrange(4):
        case 0:
            return text[: chance.randrange(len(text) + 1)]
        case 1 if text:
            at = chance.randrange(len(text))
            return text[:at] + chance.choice(["", '"', "}", "<", "x", "\\"]) + text[at + 1 :]
        case _:
            return text


def with_symbols(parser_markers: AnswerMarkers, text: str, ids: dict[str, int]) -> str:
    for marker in ids:
        text = text.replace(marker, parser_markers.symbol(marker))
    return text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("by_id", [False, True], ids=["markers as text", "markers as ids"])
def test_an_answer_in_random_pieces_has_the_parts_of_the_whole_answer(name: str, by_id: bool) -> None:
    format_ = FORMATS[name]
    chance = random.Random(f"{name} {by_id}")
    for round_ in range(CHUNKINGS):
        ids = {text: 7 + at for at, text in enumerate([*format_.markers, "<think>", "</think>"])} if by_id else {}
        opened = chance.random() < 0.2
        whole = parser_of(format_, ids, reasoning_open=opened)
        text = with_symbols(whole._markers, random_answer(format_, chance), ids)
        expected = parts_of(whole, [text])
        pieces = cut_at_random(text, chance)
        streamed = parser_of(format_, ids, reasoning_open=opened)
        assert parts_of(streamed, pieces) == expected, (round_, pieces)
        assert format_ is QWEN3_CODER or streamed.framing == whole.framing
        check_order(expected)


def check_order(parts: list[Part]) -> None:
    """Arguments lie between the start and the end of their call, and calls are numbered from 0."""
    opened: int | None = None
    count = 0
    for part in parts:
        match part:
            case CallStart(index=index):
                assert opened is None
                assert index == count
                opened, count = index, count + 1
            case ArgumentsDelta(index=index, text=text):
                assert index == opened
                assert text
            case CallEnd(index=index):
                assert index == opened
                opened = None
            case ContentDelta() | ReasoningDelta():
                assert opened is None
                assert part.text
    assert opened is None


@pytest.mark.parametrize("format_", [HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS], ids=lambda format_: format_.name)
def test_a_malformed_answer_loses_no_character(format_: ToolFormat) -> None:
    """Each character is in a part, or in the framing of a call that is shown."""
    chance = random.Random(format_.name)
    tools = {name: tool for name, tool in TOOLS.items() if not tool.custom}
    for _ in range(CHUNKINGS):
        text = random_answer(format_, chance)
        syntax = AnswerSyntax(AnswerMarkers(format_.markers, {}), None, False, format_, tools)
        parser = AnswerParser(syntax, lambda: "id")
        parts = parts_of(parser, cut_at_random(text, chance))
        starts = [part for part in parts if isinstance(part, CallStart)]
        shown = sum(len(part.text) for part in parts if isinstance(part, ContentDelta | ArgumentsDelta))
        absent = shown - sum(2 for part in parts if isinstance(part, ArgumentsDelta) and part.text == "{}")
        assert shown + parser.framing >= len(text) >= absent + (parser.framing if starts else 0)
        if not starts:
            assert parts == ([ContentDelta(text)] if text else [])


def test_a_marker_spelled_by_ordinary_ids_is_text() -> None:
    ids = {"<tool_call>": 1, "</tool_call>": 2}
    text = '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'
    assert parts_of(parser_of(HERMES, ids), [text]) == [ContentDelta(text)]


def test_a_marker_id_inside_arguments_ends_the_call() -> None:
    ids = {"<tool_call>": 1, "</tool_call>": 2}
    parser = parser_of(HERMES, ids)
    opened, closed = (parser._markers.symbol(one) for one in HERMES.markers)
    parts = parts_of(parser, [opened + '{"name": "get_weather", "arguments": {"city": "P' + closed + " and on"])
    assert parts[1:] == [ArgumentsDelta(0, '{"city": "P'), CallEnd(0, complete=False), ContentDelta(" and on")]


def test_json_inside_an_answer_of_llama_is_text() -> None:
    text = 'See: {"name": "get_weather", "parameters": {}}'
    assert parts_of(parser_of(LLAMA3_JSON, {}), [text]) == [ContentDelta(text)]


def test_an_object_that_names_no_tool_is_text() -> None:
    text = '{"name": "Alice", "parameters": {}}'
    assert parts_of(parser_of(LLAMA3_JSON, {}), [text]) == [ContentDelta(text)]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    parts = parts_of(parser_of(HERMES, {}), ['<tool_call>\n{"name": "get_weather"}\n</tool_call>'])
    assert parts == [CallStart(0, "call_0", "get_weather"), ArgumentsDelta(0, "{}"), CallEnd(0)]


def test_line_breaks_around_reasoning_are_dropped() -> None:
    parts = parts_of(parser_of(HERMES, {}, reasoning_open=True), ["\nhm\n", "\n</thi", "nk>\n\nyes"])
    assert parts == [ReasoningDelta("hm"), ContentDelta("yes")]


def test_white_space_alone_around_calls_is_dropped() -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
    parts = parts_of(parser_of(HERMES, {}), ["\n\n" + call + "\n" + call + "\n"])
    assert [type(part) for part in parts] == [CallStart, ArgumentsDelta, CallEnd] * 2


def test_a_newer_call_of_mistral_has_its_name_before_the_arguments() -> None:
    calls = (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "[ARGS]"}[TOOL_CALLS]run[CALL_ID]abcdefghi[ARGS]{"input": "a\\nb"}\nDone'
    )
    parts = parts_of(parser_of(MISTRAL_ARGS, {}), ["I look." + calls])
    assert parts == [
        ContentDelta("I look."),
        CallStart(0, "call_0", "get_weather"),
        ArgumentsDelta(0, '{"city": "[ARGS]"}'),
        CallEnd(0),
        CallStart(1, "call_1", "run", custom=True),
        ArgumentsDelta(1, "a\nb"),
        CallEnd(1),
        ContentDelta("\nDone"),
    ]


def test_a_call_of_mistral_that_is_cut_is_not_complete() -> None:
    ids = {marker: 7 + at for at, marker in enumerate(MISTRAL_ARGS.markers)}
    parser = parser_of(MISTRAL_ARGS, ids)
    opened, arguments, _ = (parser._markers.symbol(one) for one in MISTRAL_ARGS.markers)
    parts = parts_of(parser, [f'{opened}get_weather{arguments}{{"city": "P{opened}get_weather{arguments}{{}}'])
    assert parts == [
        CallStart(0, "call_0", "get_weather"),
        ArgumentsDelta(0, '{"city": "P'),
        CallEnd(0, complete=False),
        CallStart(1, "call_1", "get_weather"),
        ArgumentsDelta(1, "{}"),
        CallEnd(1),
    ]


def test_new_ids_are_as_long_as_the_template_of_mistral_accepts() -> None:
    assert len(MISTRAL.new_id("call_")) == 9
    assert HERMES.new_id("call_").startswith("call_")
