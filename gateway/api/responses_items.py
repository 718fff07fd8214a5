"""The items of a `/v1/responses` input, and the conversation that they are for a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.chat_tools import CallId, parsed_arguments
from gateway.api.chat_wire import PART_SEPARATOR, PARTS_MAX
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest, UnsupportedValue
from gateway.tools.definitions import CUSTOM_ARGUMENT, NAMESPACE_SEPARATOR
from gateway.tools.rendering import SEALED_REASONING, SEALED_SUMMARY, call_in_history, result_in_history


class InputText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of text parts."""

    text: str


class InputTextPart(InputText, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="input_text"):
    """`prompt_cache_breakpoint` is a hint."""

    prompt_cache_breakpoint: Any = None


class OutputTextPart(InputText, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="output_text"):
    """A text of an earlier answer. `annotations`, `logprobs` and `parsed` are hints; the SDK adds `parsed`."""

    annotations: list[Any] | None = None
    parsed: Any = None
    logprobs: list[Any] | None = None


class PlainTextPart(InputText, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="text"):
    pass


class RefusalPart(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"
):
    refusal: str


TextParts = Annotated[list[InputTextPart | OutputTextPart | PlainTextPart | RefusalPart], Meta(max_length=PARTS_MAX)]


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of items. `id` and `status` are hints: clients send the items of an answer back. A reference to a stored
    item, which has an `id` alone, is replaced by the item before a body is parsed (`stored.turns`)."""

    id: str | None = None
    status: str | None = None


class MessageItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="message"):
    """`phase` is a hint."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | TextParts
    phase: str | None = None


class FunctionCallItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="function_call"):
    """A call of an earlier answer. `namespace`: of a tool in a namespace. `caller` and `parsed_arguments` are hints;
    the SDK adds the latter."""

    call_id: CallId
    name: str
    arguments: str
    caller: Any = None
    parsed_arguments: Any = None
    namespace: str | None = None


class FunctionOutputItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="function_call_output"):
    """The result of a call. `caller` is a hint."""

    call_id: CallId
    output: str | TextParts
    caller: Any = None


class CustomCallItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="custom_tool_call"):
    call_id: CallId
    name: str
    input: str
    namespace: str | None = None
    caller: Any = None


class CustomOutputItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="custom_tool_call_output"):
    call_id: CallId
    output: str | TextParts
    caller: Any = None


class SummaryText(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="summary_text"
):
    text: str


class ReasoningText(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"
):
    text: str


class ReasoningItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reasoning"):
    """The reasoning of an earlier answer: `encrypted_content`, or else `content`, or else `summary`."""

    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None

    def text(self) -> str:
        return PART_SEPARATOR.join([part.text for part in self.content or self.summary])


class CompactionItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="compaction"):
    """The summary of an earlier conversation, made by `/v1/responses/compact`. `created_by` is a hint."""

    encrypted_content: str
    created_by: str | None = None


class ConversationReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored conversation."""

    id: str


InputItem = (
    MessageItem
    | FunctionCallItem
    | FunctionOutputItem
    | CustomCallItem
    | CustomOutputItem
    | ReasoningItem
    | CompactionItem
)
# By item type; any other type is dropped from the input.
KNOWN_ITEMS = frozenset(str(kind.__struct_config__.tag) for kind in InputItem.__args__)


def prepare_input(items: object, unknown: UnknownFields, field: str = "input") -> object:
    """The input with a type for messages, which may lack it, and without items of tools that are not served here, such
    as a web search: these are named in `unknown`. `field`: of the items. Raises UnsupportedValue for a reference to a
    stored item."""
    if not isinstance(items, list):
        return items
    kept: list[object] = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            kept.append(item)
            continue
        kind = item.get("type")
        if kind is None and "role" in item:
            item = {"type": "message", **{name: value for name, value in item.items() if name != "type"}}
        elif kind == "item_reference" or (kind is None and "id" in item):
            param = f"{field}[{index}]"
            why = "items are not stored; send the whole item, as the AI SDK does with store: false"
            if field != "input":
                why = "send the whole item, a reference is not resolved here"
            raise UnsupportedValue(f"{param!r} is wrong: {why}.", param=param)
        elif isinstance(kind, str) and kind not in KNOWN_ITEMS:
            unknown.name_hint(f"{field}[{index}]")
            continue
        kept.append(item)
    return kept


def conversation(instructions: str | None, items: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """The messages for the chat template. Consecutive items of one answer (reasoning, a text, calls) are one message.
    Raises InvalidRequest for a result of a call that no earlier item has."""
    found: list[dict[str, Any]] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*found, {"role": "user", "content": items}]
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        match item:
            case MessageItem(role="assistant"):
                answer = _answer(found)
                if answer["content"] or "tool_calls" in answer:
                    found.append(answer := {"role": "assistant", "content": ""})
                answer["content"] = text_of(item.content)
            case MessageItem():
                role = "system" if item.role == "developer" else item.role
                found.append({"role": role, "content": text_of(item.content)})
            case FunctionCallItem():
                names[item.call_id] = name = qualified_name(item.name, item.namespace)
                _add_call(found, call_in_history(item.call_id, name, parsed_arguments(item.arguments)))
            case CustomCallItem():
                names[item.call_id] = name = qualified_name(item.name, item.namespace)
                _add_call(found, call_in_history(item.call_id, name, {CUSTOM_ARGUMENT: item.input}))
            case FunctionOutputItem() | CustomOutputItem():
                if item.call_id not in names:
                    param = f"input[{index}].call_id"
                    message = f"{param!r} is wrong: no earlier item is a call of this id."
                    raise InvalidRequest(message, param=param)
                found.append(result_in_history(item.call_id, names[item.call_id], text_of(item.output)))
            case ReasoningItem(encrypted_content=str(blob)) if blob:
                sealed = {"blob": blob, "param": f"input[{index}].encrypted_content"}
                found.append({"role": "assistant", "content": "", SEALED_REASONING: sealed})
            case CompactionItem():
                param = f"input[{index}].encrypted_content"
                summary = {"blob": item.encrypted_content, "param": param}
                found.append({"role": "user", "content": "", SEALED_SUMMARY: summary})
            case ReasoningItem():
                if text := item.text():
                    found.append({"role": "assistant", "content": "", "reasoning_content": text})
    if all(message["role"] == "system" for message in found):
        raise InvalidRequest("'input' has no message for the model to answer.", param="input")
    return found


def has_sealed(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message has an encrypted part."""
    return any(SEALED_REASONING in message or SEALED_SUMMARY in message for message in messages)


def _answer(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of the assistant's at the end of the conversation, which a further item joins."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _add_call(found: list[dict[str, Any]], call: Mapping[str, Any]) -> None:
    _answer(found).setdefault("tool_calls", []).append(call)


def text_of(content: str | Sequence[InputText | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return PART_SEPARATOR.join([part.refusal if isinstance(part, RefusalPart) else part.text for part in content])


def qualified_name(name: str, namespace: str | None) -> str:
    """The name of a tool that the model sees."""
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}" if namespace else name
