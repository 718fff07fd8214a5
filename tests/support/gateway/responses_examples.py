"""Values of each field of `/v1/responses`, for tests/gateway/api/test_field_tables.py.

A path with [] means the last item of a list.
"""

from __future__ import annotations

from typing import Any

PATH = "/v1/responses"
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say"}]}
BASE: dict[str, Any] = {"model": "m", "input": [USER]}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": [{"type": "output_text", "text": "A"}]}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}]}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "a"}
CUSTOM = {"type": "custom", "name": "c", "format": GRAMMAR}
NAMESPACE = {"type": "namespace", "name": "n", "tools": [FUNCTION]}
CUSTOM_NAMESPACE = {"type": "namespace", "name": "n", "tools": [CUSTOM]}
FORMAT = {"type": "json_schema", "name": "x", "schema": {}}
CHOSEN = {"type": "function", "name": "f"}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [CHOSEN]}


def items(*others: dict[str, Any]) -> dict[str, Any]:
    return {"input": [USER, *others]}


def said(part: dict[str, Any]) -> dict[str, Any]:
    return items({"type": "message", "role": "assistant", "content": [part]})


def tools(*own: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"tools": list(own), **fields}


# Several tools, of which a choice names one.
CHOICE = tools(FUNCTION, CUSTOM, {**FUNCTION, "name": "g"}, NAMESPACE)
# For each supported field: a value that changes the request, with the fields that it needs beside it. None: the field
# has only one value, or the test that the comment names covers it.
EXAMPLES: dict[str, Any] = {
    "input": "Other",
    "input[].type": None,  # tests/clients/test_responses.py
    "input[].role": "assistant",
    "input[].content": "Other",
    "input[].content[].type": None,  # `input[].content[].refusal` has another
    "input[].content[].text": "Other",
    "input[].content[].refusal": ("Other", said({"type": "refusal", "refusal": "A"})),
    "input[].call_id": ("2", items(CALL)),
    "input[].name": ("g", items(CALL)),
    "input[].arguments": ('{"a":1}', items(CALL)),
    "input[].namespace": ("n", items(CALL)),
    "input[].output": ("Other", items(CALL, OUTPUT)),
    "input[].output[].type": None,
    "input[].output[].text": ("Other", items(CALL, OUTPUT)),
    "input[].output[].refusal": ("Other", items(CALL, {**OUTPUT, "output": [{"type": "refusal", "refusal": "A"}]})),
    "input[].input": ("Other", items({"type": "custom_tool_call", "call_id": "1", "name": "c", "input": "A"})),
    "input[].summary": ([], items(REASONING)),
    "input[].summary[].type": None,
    "input[].summary[].text": ("Other", items(REASONING)),
    "input[].encrypted_content": ("Other", items(REASONING)),
    "instructions": "Be terse",
    "max_output_tokens": 9,
    "text": {"format": {"type": "json_object"}},
    "text.format": {"type": "json_object"},
    "text.format.type": ("json_object", {"text": {"format": {"type": "text"}}}),
    "text.format.schema": ({"type": "object"}, {"text": {"format": FORMAT}}),
    "text.format.strict": None,  # `test_strict_refuses_what_cannot_be_followed`
    "reasoning": {"effort": "low"},
    "reasoning.effort": "low",
    "reasoning.summary": "auto",
    "reasoning.generate_summary": "auto",
    "reasoning.max_tokens": 5,
    "tools": [FUNCTION],
    "tools[].type": None,  # `tools[].format` and `tools[].tools` have the others
    "tools[].name": ("g", tools(FUNCTION)),
    "tools[].description": ("Other", tools(FUNCTION)),
    "tools[].parameters": ({"type": "object", "properties": {}}, tools(FUNCTION)),
    "tools[].strict": (True, tools({"type": "function", "name": "f"})),
    "tools[].format": ({"type": "text"}, tools(CUSTOM)),
    "tools[].format.type": None,
    "tools[].format.syntax": ("lark", tools(CUSTOM)),
    "tools[].format.definition": ("b", tools(CUSTOM)),
    "tools[].tools": ([CUSTOM], tools(NAMESPACE)),
    "tools[].tools[].type": None,
    "tools[].tools[].name": ("g", tools(NAMESPACE)),
    "tools[].tools[].description": ("Other", tools(NAMESPACE)),
    "tools[].tools[].parameters": ({"type": "object", "properties": {}}, tools(NAMESPACE)),
    "tools[].tools[].strict": (True, tools({**NAMESPACE, "tools": [{"type": "function", "name": "f"}]})),
    "tools[].tools[].format": ({"type": "text"}, tools(CUSTOM_NAMESPACE)),
    "tools[].tools[].format.type": None,
    "tools[].tools[].format.syntax": ("lark", tools(CUSTOM_NAMESPACE)),
    "tools[].tools[].format.definition": ("b", tools(CUSTOM_NAMESPACE)),
    "tool_choice": ("required", CHOICE),
    "tool_choice.type": None,  # the other fields of a choice have each type
    "tool_choice.name": ("g", {**CHOICE, "tool_choice": CHOSEN}),
    "tool_choice.namespace": ("n", {**CHOICE, "tool_choice": CHOSEN}),
    "tool_choice.mode": ("required", {**CHOICE, "tool_choice": ALLOWED}),
    "tool_choice.tools": ([{"type": "custom", "name": "c"}], {**CHOICE, "tool_choice": ALLOWED}),
    "tool_choice.tools[].type": None,
    "tool_choice.tools[].name": ("g", {**CHOICE, "tool_choice": ALLOWED}),
    "tool_choice.tools[].namespace": ("n", {**CHOICE, "tool_choice": ALLOWED}),
    "include": ["reasoning.encrypted_content"],
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "conversation.id": ("conv_2", {"conversation": {"id": "conv_1"}}),
    "store": None,  # tests/gateway/stored/test_stored_responses.py
    "background": True,
    "metadata": None,  # `test_the_answer_repeats_metadata`
}
HINTS: dict[str, Any] = {
    "client_metadata": {"a": "b"},
    "max_tool_calls": 1,
    "prompt_cache_options": {"mode": "implicit"},
    "stream_options": {"include_obfuscation": True},
    "tools[].allowed_callers": ["direct"],
    "tools[].defer_loading": True,
    "tools[].output_schema": {"type": "object"},
    "tools[].tools[].allowed_callers": ["direct"],
    "tools[].tools[].defer_loading": True,
    "tools[].tools[].output_schema": {"type": "object"},
    **{f"input[].{field}[].{name}": ["u"] for field in ("content", "output") for name in ("annotations", "logprobs")},
}
# The object that contains a hint, by the prefix of its path; the first match counts.
HINTS_BESIDE: dict[str, dict[str, Any]] = {
    "input[].content[].prompt_cache_breakpoint": BASE,
    "input[].content[]": said({"type": "output_text", "text": "A"}),
    "input[].output[].prompt_cache_breakpoint": items(CALL, {**OUTPUT, "output": USER["content"]}),
    "input[].output[]": items(CALL, OUTPUT),
    "input[].caller": items(CALL),
    "input[].parsed_arguments": items(CALL),
    "input[].created_by": items({"type": "compaction", "encrypted_content": "A"}),
    "tools[].tools[]": tools(NAMESPACE),
    "tools[]": tools(FUNCTION),
    "text.format": {"text": {"format": FORMAT}},
}
