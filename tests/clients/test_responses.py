"""OpenAI's Responses API through the SDK, over a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from billing.accounts import tenants
from gateway.api.responses_answers import ResponseObject
from support.gateway.speaking import NOW, ONE, THOUGHT, TWO, WEATHER, Speaking, start_speaking
from support.gateway.stored import opt_in
from support.stack import MODEL


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    yield from start_speaking(tmp_path_factory.mktemp("responses"))


def flat(tool: dict[str, Any]) -> Any:
    """A chat completion's tool as the Responses API has it."""
    return {"type": "function", **tool["function"]}


def said(item: Any) -> tuple[Any, ...]:
    return item.type, getattr(item, "name", None), getattr(item, "arguments", None)


TOOLS: Any = [flat(WEATHER), flat(NOW)]


def test_a_whole_response_has_its_text_and_its_calls(speaking: Speaking) -> None:
    speaking.says(TWO)
    response = speaking.openai.responses.create(
        model=MODEL, input="What is it like?", instructions="Be short.", tools=TOOLS, metadata={"a": "b"}
    )
    assert response.status == "completed"
    assert response.output_text == "I look.\n"
    calls: list[Any] = [item for item in response.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_weather", "now"]
    assert json.loads(calls[0].arguments) == {"city": 'Pärís "1"'}
    assert calls[1].arguments == "{}"
    assert len({call.call_id for call in calls} | {call.id for call in calls}) == 4
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.output_tokens == len(speaking.tokenizer.encode(TWO)) + 1
    assert (response.metadata, response.instructions) == ({"a": "b"}, "Be short.")
    assert "Be short." in speaking.prompt()
    Response.model_validate(response.model_dump())
    raw = speaking.openai.responses.with_raw_response.create(model=MODEL, input="a", tools=TOOLS)
    msgspec.json.decode(raw.content, type=ResponseObject)  # as /schema describes it


@pytest.mark.parametrize("text", [ONE, TWO, THOUGHT + TWO, "No call."])
def test_a_stream_builds_the_whole_response(speaking: Speaking, text: str) -> None:
    speaking.says(text)
    fields: Any = {"model": MODEL, "input": "What is it like?", "tools": TOOLS, "max_output_tokens": 300}
    whole = speaking.openai.responses.create(**fields)
    with speaking.openai.responses.stream(**fields) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert final.output_text == whole.output_text
    done: list[Any] = [event.item for event in events if event.type == "response.output_item.done"]
    assert [said(item) for item in done] == [said(item) for item in whole.output]
    output: list[Any] = list(final.output)
    assert [item.id for item in done] == [item.id for item in output]


def test_a_conversation_goes_on_with_the_items_of_the_answer(speaking: Speaking) -> None:
    speaking.says(THOUGHT + ONE)
    items: list[Any] = [{"role": "user", "content": "What is it like in Paris?"}]
    first = speaking.openai.responses.create(model=MODEL, input=items, tools=TOOLS)
    [call] = [item for item in first.output if item.type == "function_call"]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"})
    speaking.says("It is mild.")
    second = speaking.openai.responses.create(model=MODEL, input=items, tools=TOOLS)
    assert second.output_text == "It is mild."
    assert "18 degrees" in speaking.prompt()
    assert "get_weather" in speaking.prompt()


def test_reasoning_is_held_by_the_client_encrypted(speaking: Speaking) -> None:
    """Also in a body with more values than the event loop reads."""
    for metadata in ({}, {str(number): "x" for number in range(4000)}):
        speaking.says(THOUGHT + ONE)
        items: list[Any] = [{"role": "user", "content": "What is it like in Paris?"}]
        fields: Any = {"model": MODEL, "tools": TOOLS, "store": False, "include": ["reasoning.encrypted_content"]}
        fields["metadata"] = metadata
        with speaking.openai.responses.stream(input=items, **fields) as stream:
            first = stream.get_final_response()
        reasoning, call = first.output[0], first.output[-1]
        assert reasoning.type == "reasoning"
        assert call.type == "function_call"
        assert reasoning.encrypted_content
        assert "Paris is in France." not in reasoning.encrypted_content
        held = {"type": "reasoning", "summary": [], "encrypted_content": reasoning.encrypted_content}
        items += [held, call.model_dump(exclude_none=True)]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"})
        speaking.says("It is mild.")
        raw = speaking.openai.responses.with_raw_response.create(input=items, **fields)
        assert "laneway-ignored" not in raw.headers
        assert "<think>\nParis is in France.\n</think>" in speaking.prompt()
        # A blob that was changed is refused before anything is held, and that of another tenant.
        held["encrypted_content"] = reasoning.encrypted_content[:-8] + "AAAAAAA="
        with pytest.raises(openai.BadRequestError) as refusal:
            speaking.openai.responses.create(input=items, **fields)
        assert (refusal.value.code, refusal.value.param) == ("invalid_encrypted_content", "input[1].encrypted_content")
        held["encrypted_content"] = reasoning.encrypted_content
        with pytest.raises(openai.BadRequestError) as refusal:
            speaking.openai.with_options(api_key=speaking.stack.keys["globex"]).responses.create(input=items, **fields)
        assert refusal.value.code == "invalid_encrypted_content"


def test_a_conversation_is_compacted(speaking: Speaking) -> None:
    """To the user's messages and a summary, which the next turn reads."""
    items: list[Any] = [
        {"role": "user", "content": "What is it like in Paris?"},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "18 degrees"},
        {"role": "assistant", "content": "It is mild."},
    ]
    speaking.says(THOUGHT + "Paris has 18 degrees.")
    compacted = speaking.openai.responses.compact(model=MODEL, input=items, instructions="Be short.")
    assert (compacted.object, len(compacted.output)) == ("response.compaction", 2)
    assert "18 degrees" in speaking.prompt()
    assert "Summarize the conversation" in speaking.prompt()
    user: Any
    summary: Any
    [user, summary] = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    assert (user["role"], user["content"][0]["text"]) == ("user", "What is it like in Paris?")
    assert summary["type"] == "compaction"
    assert "18 degrees" not in summary["encrypted_content"]
    usage = compacted.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 20
    speaking.says("Mild.")
    ask: Any = {"role": "user", "content": "And tomorrow?"}
    speaking.openai.responses.create(model=MODEL, input=[user, summary, ask])
    assert "Summary of the conversation so far:\n\nParis has 18 degrees." in speaking.prompt()
    assert "France" not in speaking.prompt()
    reasoning: Any = {"type": "reasoning", "summary": [], "encrypted_content": summary["encrypted_content"]}
    raw = speaking.openai.responses.with_raw_response.create(model=MODEL, input=[user, reasoning])
    assert raw.headers["laneway-ignored"] == "input[1].encrypted_content", "a summary is no reasoning"
    for wrong in ("AA", summary["encrypted_content"][:-4]):
        changed: Any = {**summary, "encrypted_content": wrong}
        with pytest.raises(openai.BadRequestError) as refusal:
            speaking.openai.responses.create(model=MODEL, input=[user, changed])
        assert refusal.value.code == "invalid_encrypted_content"


