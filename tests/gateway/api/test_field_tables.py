"""The tables of fields say what the decoders do: what works changes what is asked, a hint and a neutral value change
nothing, and everything else is refused by its name."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from gateway.api.generation_request import GenerationRequest
from gateway.api.parsing import UnsupportedField
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest
from gateway.field_tables import ENDPOINTS, EndpointFields, FieldRow, rows
from support.gateway import responses_examples

TOOL = {"type": "function", "function": {"name": "f"}}
TURNS = [{"role": "user", "content": "Say something."}, {"role": "assistant", "content": "Well"}]
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": TURNS, "seed": 1},
    "/v1/completions": {"model": "m", "prompt": "Say", "seed": 1},
    "/v1/messages": {
        "model": "m",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Say"}]}],
        "system": [{"type": "text", "text": "Be terse"}],
    },
    responses_examples.PATH: responses_examples.BASE,
}
# Of each field that works: a value that changes what is asked; with what it needs beside it.
EXAMPLES: dict[str, Any] = {
    "model": "other",
    "max_tokens": 9,
    "max_completion_tokens": 9,
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": -1},
    "seed": 2,
    "stop": ["x"],
    "stop_sequences": ["x"],
    "stop_token_ids": [7],
    "min_tokens": 2,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "stream": True,
    "stream_options": ({"include_usage": True}, {"stream": True}),
    "stream_options.include_usage": (True, {"stream": True}),
    "service_tier": "flex",
    "messages": [{"role": "user", "content": "Other."}],
    "messages[].role": "system",
    "messages[].content": "Other.",
    "messages[].content[].type": None,  # of one value; `messages[].content` has it
    "messages[].content[].text": (
        "Other.",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "A"}]}]},
    ),
    "logprobs": {"/v1/chat/completions": True, "/v1/completions": 2},
    "top_logprobs": (3, {"logprobs": True}),
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "prompt": "Other",
    "echo": True,
    "prompt_logprobs": 3,
    "best_of": (2, {"n": 2}),  # only as `n`
    "system": "Other",
    "output_config": None,  # each of its fields has a row
    "system[].type": None,
    "system[].text": "Other",
    "tools": {"/v1/chat/completions": [TOOL], "/v1/messages": [{"name": "f", "input_schema": {}}]},
    "tool_choice": {"/v1/chat/completions": "none", "/v1/messages": {"type": "none"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'start: "a"',
    "structured_outputs": {"json_object": True},
    "structured_outputs.json": '{"type": "object"}',
    "structured_outputs.regex": "a+",
    "structured_outputs.choice": ["a", "b"],
    "structured_outputs.grammar": 'start: "a"',
    "structured_outputs.json_object": True,
    "structured_outputs.disable_any_whitespace": (True, {"structured_outputs": {"json_object": True}}),
    "reasoning_effort": "low",
    "max_reasoning_tokens": 5,
    "include_reasoning": False,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config.effort": "high",
    "output_config.format": {"type": "json_schema", "schema": {}},
}
# Fields of these, which work together: tests/clients/test_tool_calls.py has them.
TOGETHER = re.compile(
    r"(tools\[\]|tool_choice|response_format|thinking|output_config\.format|messages\[\]\.content\[\]"
    r"|messages\[\]\.tool_calls(\[\])?)\..+|messages\[\]\.(tool_calls|tool_call_id|reasoning|reasoning_content)$"
)
HINTS: dict[str, Any] = {
    "metadata": {"/v1/chat/completions": {"a": "b"}, "/v1/messages": {"user_id": "u"}},
    "prompt_cache_options": {"mode": "implicit"},
    "betas": ["effort-2025-11-24"],
    "billing_policy": {"type": "standard"},
    "compaction": {"type": "auto"},
    "context_management": {"edits": []},
    "diagnostics": {"previous_message_id": "msg_1"},
    "fallbacks": [{"model": "other"}],
    "messages[].tool_calls[].index": 1,
    "structured_outputs.disable_fallback": True,
    "messages[].provider_specific_fields": {"reasoning": "I think."},
    "output_config.task_budget": {"type": "tokens", "total": 9},
}
# What a hint stands in, by the beginning of its path.
HINTS_BESIDE: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    "messages[].provider_specific_fields": {"messages": [{"role": "assistant", "content": "Well"}]},
    "messages[].tool_calls": {
        "messages": [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            }
        ]
    },
}
CACHED = {"type": "ephemeral", "ttl": "1h"}
# No field that is not served has it among its neutral values.
ASKING = {"laneway": "asks"}


def cases(state: str) -> list[Any]:
    return [
        pytest.param(endpoint, row, id=f"{endpoint.path}-{row.field}")
        for endpoint in ENDPOINTS
        for row in rows(endpoint)
        if row.state == state
    ]


def body(endpoint: EndpointFields, path: str = "", value: Any = None, beside: dict[str, Any] | None = None) -> bytes:
    """The endpoint's body with this value at the path, of a list in its first item; of `/v1/responses` in its last."""
    item = -1 if endpoint.path == responses_examples.PATH else 0
    made = msgspec.json.decode(msgspec.json.encode({**BASE[endpoint.path], **(beside or {})}))
    place = made
    *way, last = path.split(".")
    for step in way:
        name = step.removesuffix("[]")
        place = place.setdefault(name, {})
        if step.endswith("[]"):
            place = place[item]
    if path:
        place[last] = value
    return msgspec.json.encode(made)


