"""Tools, structured outputs and reasoning through OpenAI's and Anthropic's SDKs, over a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel

from engine.protocol.frames import Submit
from support.gateway.scripted_engine import Said
from support.gateway.speaking import ASK, CITY, NOW, ONE, THOUGHT, TWO, WEATHER, Speaking, start_speaking
from support.gateway.tool_model import says_text
from support.stack import MODEL
from support.waiting import eventually


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    yield from start_speaking(tmp_path_factory.mktemp("tools"))


# ---- OpenAI


def test_a_whole_answer_has_its_text_and_its_calls(speaking: Speaking) -> None:
    speaking.says(TWO)
    answer = speaking.openai.chat.completions.create(model=MODEL, messages=ASK, tools=[WEATHER, NOW], max_tokens=200)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look.\n"
    calls: Any = choice.message.tool_calls
    assert [(call.type, call.function.name) for call in calls] == [("function", "get_weather"), ("function", "now")]
    assert json.loads(calls[0].function.arguments) == {"city": 'Pärís "1"'}
    assert calls[1].function.arguments == "{}"
    assert len({call.id for call in calls}) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(speaking.tokenizer.encode(TWO)) + 1
    assert '"name": "get_weather"' in speaking.prompt()


@pytest.mark.parametrize("text", [ONE, TWO, THOUGHT + TWO, "No call."])
def test_a_stream_accumulates_to_the_whole_answer(speaking: Speaking, text: str) -> None:
    speaking.says(text)
    fields: Any = {"model": MODEL, "messages": ASK, "tools": [WEATHER, NOW], "max_tokens": 300}
    whole = speaking.openai.chat.completions.create(**fields).choices[0]
    with speaking.openai.chat.completions.stream(**fields) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == whole.finish_reason
    assert final.message.content == whole.message.content
    shown = [(call.function.name, call.function.arguments) for call in final.message.tool_calls or ()]
    assert shown == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or ()]
    assert [(event.name, event.arguments) for event in done] == shown
    assert getattr(final.message, "reasoning", None) == getattr(whole.message, "reasoning", None)


def test_deltas_have_the_id_and_the_name_once(speaking: Speaking) -> None:
    speaking.says(TWO)
    fields: Any = {"model": MODEL, "messages": ASK, "tools": [WEATHER, NOW], "max_tokens": 200, "stream": True}
    deltas = [chunk.choices[0].delta for chunk in speaking.openai.chat.completions.create(**fields)]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.index for call in calls if call.id] == [0, 1]
    assert [call.function.name for call in calls if call.id] == ["get_weather", "now"]
    assert all(call.function.arguments == "" for call in calls if call.id)
    assert all(call.type is None and call.function.name is None for call in calls if not call.id)
    assert [call.index for call in calls] == sorted(call.index for call in calls)


def test_an_answer_cut_inside_arguments_ends_with_length(speaking: Speaking) -> None:
    speaking.says(ONE)
    size = len(speaking.tokenizer.encode(ONE)) - 6
    answer = speaking.openai.chat.completions.create(model=MODEL, messages=ASK, tools=[WEATHER], max_tokens=size)
    assert answer.choices[0].finish_reason == "length"
    calls: Any = answer.choices[0].message.tool_calls
    assert calls[0].function.arguments.startswith('{"city": "P')
    strict: Any = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    with pytest.raises(openai.LengthFinishReasonError):
        speaking.openai.chat.completions.parse(model=MODEL, messages=ASK, tools=[strict], max_tokens=size)


class GetWeather(BaseModel):
    city: str


class Forecast(BaseModel):
    city: str
    sky: Literal["clear", "grey"]


def test_a_pydantic_tool_is_parsed(speaking: Speaking) -> None:
    speaking.says('<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Rome"}}\n</tool_call>')
    tool = openai.pydantic_function_tool(GetWeather)
    answer = speaking.openai.chat.completions.parse(model=MODEL, messages=ASK, tools=[tool], max_tokens=200)
    assert answer.choices[0].message.content is None
    [call] = answer.choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments == GetWeather(city="Rome")


def test_a_pydantic_answer_is_parsed_and_guided(speaking: Speaking) -> None:
    speaking.says(THOUGHT + '{"city": "Rome", "sky": "grey"}')
    answer = speaking.openai.chat.completions.parse(model=MODEL, messages=ASK, response_format=Forecast, max_tokens=200)
    assert answer.choices[0].message.parsed == Forecast(city="Rome", sky="grey")
    guide = speaking.guide()
    assert "json_schema" in guide.grammar
    assert guide.reasoning_end_ids
    with speaking.openai.chat.completions.stream(
        model=MODEL, messages=ASK, response_format=Forecast, max_tokens=200
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Forecast(city="Rome", sky="grey")


def test_reasoning_has_both_names_and_is_counted(speaking: Speaking) -> None:
    speaking.says(THOUGHT + "Sunny.")
    answer = speaking.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=100)
    message: Any = answer.choices[0].message
    assert (message.reasoning, message.reasoning_content, message.content) == (
        "Paris is in France.",
        "Paris is in France.",
        "Sunny.",
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    assert counted == len(speaking.tokenizer.encode(THOUGHT.rstrip()))


def test_a_budget_of_reasoning_reaches_the_engine(speaking: Speaking) -> None:
    speaking.says("Sunny.")
    extra = {"max_reasoning_tokens": 7}
    speaking.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=100, extra_body=extra)
    assert speaking.guide().reasoning_max == 7
    assert speaking.guide().grammar is None


def test_effort_none_turns_reasoning_off_in_the_template(speaking: Speaking) -> None:
    speaking.says("Sunny.")
    speaking.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=100, reasoning_effort="none")
    assert speaking.prompt().rstrip().endswith("</think>")


def test_an_effort_that_the_template_does_not_read_is_named(speaking: Speaking) -> None:
    speaking.says("Sunny.")
    raw = speaking.openai.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=100, reasoning_effort="low"
    )
    assert raw.headers["laneway-ignored"] == "reasoning_effort"


def test_a_loop_of_three_turns(speaking: Speaking) -> None:
    speaking.says_in_turn(ONE, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "It rains.")
    messages: list[Any] = list(ASK)
    for result in ("12 degrees", "noon"):
        message = speaking.openai.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER, NOW], max_tokens=200
        ).choices[0].message  # fmt: skip
        [call] = message.tool_calls or ()
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    last = speaking.openai.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER, NOW], max_tokens=200)
    assert last.choices[0].message.content == "It rains."
    assert "<tool_response>\n12 degrees\n</tool_response>" in speaking.prompt()
    assert '{"name": "get_weather", "arguments": {"city": "Pärís \\"1\\""}}' in speaking.prompt()


def test_a_named_function_is_the_only_one_in_the_grammar(speaking: Speaking) -> None:
    speaking.says('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    choice: Any = {"type": "function", "function": {"name": "now"}}
    answer = speaking.openai.chat.completions.create(
        model=MODEL, messages=ASK, tools=[WEATHER, NOW], tool_choice=choice, max_tokens=200
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert "now" in speaking.guide().grammar
    assert "get_weather" not in speaking.guide().grammar


def test_allowed_tools_are_those_of_the_grammar(speaking: Speaking) -> None:
    speaking.says("No call.")
    allowed = [{"type": "function", "function": {"name": "get_weather"}}]
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
    speaking.openai.chat.completions.create(
        model=MODEL, messages=ASK, tools=[WEATHER, NOW], tool_choice=choice, max_tokens=200
    )
    assert '\\"now\\"' not in speaking.guide().grammar
    assert '"name": "now"' in speaking.prompt()


def test_tool_choice_none_leaves_the_tools_out(speaking: Speaking) -> None:
    speaking.says("No call.")
    speaking.openai.chat.completions.create(
        model=MODEL, messages=ASK, tools=[WEATHER], tool_choice="none", max_tokens=20
    )
    assert "get_weather" not in speaking.prompt()
    assert speaking.guide() is None


def test_a_custom_tool_has_its_input_as_text(speaking: Speaking) -> None:
    speaking.says('<tool_call>\n{"name": "run", "arguments": {"input": "print(\\"a\\")\\n"}}\n</tool_call>')
    tool: Any = {"type": "custom", "custom": {"name": "run", "description": "Runs Python"}}
    fields: Any = {"model": MODEL, "messages": ASK, "tools": [tool], "max_tokens": 200}
    answer = speaking.openai.chat.completions.create(**fields)
    [call] = answer.choices[0].message.tool_calls or ()
    assert call.type == "custom"
    assert call.custom.input == 'print("a")\n'
    streamed = [chunk.choices[0].delta for chunk in speaking.openai.chat.completions.create(**fields, stream=True)]
    deltas: Any = [one.model_dump()["custom"] for delta in streamed for one in delta.tool_calls or ()]
    assert "".join(delta["input"] for delta in deltas) == 'print("a")\n'


def test_a_result_of_an_unknown_call_is_refused_by_name(speaking: Speaking) -> None:
    messages: Any = [*ASK, {"role": "tool", "tool_call_id": "call_x", "content": "12"}]
    with pytest.raises(openai.BadRequestError) as refused:
        speaking.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
    assert refused.value.param == "messages[1].tool_call_id"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, "additionalProperties"),
        ({"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": False}, "'a'"),
    ],
)
def test_a_strict_schema_has_the_limits_of_openai(speaking: Speaking, schema: dict[str, Any], said: str) -> None:
    format_: Any = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=said) as refused:
        speaking.openai.chat.completions.create(model=MODEL, messages=ASK, response_format=format_, max_tokens=20)
    assert refused.value.param == "response_format.json_schema.schema"


def test_a_keyword_that_cannot_be_guided_is_named_before_the_hold(speaking: Speaking) -> None:
    before = speaking.stack.holds()
    schema = {"type": "object", "properties": {"a": {"type": "array", "contains": {"type": "string"}}}}
    format_: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="contains"):
        speaking.openai.chat.completions.create(model=MODEL, messages=ASK, response_format=format_, max_tokens=20)
    assert speaking.stack.holds() == before


# ---- Anthropic

TOOL: Any = {"name": "get_weather", "description": "Weather", "input_schema": CITY}


def test_a_message_has_its_calls_as_blocks(speaking: Speaking) -> None:
    speaking.says(ONE)
    message = speaking.anthropic.messages.create(model=MODEL, messages=ASK, tools=[TOOL], max_tokens=200)
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["text", "tool_use"]
    call: Any = message.content[1]
    assert (call.name, call.input) == ("get_weather", {"city": 'Pärís "1"'})
    assert call.id.startswith("toolu_")


@pytest.mark.parametrize("text", [ONE, TWO, THOUGHT + TWO, "No call.", ""])
def test_a_stream_of_blocks_accumulates_to_the_whole_message(speaking: Speaking, text: str) -> None:
    speaking.says(text)
    tools: Any = [TOOL, {"name": "now", "input_schema": {"type": "object"}}]
    fields: Any = {
        "model": MODEL,
        "messages": ASK,
        "tools": tools,
        "max_tokens": 1500,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    whole = speaking.anthropic.messages.create(**fields)
    with speaking.anthropic.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason

    def shown(message: Any) -> list[dict[str, Any]]:
        absent = {"id", "parsed_output", "citations"}
        return [{k: v for k, v in block.to_dict().items() if k not in absent} for block in message.content]

    assert shown(final) == shown(whole)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_thinking_is_a_block_with_a_signature(speaking: Speaking) -> None:
    speaking.says(THOUGHT + "Sunny.")
    fields: Any = {"model": MODEL, "messages": ASK, "max_tokens": 1500}
    message = speaking.anthropic.messages.create(**fields, thinking={"type": "enabled", "budget_tokens": 1024})
    thinking: Any = message.content[0]
    assert (thinking.type, thinking.thinking) == ("thinking", "Paris is in France.")
    assert thinking.signature
    assert speaking.guide().reasoning_max == 1024
    assert message.usage.output_tokens_details is not None
    again: Any = [*ASK, {"role": "assistant", "content": message.content}, {"role": "user", "content": "Why?"}]
    speaking.anthropic.messages.create(model=MODEL, messages=again, max_tokens=100)
    assert "<think>\nParis is in France.\n</think>\n\nSunny." in speaking.prompt()
    assert speaking.prompt().rstrip().endswith("</think>")  # without `thinking` the model does not think


def test_a_result_goes_back_as_a_block(speaking: Speaking) -> None:
    speaking.says(ONE)
    message = speaking.anthropic.messages.create(model=MODEL, messages=ASK, tools=[TOOL], max_tokens=200)
    call: Any = message.content[1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "no such city", "is_error": True}
    history: Any = [
        *ASK,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    speaking.says("It rains.")
    speaking.anthropic.messages.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=200)
    assert "<tool_response>\nError: no such city\n</tool_response>" in speaking.prompt()
    assert "And now?" in speaking.prompt()


def test_a_result_of_an_unknown_block_is_refused_by_name(speaking: Speaking) -> None:
    history: Any = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_x", "content": "1"}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].tool_use_id"):
        speaking.anthropic.messages.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=200)


def test_the_input_of_a_call_that_was_cut_has_its_whole_members(speaking: Speaking) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2'
    speaking.says(text, reason="length")
    message = speaking.anthropic.messages.create(model=MODEL, messages=ASK, tools=[TOOL], max_tokens=200)
    assert message.stop_reason == "max_tokens"
    call: Any = message.content[0]
    assert call.input["city"] == "Paris"


def test_an_output_format_guides_the_message(speaking: Speaking) -> None:
    speaking.says('{"city": "Rome"}')
    config: Any = {"format": {"type": "json_schema", "schema": CITY}}
    message = speaking.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=200, output_config=config)
    assert message.content[0].to_dict() == {"type": "text", "text": '{"city": "Rome"}'}
    assert "json_schema" in speaking.guide().grammar


@pytest.mark.parametrize(
    ("choice", "required"), [({"type": "any"}, True), ({"type": "tool", "name": "get_weather"}, True), (None, False)]
)
def test_a_choice_of_tools_decides_the_grammar(speaking: Speaking, choice: Any, required: bool) -> None:
    speaking.says(ONE.partition("\n")[2])
    fields: Any = {} if choice is None else {"tool_choice": choice}
    speaking.anthropic.messages.create(model=MODEL, messages=ASK, tools=[TOOL], max_tokens=200, **fields)
    assert ("TEXT" not in speaking.guide().grammar) == required


# ---- books


def test_a_client_that_leaves_inside_arguments_pays_for_what_it_received(speaking: Speaking) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "' + "Paris and " * 40

    def slowly(submit: Submit) -> Said:
        frames = list(says_text(speaking.tokenizer, text, reason="length")(submit))
        return [(0.02 * at, frame) for at, (_, frame) in enumerate(frames[:-1])]

    speaking.stack.says(slowly)
    body = {"model": MODEL, "messages": ASK, "tools": [WEATHER], "max_tokens": 400, "stream": True}
    url, headers = f"{speaking.stack.url}/v1/chat/completions", speaking.stack.headers()
    received = ""
    with httpx.stream("POST", url, headers=headers, json=body, timeout=30) as answer:
        request_id = answer.headers["x-request-id"]
        for line in answer.iter_lines():
            received += line
            if received.count("arguments") > 8:
                break
    eventually(lambda: speaking.stack.usage(request_id) is not None)
    row = speaking.stack.usage(request_id)
    assert row is not None
    assert 8 < row.completion_tokens < 400
    assert speaking.stack.open_holds() == 0
