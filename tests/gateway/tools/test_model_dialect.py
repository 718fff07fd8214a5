"""The format of calls is found by the chat template, or named; a template without tools gets them as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.text.tokenizer import Tokenizer
from gateway.api.bodies import read_request
from gateway.api.generation_request import ChatPrompt, LargeBody
from gateway.large_work.jobs import ContextLimits, CountJob, CountResult, JobRunner, count
from gateway.tools.definitions import ReasoningRequest, ToolSpec
from gateway.tools.model_dialect import NO_FORMAT, ModelDialect, dialect_of
from gateway.tools.rendering import call_in_history, result_in_history, template_arguments, template_messages
from support.gateway.tool_model import SMALL_MODEL, TEMPLATE, make_tool_model

_TOOLS = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
_TURN = "{% for message in messages %}{{ message.role + ': ' + message.content }}"
LLAMA = (
    _TOOLS
    + _TURN
    + """{% for call in message.tool_calls or [] %}{{ '{"name": "' + call.function.name + '", "parameters": ' }}\
{{ (call.function.arguments | tojson) + '}' }}{% endfor %}{% endfor %}"""
)
MISTRAL = (
    _TURN
    + """{% if loop.last and tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) }}{% endif %}\
{% for call in message.tool_calls or [] %}{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}\
{{ '[TOOL_CALLS] [{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}\
{{ ', "id": "' + call.id + '"}]' }}{% endfor %}{% endfor %}"""
)
MISTRAL_ARGS = (
    _TURN
    + """{% if loop.last and tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) }}{% endif %}\
{% for call in message.tool_calls or [] %}{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}\
{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}"""
)
MISTRAL_IDS = MISTRAL_ARGS.replace("'[ARGS]'", "'[CALL_ID]' + call.id + '[ARGS]'")
CODER = (
    _TOOLS
    + _TURN
    + """{% for call in message.tool_calls or [] %}{{ '<tool_call>\\n<function=' + call.function.name + '>\\n' }}\
{% for key, value in call.function.arguments | items %}{{ '<parameter=' + key + '>\\n' + value }}\
{{ '\\n</parameter>\\n' }}\
{% endfor %}{{ '</function>\\n</tool_call>' }}{% endfor %}{% endfor %}"""
)
R1 = _TURN + "{% endfor %}{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
USER = {"role": "user", "content": "Hi"}
TOOL = ToolSpec("f", "Does it", {"type": "object", "properties": {"a": {"type": "string"}}})
CALLED = {"role": "assistant", "content": "", "tool_calls": [call_in_history("call_0123456789", "f", {"a": "b"})]}


def loaded(directory: Path, template: str) -> Tokenizer:
    return Tokenizer.load(make_tool_model(directory / "model", template))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (TEMPLATE, "hermes"),
        (LLAMA, "llama3_json"),
        (MISTRAL, "mistral"),
        (MISTRAL_ARGS, "mistral_args"),
        (MISTRAL_IDS, "mistral_args"),
        (CODER, "qwen3_coder"),
    ],
)
def test_the_format_is_found_by_what_the_template_renders(tmp_path: Path, template: str, name: str) -> None:
    dialect = dialect_of(loaded(tmp_path, template))
    assert dialect.format is not None
    assert (dialect.format.name, dialect.native) == (name, True)


def test_a_template_that_ignores_tools_has_no_format() -> None:
    dialect = dialect_of(Tokenizer.load(SMALL_MODEL))
    assert dialect == ModelDialect(dialect.markers)


def test_an_operator_names_a_format_or_none(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, TEMPLATE)
    named = dialect_of(tokenizer, "llama3_json")
    assert named.format is not None
    assert (named.format.name, named.native) == ("llama3_json", False)
    assert dialect_of(tokenizer, NO_FORMAT).format is None


def test_markers_that_the_template_emits_are_ids(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, TEMPLATE)
    dialect = dialect_of(tokenizer)
    assert set(dialect.markers.ids) >= {tokenizer.markers["<tool_call>"], tokenizer.markers["</tool_call>"]}


@pytest.mark.parametrize(("template", "reasons"), [(TEMPLATE, True), (R1, True), (LLAMA, False)])
def test_reasoning_is_found_by_what_the_template_renders(tmp_path: Path, template: str, reasons: bool) -> None:
    assert (dialect_of(loaded(tmp_path, template)).reasoning is not None) == reasons


def test_reasoning_is_switched_by_the_argument_that_the_template_reads(tmp_path: Path) -> None:
    dialect = dialect_of(loaded(tmp_path, TEMPLATE))
    assert template_arguments(dialect, ReasoningRequest(enabled=False), {}) == {"enable_thinking": False}
    assert template_arguments(dialect, ReasoningRequest(enabled=False), {"enable_thinking": True}) == {
        "enable_thinking": True
    }
    assert template_arguments(dialect, ReasoningRequest(effort="low"), {}) == {}


def test_mistral_gets_ids_of_nine_characters(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, MISTRAL)
    messages = template_messages(dialect_of(tokenizer), [USER, CALLED], [TOOL])
    assert '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "b"}' in tokenizer.render_chat(messages)


def test_newer_mistral_gets_ids_of_nine_characters(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, MISTRAL_IDS)
    rendered = tokenizer.render_chat(template_messages(dialect_of(tokenizer), [USER, CALLED], [TOOL]))
    assert re.search(r'\[TOOL_CALLS\]f\[CALL_ID\]\w{9}\[ARGS\]{"a": "b"}', rendered)


def test_a_template_without_tools_gets_them_as_text() -> None:
    tokenizer = Tokenizer.load(SMALL_MODEL)
    dialect = dialect_of(tokenizer, "hermes")
    history: list[Any] = [
        USER,
        CALLED,
        result_in_history("call_0123456789", "f", "1"),
        result_in_history("x", "f", "2"),
    ]
    system, user, assistant, result = template_messages(dialect, history, [TOOL])
    assert '"name": "f"' in system["content"]
    assert "<tool_call>" in system["content"]
    assert user == USER
    assert assistant == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>',
    }
    assert result["role"] == "user"
    assert result["content"].count("<tool_response>") == 2
    assert template_messages(dialect, [USER], []) == [USER]


def test_a_process_counts_a_body_with_tools_as_the_event_loop_does(tmp_path: Path) -> None:
    directory = make_tool_model(tmp_path / "model")
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": TOOL.parameters}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "So."},
        {"role": "tool", "tool_call_id": "1", "content": "1"},
    ]
    body = msgspec.json.encode({"model": "m", "messages": messages, "tools": [tool]})
    window = ContextLimits(2048, 4096, 1, "messages")
    large = LargeBody("chat", body, 1, ids=False)
    counted = JobRunner().run_job(CountJob(large, str(directory), "any", window))
    assert isinstance(counted, CountResult)
    asked = read_request("chat", body, ignore_unknown=False).asked
    assert isinstance(asked.prompts, list)
    assert isinstance(asked.prompts[0], ChatPrompt)
    tokenizer = Tokenizer.load(directory)
    ids = count(tokenizer, asked.prompts, window, dialect_of(tokenizer))
    assert counted.all_ids() == ids
    text = tokenizer.decode(ids[0], skip_special_tokens=False)
    assert '<think>\nSo.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>' in text