def asked(endpoint: EndpointFields, sent: bytes) -> tuple[GenerationRequest, bool]:
    """The request that the body means, and whether its stream reports the usage. Without the effects of
    hints: `sticky`, `end_user`, and `repeated`: an answer shows hints too."""
    request: Any = endpoint.parse(sent, UnknownFields())
    found: GenerationRequest = request.to_generation()
    if "seed" not in BASE[endpoint.path]:
        found = msgspec.structs.replace(found, sampling=msgspec.structs.replace(found.sampling, seed=0))
    usage = request.wants_usage() if hasattr(request, "wants_usage") else False
    return msgspec.structs.replace(found, sticky=None, end_user=None, repeated=b""), usage


def example(endpoint: EndpointFields, found: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(found, dict) and endpoint.path in found:
        found = found[endpoint.path]
    return found if isinstance(found, tuple) else (found, {})


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_every_field_of_the_type_has_one_row(endpoint: EndpointFields) -> None:
    fields = {field.encode_name for field in inspect.type_info(endpoint.kind).fields}  # type: ignore[attr-defined]
    named = [row.field for row in rows(endpoint)]
    assert {name for name in named if not re.search(r"[.\[]", name)} == fields
    assert len(named) == len(set(named))
    assert set(endpoint.hints) | set(endpoint.unserved) <= set(named)


@pytest.mark.parametrize(("endpoint", "row"), cases("works"))
def test_what_works_changes_what_is_asked(endpoint: EndpointFields, row: FieldRow) -> None:
    examples = EXAMPLES
    if endpoint.path == responses_examples.PATH:
        examples = {**EXAMPLES, **responses_examples.EXAMPLES}
    elif row.field not in EXAMPLES and TOGETHER.match(row.field):
        return
    value, beside = example(endpoint, examples[row.field])
    if value is None:
        return
    with_it = asked(endpoint, body(endpoint, row.field, value, beside))
    if row.field == "best_of":
        assert with_it == asked(endpoint, body(endpoint, beside=beside))
    else:
        assert with_it != asked(endpoint, body(endpoint, beside=beside))


@pytest.mark.parametrize(("endpoint", "row"), cases("hint"))
def test_a_hint_changes_nothing_that_is_asked(endpoint: EndpointFields, row: FieldRow) -> None:
    hints, besides = HINTS, HINTS_BESIDE
    if endpoint.path == responses_examples.PATH:
        hints, besides = responses_examples.HINTS, responses_examples.HINTS_BESIDE
    value = CACHED if row.field.endswith("cache_control") else example(endpoint, hints.get(row.field, "u"))[0]
    beside = next((fields for start, fields in besides.items() if row.field.startswith(start)), None)
    assert asked(endpoint, body(endpoint, row.field, value, beside)) == asked(endpoint, body(endpoint, beside=beside))


@pytest.mark.parametrize(("endpoint", "row"), [*cases("neutral"), *cases("refused")])
def test_neutral_values_change_nothing_and_any_other_is_refused(endpoint: EndpointFields, row: FieldRow) -> None:
    if TOGETHER.match(row.field) and endpoint.path != responses_examples.PATH:
        return
    # Those that are no entry are empty by their type, and of an assistant's message or a text block.
    empty = [msgspec.json.decode(value) for value in re.findall(r"`([^`]+)`", row.values)]
    entry = endpoint.unserved.get(row.field, UnsupportedField("", tuple(empty)))
    beside: dict[str, Any] = {"stream": True} if row.field.startswith("stream_options") else {}
    if row.field.startswith("messages[].") and endpoint.path == "/v1/chat/completions":
        beside = {"messages": [{"role": "assistant", "content": "Well"}]}
    plain = asked(endpoint, body(endpoint, beside=beside))
    assert (row.state == "neutral") == bool(entry.neutral)
    for value in [None, *entry.neutral]:
        assert asked(endpoint, body(endpoint, row.field, value, beside)) == plain
    with pytest.raises(InvalidRequest) as refused:
        endpoint.parse(body(endpoint, row.field, ASKING, beside), UnknownFields())
    first = row.field.split(".")[-1]
    assert first in (refused.value.param or "")


def test_the_answer_repeats_metadata() -> None:
    [endpoint] = [one for one in ENDPOINTS if one.path == responses_examples.PATH]
    request: Any = endpoint.parse(body(endpoint, "metadata", {"a": "b"}), UnknownFields())
    assert b'"metadata":{"a":"b"}' in request.to_generation().repeated


@pytest.mark.parametrize(("path", "field", "required"), [
    ("/v1/responses", "input[].content", False),  # of a message; reasoning may lack it
    ("/v1/responses", "input[].call_id", True),
    ("/v1/chat/completions", "messages[].content", False),
])  # fmt: skip
def test_a_field_of_several_structs_has_one_row(path: str, field: str, required: bool) -> None:
    [endpoint] = [one for one in ENDPOINTS if one.path == path]
    [row] = [row for row in rows(endpoint) if row.field == field]
    assert row.required == required