def test_the_tokens_of_an_input_are_counted(speaking: Speaking) -> None:
    fields: Any = {"model": MODEL, "input": "What is it like?", "instructions": "Be short.", "tools": TOOLS}
    speaking.says("Mild.")
    counted = speaking.openai.responses.input_tokens.count(**fields)
    usage = speaking.openai.responses.create(**fields).usage
    assert usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", usage.input_tokens)


def test_a_response_that_is_cut_is_incomplete(speaking: Speaking) -> None:
    speaking.says(ONE)
    size = len(speaking.tokenizer.encode(ONE)) - 6
    response = speaking.openai.responses.create(model=MODEL, input="a", tools=TOOLS, max_output_tokens=size)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    [call] = [item for item in response.output if item.type == "function_call"]
    assert call.status == "incomplete"


def test_a_parsed_text_follows_its_schema(speaking: Speaking) -> None:
    class City(BaseModel):
        city: str

    speaking.says('{"city": "Paris"}')
    response = speaking.openai.responses.parse(model=MODEL, input="Where?", text_format=City)
    assert response.output_parsed == City(city="Paris")


def test_what_the_sdk_parsed_is_sent_back(speaking: Speaking) -> None:
    """LangChain sends the parsed items as they are, with what the SDK added."""
    speaking.says(ONE)
    tools: Any = [flat(WEATHER) | {"strict": True}]
    first = speaking.openai.responses.parse(model=MODEL, input="Where?", tools=tools)
    [call] = [item for item in first.output if item.type == "function_call"]
    [text] = [item for item in first.output if item.type == "message"]
    sent: Any = [text.model_dump(), call.model_dump()]
    assert sent[1]["parsed_arguments"] == {"city": 'Pärís "1"'}
    sent[0]["content"][0]["parsed"] = {"city": "Paris"}
    items = [{"role": "user", "content": "Where?"}, *sent]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"})
    speaking.says("It is mild.")
    assert speaking.openai.responses.create(model=MODEL, input=items, tools=tools).output_text == "It is mild."


