"""What a chat request may contain, value by value: accepted, or refused by the name of the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api import chat_wire
from gateway.api.parsing import MESSAGE_PART_CHARS
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest

USER = {"role": "user", "content": "Hi"}
RETURNED = {
    "role": "assistant",
    "content": "Hello.",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
}


def parse(**fields: Any) -> chat_wire.ChatRequest:
    return chat_wire.parse_chat(msgspec.json.encode({"model": "m", "messages": [USER], **fields}), UnknownFields())


ACCEPTED: list[dict[str, Any]] = [
    {"max_tokens": 1},
    {"max_completion_tokens": 10},
    {"max_tokens": 5, "max_completion_tokens": 5},
    {"temperature": 0},
    {"temperature": 2},
    {"temperature": 0.7, "top_p": 0.1},
    {"top_p": 0},
    {"seed": -1},
    {"seed": 2**63 - 1},
    {"stop": "END"},
    {"stop": []},
    {"stop": ["a", "b", "c", "d"]},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": False}},
    {"stream": True, "stream_options": {"include_obfuscation": True, "continuous_usage_stats": False}},
    {"stream": False},
    {"service_tier": "flex"},
    {"user": "u-1"},
    {"metadata": {"a": "b"}},
    {"safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    {"n": 1},
    {"n": 8},
    {"logprobs": False},
    {"top_logprobs": 0},
    {"tools": []},
    {"functions": []},
    {"tool_choice": "none"},
    {"tool_choice": "auto"},
    {"function_call": "none"},
    {"parallel_tool_calls": True},
    {"response_format": {"type": "text"}},
    {"frequency_penalty": 0, "presence_penalty": 0.0},
    {"logit_bias": {}},
    {"modalities": ["text"]},
    {"store": False},
    {"verbosity": "medium"},
    {"top_k": -1, "min_p": 0, "repetition_penalty": 1.0},
    {"top_k": 50, "min_p": 1, "repetition_penalty": 10},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"logit_bias": {"0": -100, "31999": 100.0}},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 20},
    {"min_tokens": 0, "ignore_eos": True, "stop_token_ids": [], "skip_special_tokens": False},
    {"min_tokens": 5, "stop_token_ids": [1, 2]},
    {"add_generation_prompt": True, "continue_final_message": False},
    {"add_generation_prompt": False},
    {"messages": [RETURNED | {"provider_specific_fields": {"refusal": None}}]},  # litellm gives it back
    {"messages": [RETURNED | {"provider_specific_fields": None}]},
    {"messages": [USER, RETURNED], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [USER, RETURNED], "continue_final_message": True},
    {"include_stop_str_in_output": False, "use_beam_search": False, "length_penalty": 1.0, "echo": False},
    {"moderation": None, "prompt_cache_options": {}},
    {"return_token_ids": False, "priority": 0, "include_reasoning": True, "add_special_tokens": False},
    {"structured_outputs": None, "guided_json": None, "return_tokens_as_token_ids": False},
    {"chat_template_kwargs": {"enable_thinking": False, "effort": 0.5, "style": "short", "none": None}},
    {"provider": {}, "top_a": None, "transforms": [], "suffix": ""},
    {"messages": [RETURNED | {"parsed": None, "reasoning_content": ""}]},  # the openai SDK's own, sent back
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": None}]}]},
    {"messages": [{"role": "system", "content": "S"}, USER]},
    {"messages": [{"role": "developer", "content": "S", "name": None}, USER]},
    {
        "messages": [
            {"role": "user", "content": "x", "name": "Bob"},
            {"role": "assistant", "content": "y", "name": "Al"},
        ]
    },
    {"messages": [USER, RETURNED, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "user", "content": ""}]},
    {"messages": [USER, RETURNED | {"tool_calls": []}]},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"model": "m" * 257}, "model"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [USER] * 4097}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "name": "B" * 257}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": "x", "foo": 1}]}, "messages[0].foo"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [RETURNED | {"tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
    ({"messages": [RETURNED | {"refusal": "no"}]}, "messages[0].refusal"),
    (
        {"messages": [RETURNED | {"provider_specific_fields": {"refusal": "no"}}]},
        "messages[0].provider_specific_fields",
    ),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "10"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": "x" * 513}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo"),
    ({"service_tier": 1}, "service_tier"),
    ({"user": 5}, "user"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"n": True}, "n"),
    ({"n": 1.5}, "n"),
    ({"logprobs": 0}, "logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 0.5}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 10.1}, "repetition_penalty"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"skip_special_tokens": "no"}, "skip_special_tokens"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"echo": True}, "echo"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"presence_penalty": False}, "presence_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"logit_bias": {"five": 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"store": True}, "store"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"best_of": 1}, "best_of"),
    ({"include_reasoning": False}, "include_reasoning"),
    ({"add_special_tokens": True}, "add_special_tokens"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    ({"chat_template_kwargs": {"a": []}}, "chat_template_kwargs.a"),
    ({"chat_template_kwargs": {"a": "x" * 1025}}, "chat_template_kwargs.a"),
    ({"chat_template_kwargs": {f"a{i}": 1 for i in range(17)}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x" * 257: 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ({"top_a": 0.5}, "top_a"),
    ({"top_a": 0}, "top_a"),
    ({"keep_alive": False}, "keep_alive"),
    ({"Model": "m"}, "Model"),
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_accepted(fields: dict[str, Any]) -> None:
    parse(**fields)


@pytest.mark.parametrize(
    "field", [name for name in chat_wire.ChatRequest.__struct_fields__ if name not in ("messages", "model")]
)
def test_null_is_neutral_for_every_field(field: str) -> None:
    parse(**{field: None})


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}]} trailing',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"model":"m","messages":' + b"[" * 200_000,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":' + b'{"a":' * 200_000,
    ],
    ids=lambda body: repr(body[-20:]),
)
def test_bytes_that_are_no_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        chat_wire.parse_chat(body, UnknownFields())


def test_what_the_template_gets() -> None:
    request = parse(
        messages=[
            {"role": "developer", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            RETURNED,
        ]
    )
    assert chat_wire.chat_messages(request) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "Hello."},
    ]


def test_a_long_name_or_value_is_cut_in_the_refusal() -> None:
    """Matched whole, the second and third take minutes."""
    nested = "unknown field `" * 33_000 + "x - at `$"
    for fields in ({"messages": [USER | {"x" * 200_000: 1}]}, {nested: 1}, {"messages": [USER | {"role": nested}]}):
        with pytest.raises(InvalidRequest) as refused:
            parse(**fields)
        assert len(refused.value.message) < 2 * MESSAGE_PART_CHARS + 100
        assert "…" in refused.value.message


def test_biases_are_numbers_in_their_bounds() -> None:
    biases = parse(logit_bias={"1": 1, "2": -100, "3": 1e-320}).to_generation().sampling.logit_bias
    assert biases == {1: 1.0, 2: -100.0, 3: 1e-320}
    for wrong in (True, "1", None, [1], 100.5, 10**30):
        with pytest.raises(InvalidRequest) as refused:
            parse(logit_bias={"5": 1, "6": wrong})
        assert refused.value.param == "logit_bias"
