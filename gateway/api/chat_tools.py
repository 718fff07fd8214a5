"""Tools and calls of `/v1/chat/completions`: wire types, and their conversion to neutral types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.output_formats import NAME_PATTERN, GrammarText, check_schema
from gateway.errors import InvalidRequest
from gateway.tools.definitions import ToolChoice, ToolSpec

TOOLS_MAX = 128
CALL_ID_CHARS_MAX = 256
LARK_CHARS_MAX = 8 * 1024  # of the grammars of all custom tools of a request, which the event loop rewrites

ToolName = Annotated[str, Meta(pattern=NAME_PATTERN)]
CallId = Annotated[str, Meta(min_length=1, max_length=CALL_ID_CHARS_MAX)]


class Named(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: ToolName


class FunctionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`parameters`: a JSON Schema of an object. With `strict` the arguments follow it, or the request is refused."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"
):
    function: FunctionSpec


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    syntax: Literal["lark", "regex"]
    definition: GrammarText


class AnyInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """The input is any text."""


class GrammarInput(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="grammar"
):
    """The input follows a grammar."""

    grammar: GrammarSpec


class CustomSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: ToolName
    description: str | None = None
    format: AnyInput | GrammarInput | None = None


class CustomTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="custom"):
    """A tool whose input is one text."""

    custom: CustomSpec


class NamedFunction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"
):
    function: Named


class NamedCustom(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="custom"
):
    custom: Named


class AllowedSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction | NamedCustom], Meta(min_length=1, max_length=TOOLS_MAX)]


class AllowedTools(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    """The answer may call these tools alone."""

    allowed_tools: AllowedSpec


Tools = Annotated[list[FunctionTool | CustomTool], Meta(max_length=TOOLS_MAX)]
ChosenTools = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedTools


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"
):
    """A call of an earlier answer. `index` is a hint: some clients send streamed calls back with it."""

    id: CallId
    function: CalledFunction
    index: int | None = None


class CalledCustom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    input: str


class CustomCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="custom"):
    id: CallId
    custom: CalledCustom
    index: int | None = None


PastCalls = Annotated[list[FunctionCall | CustomCall], Meta(max_length=TOOLS_MAX)]


def tool_specs(tools: Sequence[FunctionTool | CustomTool]) -> list[ToolSpec]:
    """Raises InvalidRequest."""
    found = [_custom_spec(tool.custom, index) if isinstance(tool, CustomTool) else _function_spec(tool.function, index)
             for index, tool in enumerate(tools)]  # fmt: skip
    check_specs(found)
    return found


def check_specs(tools: Sequence[ToolSpec]) -> None:
    """Raises InvalidRequest for a name that two tools have, and for Lark grammars over LARK_CHARS_MAX."""
    check_names([tool.name for tool in tools])
    chars = 0
    for tool in tools:
        chars += len(tool.lark or "")
        if chars > LARK_CHARS_MAX:
            message = f"{tool.param!r} is too long: all Lark grammars have at most {LARK_CHARS_MAX} characters."
            raise InvalidRequest(message, param=tool.param)


def check_names(names: Sequence[str]) -> None:
    """Raises InvalidRequest for a name that two tools have."""
    for index, name in enumerate(names):
        if name in names[:index]:
            param = f"tools[{index}]"
            raise InvalidRequest(f"{param!r} is wrong: another tool has the name {name!r}.", param=param)


def _function_spec(function: FunctionSpec, index: int) -> ToolSpec:
    strict = bool(function.strict)
    param = f"tools[{index}].function.parameters"
    if strict and function.parameters is not None:
        check_schema(function.parameters, param)
    return ToolSpec(function.name, function.description, function.parameters, strict, param=param)


def _custom_spec(custom: CustomSpec, index: int) -> ToolSpec:
    grammar = custom.format.grammar if isinstance(custom.format, GrammarInput) else None
    param = f"tools[{index}].custom.format.grammar.definition"
    spec = ToolSpec(custom.name, custom.description, custom=True, param=param)
    if grammar is None:
        return spec
    if grammar.syntax == "regex":
        return msgspec.structs.replace(spec, pattern=grammar.definition)
    return msgspec.structs.replace(spec, lark=grammar.definition)


def tool_choice(choice: ChosenTools | None, parallel: bool | None, tools: Sequence[ToolSpec]) -> ToolChoice:
    """Raises InvalidRequest for a choice that the tools do not have."""
    several = parallel is not False
    if choice is None or choice in ("none", "auto"):
        return ToolChoice("none" if choice == "none" else "auto", (), several)
    if not tools:
        raise InvalidRequest("'tool_choice' needs 'tools'.", param="tool_choice")
    match choice:
        case AllowedTools(allowed_tools=allowed):
            names = tuple([_name_of(one) for one in allowed.tools])
            found = ToolChoice(allowed.mode, names, several)
        case NamedFunction() | NamedCustom():
            found = ToolChoice("required", (_name_of(choice),), parallel=False)
        case _:
            found = ToolChoice("required", (), several)
    check_choice(found, tools)
    return found


def check_choice(choice: ToolChoice, tools: Sequence[ToolSpec]) -> None:
    """Raises InvalidRequest for a name that no tool has."""
    known = {tool.name for tool in tools}
    for name in choice.names:
        if name not in known:
            raise InvalidRequest(f"'tool_choice' names {name!r}, which is not in 'tools'.", param="tool_choice")


def _name_of(choice: NamedFunction | NamedCustom) -> str:
    return choice.function.name if isinstance(choice, NamedFunction) else choice.custom.name


def parsed_arguments(text: str) -> dict[str, Any] | str:
    """The arguments of an earlier call: an object where they are one."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
