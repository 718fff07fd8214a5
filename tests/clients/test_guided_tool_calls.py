"""Calls that the engine's grammar forces: over `engine --fake`, whose ids are drawn under the masks, each format of
calls makes arguments that the schema of the tool allows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.tools.formats import FORMATS
from support.stack import MODEL, Stack

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": PARAMETERS}}
ASK: Any = [{"role": "user", "content": "Weather?"}]
SEEDS = range(2)


@pytest.fixture(scope="module", params=FORMATS)
def client(request: Any, tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[openai.OpenAI]:
    """The demo model, whose template knows no tools, with the format that its operator names."""
    directory = tmp_path_factory.mktemp("guided")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=f'tools = "{request.param}"\n')
    try:
        stack.start()
        yield openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"], max_retries=0)
        assert stack.open_holds() == 0
    finally:
        stack.stop()


def check_arguments(text: str) -> None:
    arguments = json.loads(text)
    assert arguments["city"] in ("Paris", "Rome")
    assert 1 <= arguments["days"] <= 7
    assert len(arguments) == 2


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
def test_a_forced_call_follows_the_schema(client: openai.OpenAI, choice: Any) -> None:
    for seed in SEEDS:
        fields: Any = {"model": MODEL, "messages": ASK, "tools": [TOOL], "max_tokens": 200, "seed": seed}
        answer = client.chat.completions.create(**fields, tool_choice=choice, parallel_tool_calls=False)
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        [call] = answer.choices[0].message.tool_calls or ()
        assert call.type == "function"
        check_arguments(call.function.arguments)
        with client.chat.completions.stream(**fields, tool_choice=choice, parallel_tool_calls=False) as stream:
            [streamed] = stream.get_final_completion().choices[0].message.tool_calls or ()
        assert streamed.function.arguments == call.function.arguments


def test_without_strict_the_arguments_are_an_object(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "now"}}
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[tool], tool_choice="required", max_tokens=300, seed=1
    )
    calls: Any = answer.choices[0].message.tool_calls
    if answer.choices[0].finish_reason == "tool_calls":
        assert all(isinstance(json.loads(call.function.arguments), dict) for call in calls)


def test_a_schema_guides_the_answer(client: openai.OpenAI) -> None:
    format_: Any = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": PARAMETERS}}
    answer = client.chat.completions.create(model=MODEL, messages=ASK, response_format=format_, max_tokens=200)
    assert answer.choices[0].finish_reason == "stop"
    check_arguments(answer.choices[0].message.content or "")


@pytest.mark.parametrize("field", ["guided_regex", "structured_outputs"])
def test_an_expression_guides_chats_and_completions(client: openai.OpenAI, field: str) -> None:
    pattern = "(?:[0-9]{2}-){2}[a-f]"
    extra: Any = {field: pattern if field == "guided_regex" else {"regex": pattern}}
    fields: Any = {"model": MODEL, "max_tokens": 40, "n": 3, "seed": 5, "extra_body": extra}
    texts = [choice.message.content for choice in client.chat.completions.create(messages=ASK, **fields).choices]
    texts += [choice.text for choice in client.completions.create(prompt=["Say", "Tell"], **fields).choices]
    assert len(texts) == 9
    for text in texts:
        assert re.fullmatch(pattern, text or ""), text


def test_a_prompt_without_an_answer_may_have_a_grammar(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Say", max_tokens=0, echo=True, logprobs=1, extra_body={"guided_choice": ["yes"]}
    )
    assert answer.choices[0].text == "Say"


def test_a_lark_grammar_guides_the_input_of_a_custom_tool(client: openai.OpenAI) -> None:
    """A free text that a line break ends: the lexer must not take the backslash of `\\n` for a part of the text."""
    definition = 'start: line line\nline: ("+" | "-") /[ -~]{1,12}/ "\\n"'
    format_ = {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}
    tool: Any = {"type": "custom", "custom": {"name": "patch", "format": format_}}
    for seed in SEEDS:
        fields: Any = {"model": MODEL, "messages": ASK, "tools": [tool], "max_tokens": 200, "seed": seed}
        choice: Any = {"type": "custom", "custom": {"name": "patch"}}
        answer = client.chat.completions.create(**fields, tool_choice=choice)
        assert answer.choices[0].finish_reason == "tool_calls"
        [call] = answer.choices[0].message.tool_calls or ()
        assert call.type == "custom"
        assert re.fullmatch(r"([+-][ -~]{1,12}\n){2}", call.custom.input), call.custom.input
        chunks = client.chat.completions.create(**fields, tool_choice=choice, stream=True)
        deltas: Any = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
        assert "".join([delta.custom["input"] for delta in deltas]) == call.custom.input
