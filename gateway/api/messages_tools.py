"""Tools, calls and results of the Messages API: wire types, and their conversion to neutral types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api.agent_hints import CacheControl, SchemaFormat, ToolHints
from gateway.api.chat_tools import CallId, check_choice, check_names
from gateway.api.output_formats import NAME_PATTERN
from gateway.errors import InvalidRequest
from gateway.tools.definitions import OutputFormat, ToolChoice, ToolSpec

BLOCKS_MAX = 4096  # of one message
OUR_TOOL = "custom"  # the type of a tool that the client runs
ERROR_PREFIX = "Error: "
ID_PREFIX = "toolu_"

_NAME = re.compile(NAME_PATTERN)
ToolName = Annotated[str, Meta(min_length=1, max_length=128)]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A text of a request. A block that Laneway returned is accepted too."""

    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Meta(max_length=0)] | None = None


class ToolUseBlock(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"
):
    """A call of an earlier answer."""

    id: CallId
    name: ToolName
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: dict[str, Any] | None = None


class ToolResultBlock(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"
):
    """The result of a call."""

    tool_use_id: CallId
    content: str | Annotated[list[TextBlock], Meta(max_length=BLOCKS_MAX)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class ThinkingBlock(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"
):
    """The reasoning of an earlier answer."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="redacted_thinking"
):
    """Reasoning that another service hid: it is left out."""

    data: str


Block = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock


class Tool(ToolHints, frozen=True, kw_only=True):
    """A tool that the client runs. Tools of another `type` are run by Anthropic's service: they are left out of the
    prompt and named in `laneway-ignored`."""

    name: ToolName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ChooseAuto(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class ChooseAny(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class ChooseTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool"):
    name: ToolName
    disable_parallel_tool_use: bool | None = None


class ChooseNone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="none"):
    """No tool is called."""


MessageToolChoice = ChooseAuto | ChooseAny | ChooseTool | ChooseNone


def is_foreign(tool: Tool) -> bool:
    """Whether Anthropic's service would run the tool."""
    return tool.type not in (None, OUR_TOOL)


def tool_specs(tools: Sequence[Tool]) -> list[ToolSpec]:
    """The tools that the client runs. Raises InvalidRequest."""
    found = []
    for index, tool in enumerate(tools):
        if is_foreign(tool):
            continue
        schema_param = f"tools[{index}].input_schema"
        if tool.input_schema is None:
            param = schema_param
            raise InvalidRequest(f"Missing required field {param!r}.", param=param)
        if tool.strict and tool.input_schema.get("type") != "object":  # calls have objects
            param = f"tools[{index}].input_schema"
            raise InvalidRequest(f'{param!r} is wrong: a strict tool\'s schema has "type": "object".', param=param)
        if _NAME.match(tool.name) is None:
            param = f"tools[{index}].name"
            message = f"{param!r} is wrong: 1 to 64 letters, digits, '_' and '-' are needed."
            raise InvalidRequest(message, param=param)
        found.append(ToolSpec(tool.name, tool.description, tool.input_schema, bool(tool.strict), param=schema_param))
    check_names([tool.name for tool in found])
    return found


def tool_choice(choice: MessageToolChoice | None, tools: Sequence[ToolSpec]) -> ToolChoice:
    """Raises InvalidRequest for a choice that the tools do not have."""
    match choice:
        case None:
            return ToolChoice()
        case ChooseNone():
            return ToolChoice("none")
        case ChooseAuto(disable_parallel_tool_use=one):
            return ToolChoice("auto", (), parallel=not one)
        case ChooseAny(disable_parallel_tool_use=one):
            found = ToolChoice("required", (), parallel=not one)
        case ChooseTool(name=name):
            found = ToolChoice("required", (name,), parallel=False)
    if not tools:
        raise InvalidRequest("'tool_choice' needs 'tools'.", param="tool_choice")
    check_choice(found, tools)
    return found


def result_text(block: ToolResultBlock) -> str:
    """The result as the model reads it."""
    content = block.content
    text = content if isinstance(content, str) else "\n".join([one.text for one in content or ()])
    return ERROR_PREFIX + text if block.is_error and not text.lower().startswith("error") else text


def output_format(schema: SchemaFormat | None) -> OutputFormat | None:
    return None if schema is None else OutputFormat("output_config.format.schema", schema.schema)
