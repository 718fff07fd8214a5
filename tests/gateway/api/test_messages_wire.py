"""Message requests: the messages that the template gets, and what a count takes."""

from __future__ import annotations

import msgspec
import pytest

from gateway.api.generation_request import ChatPrompt
from gateway.api.messages_wire import CountRequest, parse_count
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest
from support.gateway.dialect_requests import BLOCK, MESSAGES_RETURNED, USER, messages


def test_what_the_template_gets() -> None:
    request = messages(system=[BLOCK, BLOCK], messages=[USER, MESSAGES_RETURNED])
    assert request.prompt() == ChatPrompt(
        [
            {"role": "system", "content": "Hello.\nHello."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
        ],
        add_generation_prompt=False,
        continue_final=True,
    )
    assert messages().prompt() == ChatPrompt([{"role": "user", "content": "Hi"}])


def test_what_may_be_counted() -> None:
    asked = {"model": "m", "messages": [USER], "tools": []}
    assert isinstance(parse_count(msgspec.json.encode(asked), UnknownFields()), CountRequest)
    with pytest.raises(InvalidRequest) as refused:
        parse_count(msgspec.json.encode(asked | {"max_tokens": 5}), UnknownFields())
    assert refused.value.param == "max_tokens"
