"""What a message request may contain, value by value: accepted, or refused by the name of the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api.generation_request import ChatPrompt
from gateway.api.messages_wire import CountRequest, MessagesRequest, parse_count, parse_messages
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest

USER = {"role": "user", "content": "Hi"}
BLOCK = {"type": "text", "text": "Hello."}
RETURNED = {"role": "assistant", "content": [BLOCK | {"citations": None}]}


def parse(**fields: Any) -> MessagesRequest:
    return parse_messages(
        msgspec.json.encode({"model": "m", "messages": [USER], "max_tokens": 5, **fields}), UnknownFields()
    )


ACCEPTED: list[dict[str, Any]] = [
    {"system": "S"},
    {"system": [BLOCK, BLOCK | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
    {"system": []},
    {"messages": [{"role": "user", "content": [BLOCK | {"cache_control": {"type": "ephemeral"}}]}]},
    {"messages": [USER, RETURNED, USER]},
    {"messages": [USER, RETURNED]},
    {"messages": [{"role": "system", "content": "S"}, USER]},
    {"stop_sequences": ["a"] * 16, "top_k": 5, "top_p": 0.5, "temperature": 1},
    {"metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}},
    {"metadata": {}},
    {"thinking": {"type": "disabled"}, "tools": [], "tool_choice": {"type": "auto"}},
    {"stream": True, "service_tier": "standard_only"},
    {"service_tier": "auto"},
    {"betas": [], "mcp_servers": [], "inference_geo": "global", "speed": "standard", "output_config": {}},
    {"user_profile_id": "u", "workspace_id": "w"},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [BLOCK | {"x": 1}]}]}, "messages[0].content[0].x"),
    (
        {"messages": [{"role": "user", "content": [BLOCK | {"cache_control": {"type": "for ever"}}]}]},
        "messages[0].content[0].cache_control.type",
    ),
    ({"messages": [{"role": "user", "content": [BLOCK | {"citations": [1]}]}]}, "messages[0].content[0].citations"),
    ({"system": 5}, "system"),
    ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
    ({"temperature": 1.1}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"top_p": 2}, "top_p"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": "a"}, "stop_sequences"),
    ({"metadata": {"x": "u"}}, "metadata.x"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"tools": [{"name": "t", "input_schema": {}}]}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"container": "c"}, "container"),
    ({"n": 2}, "n"),
    ({"seed": 2}, "seed"),
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_accepted(fields: dict[str, Any]) -> None:
    parse(**fields).to_generation()


@pytest.mark.parametrize(
    "field", [name for name in MessagesRequest.__struct_fields__ if name not in ("messages", "model", "max_tokens")]
)
def test_null_is_neutral_for_every_field(field: str) -> None:
    parse(**{field: None}).to_generation()


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert param in refused.value.message


def test_what_the_template_gets() -> None:
    request = parse(system=[BLOCK, BLOCK], messages=[USER, RETURNED])
    assert request.prompt() == ChatPrompt(
        [
            {"role": "system", "content": "Hello.\nHello."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
        ],
        add_generation_prompt=False,
        continue_final=True,
    )
    assert parse().prompt() == ChatPrompt([{"role": "user", "content": "Hi"}])


def test_what_may_be_counted() -> None:
    asked = {"model": "m", "messages": [USER], "tools": []}
    assert isinstance(parse_count(msgspec.json.encode(asked), UnknownFields()), CountRequest)
    with pytest.raises(InvalidRequest) as refused:
        parse_count(msgspec.json.encode(asked | {"max_tokens": 5}), UnknownFields())
    assert refused.value.param == "max_tokens"