def test_a_tool_of_a_namespace_has_its_name_apart(speaking: Speaking) -> None:
    speaking.says(ONE.replace("get_weather", "sky__get_weather"))
    tools: Any = [{"type": "namespace", "name": "sky", "tools": [flat(WEATHER)]}, {"type": "web_search"}]
    raw = speaking.openai.responses.with_raw_response.create(model=MODEL, input="a", tools=tools)
    body = json.loads(raw.text)
    [call] = [item for item in body["output"] if item["type"] == "function_call"]
    assert (call["namespace"], call["name"]) == ("sky", "get_weather")
    assert json.loads(call["arguments"]) == {"city": 'Pärís "1"'}
    assert raw.headers["laneway-ignored"] == "tools[1]"


def test_tools_may_be_items_of_the_input(speaking: Speaking) -> None:
    """Codex has all of its tools there, for models of the newest families."""
    speaking.says(ONE.replace("get_weather", "sky__get_weather"))
    sky = {"type": "namespace", "name": "sky", "tools": [flat(WEATHER) | {"defer_loading": True}]}
    items: Any = [
        {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [sky]},
        {"role": "user", "content": [{"type": "input_text", "text": "Where?", "prompt_cache_breakpoint": None}]},
    ]
    fields: Any = {"reasoning": {"context": "all_turns"}, "prompt_cache_options": {"mode": "implicit"}}
    response = speaking.openai.responses.create(model=MODEL, input=items, tools=[flat(NOW)], extra_body=fields)
    [call] = [item for item in response.output if item.type == "function_call"]
    assert (call.namespace, call.name) == ("sky", "get_weather")
    assert [tool.type for tool in response.tools] == ["function", "namespace"]
    assert "sky__get_weather" in speaking.prompt()


def test_a_large_body_is_read_by_a_process(speaking: Speaking) -> None:
    speaking.says("Yes.")
    items: Any = [{"role": "user", "content": "a"} for _ in range(1200)]
    tools: Any = [flat(WEATHER) | {"name": f"tool_{n}"} for n in range(100)]
    with pytest.raises(openai.BadRequestError) as refusal:  # the fields are read; the model's context is too short
        speaking.openai.responses.create(model=MODEL, input=items, tools=tools)
    assert refusal.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refusal:
        speaking.openai.responses.create(model=MODEL, input=items * 3)
    assert refusal.value.param == "input"


