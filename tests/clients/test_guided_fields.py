"""Constraints of texts, arguments and inputs that clients send: vLLM's fields, schemas of tools, Lark grammars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.protocol.frames import Guide
from support.gateway.speaking import ASK, CITY, ONE, WEATHER, Speaking, start_speaking
from support.stack import MODEL

TOOL: Any = {"name": "get_weather", "description": "Weather", "input_schema": CITY}


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    yield from start_speaking(tmp_path_factory.mktemp("tools"))


LARK = 'start: "a" | b\nb: "b"+'


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"guided_json": CITY}, '"city"'),
        ({"guided_json": json.dumps(CITY)}, '"city"'),
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes"),
        ({"guided_grammar": LARK}, "start:"),
        ({"structured_outputs": {"json": CITY}}, '"city"'),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
        ({"structured_outputs": {"grammar": LARK}}, "start:"),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}, "whitespace_flexible"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_fields_of_vllm_guide_chats_and_completions(speaking: Speaking, extra: Any, said: str) -> None:
    speaking.says("yes")
    answer = speaking.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20, extra_body=extra)
    assert answer.choices[0].message.content == "yes"
    grammar = speaking.guide().grammar
    assert said in grammar
    text = speaking.openai.completions.create(model=MODEL, prompt="Say", max_tokens=20, extra_body=extra)
    assert text.choices[0].text == "yes"
    # A completion is text: the grammar begins with its first id, and no reasoning comes before.
    assert speaking.guide() == Guide(grammar=grammar)


def test_a_constraint_of_vllm_stands_beside_tools(speaking: Speaking) -> None:
    speaking.says(ONE)
    extra: Any = {"structured_outputs": {"choice": ["yes", "no"]}}
    answer = speaking.openai.chat.completions.create(
        model=MODEL, messages=ASK, tools=[WEATHER], max_tokens=200, extra_body=extra
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert '"yes"' in speaking.guide().grammar


@pytest.mark.parametrize(
    ("extra", "said", "param"),
    [
        ({"guided_json": {"not": {}}}, "/not: the keyword 'not'", "guided_json"),
        (
            {"structured_outputs": {"json": {"properties": {"a": {"if": {}}}}}},
            "/properties/a/if",
            "structured_outputs.json",
        ),
        ({"guided_regex": "(?=a)b"}, "at 1.*look-around", "guided_regex"),
        ({"guided_grammar": 'start: "a"\n  | b'}, r"1\(8\): unknown name", "guided_grammar"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "Lark", "structured_outputs.grammar"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "'guided_regex' and 'guided_choice'", "guided_choice"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_construct_of_vllm_that_cannot_be_guided_is_named_before_the_hold(
    speaking: Speaking, extra: Any, said: str, param: str
) -> None:
    before = speaking.stack.holds()
    tools: Any
    for tools in (openai.omit, [WEATHER]):
        with pytest.raises(openai.BadRequestError, match=f"(?s){said}") as refused:
            speaking.openai.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=20, extra_body=extra, tools=tools
            )
        assert refused.value.param == param
    with pytest.raises(openai.BadRequestError, match=f"(?s){said}"):
        speaking.openai.completions.create(model=MODEL, prompt="Say", max_tokens=20, extra_body=extra)
    assert speaking.stack.holds() == before


def test_a_backend_of_vllm_is_ignored_and_named(speaking: Speaking) -> None:
    speaking.says("yes")
    extra: Any = {"guided_choice": ["yes"], "guided_decoding_backend": "xgrammar"}
    answer = speaking.openai.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=20, extra_body=extra
    )
    assert answer.headers["laneway-ignored"] == "guided_decoding_backend"


def tool(name: str, schema: Any, *, strict: bool | None = None) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}


# llguidance refuses the second one, our own check the first.
NOT_FOLLOWED = [
    {"type": "object", "properties": {"k": {"not": {"type": "string"}}}},
    {"type": "object", "properties": {"k": {"type": "string", "pattern": "(?=a)b"}}},
]


@pytest.mark.parametrize("schema", NOT_FOLLOWED)
def test_a_tool_that_is_not_strict_follows_its_schema_where_it_can(speaking: Speaking, schema: Any) -> None:
    fields: Any = {"model": MODEL, "messages": ASK, "max_tokens": 200}
    for _ in range(2):  # the second time the outcome is known
        speaking.says(ONE)
        tools = [WEATHER, tool("odd", schema)]
        answer = speaking.openai.chat.completions.create(tools=tools, **fields)
        assert answer.choices[0].finish_reason == "tool_calls"
        assert '"city"' in speaking.guide().grammar
        assert '"k"' not in speaking.guide().grammar
    speaking.says(ONE)
    speaking.anthropic.messages.create(tools=[TOOL, {"name": "odd", "input_schema": schema}], **fields)
    assert '"city"' in speaking.guide().grammar
    assert '"k"' not in speaking.guide().grammar


@pytest.mark.parametrize("schema", NOT_FOLLOWED)
def test_a_strict_tool_whose_schema_cannot_be_followed_is_named(speaking: Speaking, schema: Any) -> None:
    before = speaking.stack.holds()
    strict = schema | {"required": ["k"], "additionalProperties": False}
    with pytest.raises(openai.BadRequestError, match=r"not|look-around") as refused:
        speaking.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=20, tools=[tool("loose", schema), tool("f", strict, strict=True)]
        )
    assert refused.value.param == "tools[1].function.parameters"
    assert speaking.stack.holds() == before


def test_a_custom_tool_follows_a_lark_grammar(speaking: Speaking) -> None:
    def custom(definition: str) -> Any:
        grammar = {"syntax": "lark", "definition": definition}
        return {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}}

    fields: Any = {"model": MODEL, "messages": ASK, "max_tokens": 100}
    speaking.says('<tool_call>\n{"name": "patch", "arguments": {"input": "+a \\"b\\"\\n"}}\n</tool_call>')
    tools = [custom('start: line+\nline: "+" /.*/ LF\n%import common.LF')]
    answer = speaking.openai.chat.completions.create(tools=tools, **fields)
    [call] = answer.choices[0].message.tool_calls or ()
    assert call.type == "custom"
    assert call.custom.input == '+a "b"\n'
    assert "input_0" in speaking.guide().grammar
    before = speaking.stack.holds()
    for definition, said in (("start: ~/a/", "line 1: '~'"), ("start: a", "unknown name"), ("start: /[b-a]/", "range")):
        with pytest.raises(openai.BadRequestError, match=said) as refused:
            speaking.openai.chat.completions.create(tools=[custom(definition)], **fields)
        assert refused.value.param == "tools[0].custom.format.grammar.definition"
    assert speaking.stack.holds() == before
