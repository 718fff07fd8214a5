"""A conversation with tools, calls and results as a model's chat template takes it.

A template that knows no tools gets them as text: described in the system message, calls in the model's format in the
assistant's messages, results in a user message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.tools.definitions import ReasoningRequest, ToolSpec
from gateway.tools.formats import MISTRAL, MISTRAL_ARGS, MISTRAL_ID_CHARS, ToolFormat
from gateway.tools.model_dialect import EFFORT_ARGUMENT, ModelDialect

# A role and one text; the assistant's may have `reasoning_content` and `tool_calls`, the results of tools have
# `tool_call_id` and `name`: the form that chat templates read.
Message = dict[str, Any]
# Keys of messages with encrypted parts: the blob, and the request's field that has it. They are opened before the
# template renders the message (tools.sealed_reasoning).
SEALED_REASONING, SEALED_SUMMARY = "sealed_reasoning", "sealed_summary"

RESULT_OPEN, RESULT_CLOSE = "<tool_response>\n", "\n</tool_response>"


def call_in_history(id_: str, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    """A call of the assistant's in a message under `tool_calls`. `arguments`: text where it is no JSON object."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def result_in_history(call_id: str, name: str, content: str) -> Message:
    """The message with the result of a call."""
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": name}


def template_messages(
    dialect: ModelDialect, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> Sequence[Message]:
    """The messages that the template renders."""
    if dialect.native or dialect.format is None:
        short = dialect.format in (MISTRAL, MISTRAL_ARGS)
        return [_with_short_ids(message) for message in messages] if short else messages
    if not tools and not any("tool_calls" in message or message["role"] == "tool" for message in messages):
        return messages
    return _as_text(dialect.format, messages, tools)


def template_tools(dialect: ModelDialect, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """The tools that the template describes."""
    return [tool.definition() for tool in tools] if tools and dialect.native else None


def template_arguments(
    dialect: ModelDialect, reasoning: ReasoningRequest, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The template's arguments: the caller's, and the arguments that switch reasoning on or off."""
    added: dict[str, Any] = {}
    if dialect.switch is not None and reasoning.enabled is not None:
        added[dialect.switch] = reasoning.enabled
    if dialect.effort and reasoning.effort not in (None, "none"):
        added[EFFORT_ARGUMENT] = reasoning.effort
    return {**added, **given} if added else given


def _with_short_ids(message: Message) -> Message:
    """Mistral's templates refuse ids of calls that are not nine letters and digits."""
    said = dict(message)
    if "tool_calls" in said:
        said["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in said["tool_calls"]]
    if "tool_call_id" in said:
        said["tool_call_id"] = _short_id(said["tool_call_id"])
    return said


def _short_id(id_: str) -> str:
    is_short = len(id_) == MISTRAL_ID_CHARS and id_.isalnum()
    return id_ if is_short else hashlib.sha256(id_.encode()).hexdigest()[:MISTRAL_ID_CHARS]


def _as_text(format_: ToolFormat, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    said: list[Message] = []
    after_result = False
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            content = RESULT_OPEN + content + RESULT_CLOSE
            if after_result:
                said[-1]["content"] += "\n" + content
            else:
                said.append({"role": "user", "content": content})
            after_result = True
            continue
        after_result = False
        if "tool_calls" in message:
            functions = [call["function"] for call in message["tool_calls"]]
            calls = [(function["name"], _object(function["arguments"])) for function in functions]
            content = "\n".join([one for one in (content, format_.spell_calls(calls)) if one])
        said.append({"role": message["role"], "content": content})
    if tools:
        described = instructions(format_, tools)
        if said and said[0]["role"] == "system":
            said[0]["content"] = f"{said[0]['content']}\n\n{described}".lstrip()
        else:
            said.insert(0, {"role": "system", "content": described})
    return said


def _object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def instructions(format_: ToolFormat, tools: Sequence[ToolSpec]) -> str:
    """The system message's text about tools, for a template without such a text; the words are Qwen's."""
    described = "\n".join([json.dumps(tool.definition(), ensure_ascii=False) for tool in tools])
    example = format_.spell_calls([("function-name", {"argument-name": "value"})])
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{described}\n</tools>\n\n"
        f"To call a function, write it in this form:\n{example}"
    )
