"""Message requests: the messages that the template gets, and what a count takes."""

from __future__ import annotations

import msgspec
import pytest

from gateway.api.generation_request import ChatPrompt
from gateway.api.messages_wire import CountRequest, parse_count
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest
from gateway.tools.definitions import ReasoningRequest
from support.gateway.dialect_requests import BLOCK, CALL, MESSAGES_RETURNED, RESULT, USER, messages


def test_what_the_template_gets() -> None:
    request = messages(system=[BLOCK, BLOCK], messages=[USER, MESSAGES_RETURNED])
    prompt = request.prompt()
    assert prompt.messages == [
        {"role": "system", "content": "Hello.\nHello."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]
    assert (prompt.add_generation_prompt, prompt.continue_final) == (False, True)
    thinks_on_request = ReasoningRequest(enabled=False, field="thinking", effort_field="output_config.effort")
    assert messages().prompt() == ChatPrompt([{"role": "user", "content": "Hi"}], reasoning=thinks_on_request)


def test_calls_and_results_are_messages_of_their_own() -> None:
    blocks = [RESULT | {"is_error": True}, BLOCK]
    request = messages(
        messages=[USER, {"role": "assistant", "content": [BLOCK, CALL]}, {"role": "user", "content": blocks}]
    )
    call = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {}}}
    assert request.prompt().messages[1:] == [
        {"role": "assistant", "content": "Hello.", "tool_calls": [call]},
        {"role": "tool", "content": "Error: 1", "tool_call_id": "toolu_1", "name": "f"},
        {"role": "user", "content": "Hello."},
    ]


def test_what_may_be_counted() -> None:
    asked = {"model": "m", "messages": [USER], "tools": []}
    assert isinstance(parse_count(msgspec.json.encode(asked), UnknownFields()), CountRequest)
    with pytest.raises(InvalidRequest) as refused:
        parse_count(msgspec.json.encode(asked | {"max_tokens": 5}), UnknownFields())
    assert refused.value.param == "max_tokens"
