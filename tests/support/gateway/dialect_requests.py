"""The values that a request of each dialect may contain: accepted, or refused by the name of the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.api import chat_wire, completions_wire, messages_wire
from gateway.api.unknown_fields import UnknownFields

# The change of a test in an otherwise valid request.
Fields = dict[str, Any]

USER = {"role": "user", "content": "Hi"}
CHAT_RETURNED: Fields = {
    "role": "assistant",
    "content": "Hello.",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
}
BLOCK = {"type": "text", "text": "Hello."}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}
PAST_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL: Fields = {"type": "function", "function": {"name": "f"}}
MESSAGES_RETURNED = {"role": "assistant", "content": [BLOCK | {"citations": None}]}


def chat(**fields: Any) -> chat_wire.ChatRequest:
    return chat_wire.parse_chat(msgspec.json.encode({"model": "m", "messages": [USER], **fields}), UnknownFields())


def messages(**fields: Any) -> messages_wire.MessagesRequest:
    return messages_wire.parse_messages(
        msgspec.json.encode({"model": "m", "messages": [USER], "max_tokens": 5, **fields}), UnknownFields()
    )


def completions(**fields: Any) -> completions_wire.CompletionRequest:
    return completions_wire.parse_completion(
        msgspec.json.encode({"model": "m", "prompt": "Once", **fields}), UnknownFields()
    )


CHAT_ACCEPTED: list[Fields] = [
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
    {"response_format": {"type": "json_object"}},
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"reasoning_effort": "high", "max_reasoning_tokens": 5, "include_reasoning": False},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [PAST_CALL]},
            {"role": "tool", "content": "1", "tool_call_id": "call_1"},
        ]
    },
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
    {"messages": [CHAT_RETURNED | {"provider_specific_fields": {"refusal": None}}]},  # litellm gives it back
    {"messages": [CHAT_RETURNED | {"provider_specific_fields": None}]},
    {"messages": [CHAT_RETURNED | {"provider_specific_fields": {"refusal": None, "reasoning": "I think."}}]},
    {"messages": [CHAT_RETURNED | {"provider_specific_fields": {"thinking_blocks": [{}]}}]},
    {"messages": [USER, CHAT_RETURNED], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [USER, CHAT_RETURNED], "continue_final_message": True},
    {"include_stop_str_in_output": False, "use_beam_search": False, "length_penalty": 1.0, "echo": False},
    {"moderation": None, "prompt_cache_options": {}},
    {"return_token_ids": False, "priority": 0, "include_reasoning": True, "add_special_tokens": False},
    {"structured_outputs": None, "guided_json": None, "return_tokens_as_token_ids": False},
    {"chat_template_kwargs": {"enable_thinking": False, "effort": 0.5, "style": "short", "none": None}},
    {"provider": {}, "top_a": None, "transforms": [], "suffix": ""},
    {"messages": [CHAT_RETURNED | {"parsed": None, "reasoning_content": ""}]},  # the openai SDK's own, sent back
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": None}]}]},
    {"messages": [{"role": "system", "content": "S"}, USER]},
    {"messages": [{"role": "developer", "content": "S", "name": None}, USER]},
    {
        "messages": [
            {"role": "user", "content": "x", "name": "Bob"},
            {"role": "assistant", "content": "y", "name": "Al"},
        ]
    },
    {"messages": [USER, CHAT_RETURNED, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "user", "content": ""}]},
    {"messages": [USER, CHAT_RETURNED | {"tool_calls": []}]},
]

CHAT_REFUSED: list[tuple[Fields, str]] = [
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
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
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
    ({"messages": [CHAT_RETURNED | {"tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].type"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    ({"messages": [CHAT_RETURNED | {"refusal": "no"}]}, "messages[0].refusal"),
    ({"messages": [CHAT_RETURNED | {"provider_specific_fields": "no"}]}, "messages[0].provider_specific_fields"),
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
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"echo": True}, "echo"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [TOOL, TOOL]}, "tools[1]"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [TOOL | {"function": {"name": "f", "strict": True, "parameters": {}}}]}, "tools[0].function.parameters"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
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
    ({"best_of": 1}, "best_of"),
    ({"add_special_tokens": True}, "add_special_tokens"),
    ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
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


MESSAGES_ACCEPTED: list[Fields] = [
    {"system": "S"},
    {"system": [BLOCK, BLOCK | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
    {"system": []},
    {"messages": [{"role": "user", "content": [BLOCK | {"cache_control": {"type": "ephemeral"}}]}]},
    {"messages": [USER, MESSAGES_RETURNED, USER]},
    {"messages": [USER, MESSAGES_RETURNED]},
    {"messages": [{"role": "system", "content": "S"}, USER]},
    {"stop_sequences": ["a"] * 16, "top_k": 5, "top_p": 0.5, "temperature": 1},
    {"metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}},
    {"metadata": {}},
    {"thinking": {"type": "disabled"}, "tools": [], "tool_choice": {"type": "auto"}},
    {"stream": True, "service_tier": "standard_only"},
    {"service_tier": "auto"},
    {"betas": [], "mcp_servers": [], "inference_geo": "global", "speed": "standard", "output_config": {}},
    {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}},
    {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high", "task_budget": {"type": "tokens"}}},
    {"thinking": {"type": "between_tools"}, "speed": "fast", "betas": ["interleaved-thinking-2025-05-14"]},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    {"diagnostics": {"previous_message_id": "msg_1"}, "compaction": {}, "fallbacks": [{"model": "m"}]},
    {"cache_control": {"type": "ephemeral", "scope": "global"}},
    {"user_profile_id": "u", "workspace_id": "w"},
    {
        "tools": [
            {"name": "f", "input_schema": {}},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 1},
        ]
    },
    {"messages": [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT, BLOCK]}]},
    {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
]

MESSAGES_REFUSED: list[tuple[Fields, str]] = [
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
    ({"thinking": {"type": "thorough"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget": 1}}, "thinking.budget"),
    ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
    ({"output_config": {"tone": "dry"}}, "output_config.tone"),
    ({"context_management": "none"}, "context_management"),
    ({"temperature": 1.1}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"top_p": 2}, "top_p"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": "a"}, "stop_sequences"),
    ({"metadata": {"x": "u"}}, "metadata.x"),
    ({"tools": [{"name": "t"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "t", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "u"}}, "tool_choice"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0]"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"container": "c"}, "container"),
    ({"n": 2}, "n"),
    ({"seed": 2}, "seed"),
]


COMPLETIONS_ACCEPTED: list[Fields] = [
    {"prompt": ""},
    {"prompt": ["a", "b"]},
    {"prompt": [1, 2, 3]},
    {"prompt": [[1, 2], [3]]},
    {"prompt": ["a"] * 16, "n": 4},
    {"n": 8, "best_of": 8},
    {"best_of": 1},
    {"echo": True},
    {"echo": False, "logprobs": 20},
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"prompt_logprobs": 0, "max_tokens": 0},
    {"prompt_logprobs": 20, "echo": True, "logprobs": 3},
    {"logprobs": 0},
    {"suffix": ""},
    {"prompt": ["a"] * 64},
    {"prompt": ["a"] * 20},  # LangChain's batches
    {"response_format": {"type": "json_object"}, "priority": 0, "return_token_ids": False},
    {"add_special_tokens": True},
    {"max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "seed": 3},
    {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1, "logit_bias": {"5": 1}},
    {"stop": ["a"], "stop_token_ids": [5], "min_tokens": 1, "ignore_eos": True, "skip_special_tokens": False},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"service_tier": "flex", "user": "u"},
]

COMPLETIONS_REFUSED: list[tuple[Fields, str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": [[5], "a"]}, "prompt"),
    ({"prompt": [[5], 5]}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [{}]}, "prompt[0]"),
    ({"prompt": [["a"]]}, "prompt[0][0]"),
    ({"prompt": ["a"] * 9, "n": 8}, "n"),
    ({"n": 9}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"suffix": "end"}, "suffix"),
    ({"add_special_tokens": False}, "add_special_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": ["Hi"]}, "messages"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"stream_options": {}}, "stream_options"),
]

# Each dialect's parser, and the fields that a request cannot lack.
DIALECTS: dict[str, tuple[Callable[..., Any], type[msgspec.Struct], set[str]]] = {
    "chat": (chat, chat_wire.ChatRequest, {"model", "messages"}),
    "messages": (messages, messages_wire.MessagesRequest, {"model", "messages", "max_tokens"}),
    "completions": (completions, completions_wire.CompletionRequest, {"model", "prompt"}),
}
# The form of the answer, in chat completions and completions.
OUTPUT_ACCEPTED: list[Fields] = [
    {"guided_json": {"type": "object"}, "guided_decoding_backend": "xgrammar"},
    {"guided_json": '{"type": "object"}', "response_format": {"type": "text"}},
    {"guided_regex": "[0-9]+", "structured_outputs": {"json": None, "json_object": False}},
    {"guided_choice": ["a", "b"], "n": 4, "logit_bias": {"5": 1}, "min_tokens": 1, "stop": "x"},
    {"guided_grammar": 'start: "a"', "guided_whitespace_pattern": None},
    {"structured_outputs": {"json": {"type": "object"}, "disable_any_whitespace": True, "disable_fallback": True}},
    {"structured_outputs": {"json_object": True, "disable_additional_properties": False}},
    {"structured_outputs": {"choice": ["a"], "whitespace_pattern": None, "backend": None}},
    {"structured_outputs": {}},
]
OUTPUT_REFUSED: list[tuple[Fields, str]] = [
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_regex": "a" * 65_537}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
    ({"guided_choice": ["a"] * 1001}, "guided_choice"),
    ({"guided_grammar": ["a"]}, "guided_grammar"),
    ({"guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"json": "x"}}, "structured_outputs.json"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    (
        {"structured_outputs": {"disable_additional_properties": True}},
        "structured_outputs.disable_additional_properties",
    ),
    ({"structured_outputs": {"backend": "xgrammar"}}, "structured_outputs.backend"),
]

ACCEPTED = {
    "chat": CHAT_ACCEPTED + OUTPUT_ACCEPTED,
    "messages": MESSAGES_ACCEPTED,
    "completions": COMPLETIONS_ACCEPTED + OUTPUT_ACCEPTED,
}
REFUSED = {
    "chat": CHAT_REFUSED + OUTPUT_REFUSED,
    "messages": MESSAGES_REFUSED,
    "completions": COMPLETIONS_REFUSED + OUTPUT_REFUSED,
}
