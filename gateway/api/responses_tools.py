"""Tools of `/v1/responses`: wire types, and their conversion to neutral types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.chat_tools import TOOLS_MAX, ToolName, check_choice, check_specs
from gateway.api.output_formats import NAME_PATTERN, GrammarText, check_schema
from gateway.api.responses_items import qualified_name
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest
from gateway.tools.definitions import OutputFormat, ToolChoice, ToolSpec


class ResponseFunction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"
):
    """`parameters`: a JSON Schema of an object. With `strict` the arguments follow it, or the request is refused.
    `allowed_callers`, `defer_loading` and `output_schema` are hints."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    output_schema: dict[str, Any] | None = None


class TextInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """The input is any text."""


class GrammaticalInput(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="grammar"
):
    """The input follows a grammar."""

    syntax: Literal["lark", "regex"]
    definition: GrammarText


class ResponseCustomTool(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="custom"
):
    """A tool whose input is one text. `allowed_callers` and `defer_loading` are hints."""

    name: ToolName
    description: str | None = None
    format: TextInput | GrammaticalInput | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None


class NamespaceTools(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="namespace"
):
    """Tools whose calls have the name and the namespace apart. `description` is a hint."""

    name: ToolName
    description: str | None = None
    tools: Annotated[list[ResponseFunction | ResponseCustomTool], Meta(max_length=TOOLS_MAX)]


ADDITIONAL_TOOLS = "additional_tools"  # a type of items
ResponseTool = ResponseFunction | ResponseCustomTool | NamespaceTools
# By type; a tool of any other type is dropped.
KNOWN_TOOLS = frozenset(str(kind.__struct_config__.tag) for kind in ResponseTool.__args__)


class ChosenFunction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"
):
    name: str
    namespace: str | None = None


class ChosenCustom(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="custom"
):
    name: str
    namespace: str | None = None


class AllowedResponseTools(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    """The answer may call these tools alone."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunction | ChosenCustom], Meta(min_length=1, max_length=TOOLS_MAX)]


ResponseToolChoice = Literal["none", "auto", "required"] | ChosenFunction | ChosenCustom | AllowedResponseTools


class ResponseTextFormat(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    """The answer is text."""


class ResponseJsonObject(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """The answer is a JSON object."""


class ResponseJsonSchema(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """The answer follows the schema; with `strict` it must have OpenAI's limits. `name`, `description`: hints."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


ResponseFormatOption = ResponseTextFormat | ResponseJsonObject | ResponseJsonSchema


def gather_tools(body: dict[str, Any]) -> None:
    """Move the tools of `additional_tools` items of the input behind the request's own tools. Codex sends all of its
    tools so to models of the newest families."""
    items, tools = body.get("input"), body.get("tools") or []
    if not isinstance(items, list) or not isinstance(tools, list):
        return
    kept: list[object] = []
    gathered: list[object] = [*tools]
    for item in items:
        if isinstance(item, dict) and item.get("type") == ADDITIONAL_TOOLS and isinstance(item.get("tools"), list):
            gathered += item["tools"]
        else:
            kept.append(item)
    if len(kept) < len(items):
        body["input"], body["tools"] = kept, gathered


def prepare_tools(tools: object, unknown: UnknownFields) -> object:
    """The tools without tools that OpenAI's own service runs, such as a web search: these are named in `unknown`."""
    if not isinstance(tools, list):
        return tools
    kept: list[object] = []
    for index, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in KNOWN_TOOLS:
            unknown.name_hint(f"tools[{index}]")
        else:
            kept.append(tool)
    return kept


def tool_specs(tools: Sequence[ResponseTool]) -> list[ToolSpec]:
    """Raises InvalidRequest."""
    found = list(_specs(tools))
    check_specs(found)
    return found


def _specs(tools: Sequence[ResponseTool]) -> Iterator[ToolSpec]:
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        if isinstance(tool, NamespaceTools):
            for place, own in enumerate(tool.tools):
                yield _spec(own, f"{param}.tools[{place}]", tool.name)
        else:
            yield _spec(tool, param, None)


def _spec(tool: ResponseFunction | ResponseCustomTool, param: str, namespace: str | None) -> ToolSpec:
    name = qualified_name(tool.name, namespace)
    spec = ToolSpec(name, tool.description, namespace=namespace or "")
    if isinstance(tool, ResponseFunction):
        strict, param = bool(tool.strict), f"{param}.parameters"
        if strict and tool.parameters is not None:
            check_schema(tool.parameters, param)
        return msgspec.structs.replace(spec, parameters=tool.parameters, strict=strict, param=param)
    spec = msgspec.structs.replace(spec, custom=True, param=f"{param}.format.definition")
    if not isinstance(tool.format, GrammaticalInput):
        return spec
    if tool.format.syntax == "regex":
        return msgspec.structs.replace(spec, pattern=tool.format.definition)
    return msgspec.structs.replace(spec, lark=tool.format.definition)


def tool_choice(choice: ResponseToolChoice | None, parallel: bool | None, tools: Sequence[ToolSpec]) -> ToolChoice:
    """Raises InvalidRequest for a choice that the tools do not have."""
    several = parallel is not False
    if choice is None or choice in ("none", "auto"):
        return ToolChoice("none" if choice == "none" else "auto", (), several)
    if not tools:
        raise InvalidRequest("'tool_choice' needs 'tools'.", param="tool_choice")
    match choice:
        case AllowedResponseTools():
            names = tuple([qualified_name(one.name, one.namespace) for one in choice.tools])
            found = ToolChoice(choice.mode, names, several)
        case ChosenFunction() | ChosenCustom():
            found = ToolChoice("required", (qualified_name(choice.name, choice.namespace),), parallel=False)
        case _:
            found = ToolChoice("required", (), several)
    check_choice(found, tools)
    return found


def output_format(format_: ResponseFormatOption | None) -> OutputFormat | None:
    """Raises InvalidRequest for a strict schema beyond OpenAI's limits."""
    match format_:
        case ResponseJsonObject():
            return OutputFormat("text.format")
        case ResponseJsonSchema():
            param = "text.format.schema"
            if format_.strict:
                check_schema(format_.schema, param)
            return OutputFormat(param, format_.schema)
    return None