def test_a_repeated_call_gets_the_first_answer(speaking: Speaking) -> None:
    fields: Any = {"model": MODEL, "input": "a", "extra_headers": {"Idempotency-Key": "responses-1"}}
    speaking.says("First.")
    first = speaking.openai.responses.create(**fields)
    speaking.says("Second.")
    assert speaking.openai.responses.create(**fields) == first
    assert first.output_text == "First."


def test_a_stored_conversation_goes_on(speaking: Speaking) -> None:
    client, stack = speaking.openai, speaking.stack
    with pytest.raises(openai.BadRequestError, match="not stored for this tenant"):
        client.conversations.create()
    stack.write(lambda c: tenants.update_tenant(c, stack.tenants["acme"], store_responses_s=3600))
    stack.known()
    made = client.conversations.create(items=[{"role": "user", "content": "I am in Paris."}], metadata={"a": "b"})
    speaking.says(ONE)
    first = client.responses.create(model=MODEL, input="What is it like?", tools=TOOLS, conversation=made.id)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    raw = client.responses.with_raw_response.create(model=MODEL, input="a", tools=TOOLS, conversation=made.id)
    msgspec.json.decode(raw.content, type=ResponseObject)  # as /schema describes it
    items: list[Any] = list(client.conversations.items.list(made.id, order="asc", limit=2))
    turn = ["message", "message", "function_call"]
    assert [item.type for item in items] == ["message", *turn, *turn]
    output: Any = [{"type": "function_call_output", "call_id": items[-1].call_id, "output": "18 degrees"}]
    client.conversations.items.create(made.id, items=output)
    speaking.says("It is mild.")
    with client.responses.stream(model=MODEL, input="And?", tools=TOOLS, conversation={"id": made.id}) as stream:
        assert stream.get_final_response().output_text == "It is mild."
    prompt = speaking.prompt()
    assert prompt.index("I am in Paris.") < prompt.index("18 degrees") < prompt.index("And?")
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input="a", conversation=made.id)
    stack.write(lambda c: tenants.update_tenant(c, stack.tenants["acme"], store_responses_s=None))
    stack.known()


def test_refusals_name_the_field(speaking: Speaking) -> None:
    client = speaking.openai
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"background": True}, "background", None),
        ({"tool_choice": {"type": "web_search_preview"}, "tools": TOOLS}, "tool_choice", None),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id", None),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "unsupported_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", None),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
    ]
    for fields, param, code in cases:
        with pytest.raises(openai.BadRequestError) as refusal:
            client.responses.create(**({"model": MODEL, "input": "a"} | fields))
        assert str(refusal.value.param).startswith(param), fields
        assert code is None or refusal.value.code == code, fields


def test_a_response_in_the_background_as_openais_guide_has_it(speaking: Speaking) -> None:
    """Polled until it has ended; a stream that breaks and is continued; a cancel."""
    client, stack = speaking.openai, speaking.stack
    opt_in(stack, "acme", 3600)
    stack.known()
    try:
        speaking.says(THOUGHT + ONE)
        response = client.responses.create(model=MODEL, input="Weather?", tools=TOOLS, background=True)
        while response.status in {"queued", "in_progress"}:
            response = client.responses.retrieve(response.id)
        assert response.output[-1].type == "function_call"
        with client.responses.create(model=MODEL, input="a", background=True, stream=True) as stream:
            begun = [next(stream) for _ in range(4)]
        assert begun[0].type == "response.created"
        streamed = begun[0].response
        resumed = client.responses.retrieve(streamed.id, stream=True, starting_after=begun[-1].sequence_number)
        events = list(resumed)
        assert events[0].sequence_number == begun[-1].sequence_number + 1
        assert events[-1].type == "response.completed"
        assert client.responses.retrieve(streamed.id) == events[-1].response
        assert client.responses.cancel(response.id).status == "completed"
    finally:
        opt_in(stack, "acme", None)
        stack.known()
