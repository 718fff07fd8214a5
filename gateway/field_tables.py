"""`python -m gateway.field_tables`: how each field of a request is handled, as JSON, derived from the wire types.

docs/users/fields-*.md and the console's page Connect are generated from it, so that they agree with the decoders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import inspect

from gateway.api import chat_wire, completions_wire, messages_wire, responses_wire
from gateway.api.chat_wire import PARTS_MAX
from gateway.api.output_formats import UNSERVED_STRUCTURED
from gateway.api.parsing import UnservedFields, UnsupportedField
from gateway.api.sampling import UNSERVED_STREAM_OPTIONS
from gateway.api.unknown_fields import UnknownFields
from gateway.generation.tier_choice import AUTO

State = Literal["works", "hint", "neutral", "refused"]
# State → its label in a table, in the order of a table's rows.
STATES: dict[State, str] = {
    "works": "works",
    "hint": "hint: accepted, changes nothing",
    "neutral": "neutral values only",
    "refused": "refused",
}
# Bounds from this number on are not shown: no caller reaches them.
BOUND_MAX = 2**31 - 1
_QUOTED = re.compile(r"'(\w+)'")


class FieldRow(msgspec.Struct, frozen=True):
    """One field. `field`: its path in the body; [] stands for the items of a list. `values`: the accepted values,
    besides null for an optional field. `why`: why the field has no effect, a sentence without its full stop, or ""."""

    field: str
    state: State
    values: str
    why: str
    required: bool


class EndpointFields(msgspec.Struct, frozen=True):
    path: str
    kind: type[msgspec.Struct]
    unserved: UnservedFields
    hints: Mapping[str, str]
    parse: Callable[[bytes, UnknownFields], msgspec.Struct]


class FieldTable(msgspec.Struct, frozen=True):
    path: str
    rows: list[FieldRow]


_NESTED = {
    f"{field}.{name}": entry
    for field, unserved in (("stream_options", UNSERVED_STREAM_OPTIONS), ("structured_outputs", UNSERVED_STRUCTURED))
    for name, entry in unserved.items()
}
ENDPOINTS = (
    EndpointFields(
        "/v1/chat/completions",
        chat_wire.ChatRequest,
        {**chat_wire.UNSUPPORTED_FIELDS, **_NESTED},
        chat_wire.HINTS,
        chat_wire.parse_chat,
    ),
    EndpointFields(
        "/v1/completions",
        completions_wire.CompletionRequest,
        {**completions_wire.UNSUPPORTED_FIELDS, **_NESTED},
        completions_wire.HINTS,
        completions_wire.parse_completion,
    ),
    EndpointFields(
        "/v1/messages",
        messages_wire.MessagesRequest,
        messages_wire.UNSUPPORTED_FIELDS,
        messages_wire.HINTS,
        messages_wire.parse_messages,
    ),
    EndpointFields(
        "/v1/responses",
        responses_wire.ResponsesRequest,
        responses_wire.UNSUPPORTED_FIELDS,
        responses_wire.HINTS,
        responses_wire.parse_response,
    ),
)
# Descriptions that replace `words(type)` where that would be long.
VALUES = {
    "prompt": "a text, a list of texts, a list of ids, or a list of lists of ids; at most "
    f"{completions_wire.PROMPTS_MAX} prompts, and prompts × `n` at most {completions_wire.TEXTS_MAX}",
    "input[].content": f"of a message: text, or list (at most {PARTS_MAX}) of objects; of reasoning: list of objects",
}
# The `type` of these objects may be left out.
UNTYPED = ("input[].type",)
# Additions to `words(type)` of fields that work, by path in the body.
REMARKS = {
    "model": "a name of `GET /v1/models`",
    "max_tokens": "completion tokens of each text",
    "max_completion_tokens": "the newer name of `max_tokens`",
    "n": "texts of each prompt",
    "service_tier": f"`{AUTO}`, or the name of a tier; it may lower the key's own tier and never raises it",
    "stream_options": "only with `stream`",
    "top_logprobs": "only with `logprobs`",
    "continue_final_message": "the last message is the beginning of the answer",
    "ignore_eos": "the model's own end does not end a text",
    "system[].text": "a first block that begins with `x-anthropic-billing-header:` is left out of the prompt",
    "messages[].content": "parts are joined by line breaks",
    "tools": "needs a model that knows tools: `capabilities` in `GET /v1/models`",
    "tools[].strict": "a schema that cannot be followed is refused; without it, the input is then any JSON object",
    "tools[].function.strict": "a schema that cannot be followed is refused; without it, any object is then accepted",
    "parallel_tool_calls": "false: at most one call",
    "response_format.json_schema.strict": "the schema has OpenAI's limits; the answer follows it anyway",
    "reasoning_effort": "`none` turns reasoning off; a model whose template knows no efforts ignores the others",
    "max_reasoning_tokens": "the engine ends the reasoning there",
    "include_reasoning": "false: the answer does not show the reasoning, which is billed all the same",
    "thinking": "without it a model that can choose does not think; `budget_tokens` is enforced by the engine",
    "messages[].content[].signature": "it is not checked",
}
# As REMARKS, of one endpoint.
OWN_REMARKS: dict[str, dict[str, str]] = {
    "/v1/responses": {
        "input": "reasoning, text and calls that follow one another are one message of the assistant",
        "input[].type": (
            "an item with a `role` needs none; `additional_tools` adds its `tools` to those of the request; "
            "`item_reference` stands for an item of a stored answer, and is refused for any other id; an item of any "
            "other type is left out, and named in `laneway-ignored`"
        ),
        "input[].encrypted_content": "of reasoning (read in the place of its text), or of a compaction",
        "input[].namespace": "the model sees `namespace__name`",
        "instructions": "a system message before the input; a response that continues this one does not have it",
        "max_output_tokens": "completion tokens, those of the reasoning included",
        "reasoning.effort": "`none` turns reasoning off; a model whose template knows no efforts ignores the others",
        "reasoning.summary": "the reasoning of the answer is also its summary",
        "reasoning.generate_summary": "the older name of `summary`",
        "reasoning.max_tokens": "the engine ends the reasoning there",
        "text.format.strict": "the schema has OpenAI's limits; the answer follows it anyway",
        "tools[].type": "a tool of any other type is left out, and named in `laneway-ignored`",
        "tools[].description": "that of a namespace changes nothing",
        "tools[].tools": "of a namespace",
        "tools[].format": "of a custom tool, whose input is one text",
        "include": (
            f"`{responses_wire.ENCRYPTED_REASONING}`: the answer also has its reasoning encrypted; other values change "
            "nothing"
        ),
        "conversation": "a conversation whose items come first, where the tenant has its responses stored; excludes "
        "`previous_response_id`",
        "previous_response_id": (
            "the stored response that this one continues; any other id is refused as `previous_response_not_found`"
        ),
        "store": (
            "false: the response is not stored; otherwise it is stored if the operator has the tenant's responses "
            "stored; `store` in the answer says whether it is"
        ),
        "background": "true needs a response that is stored; the answer is then made without a waiting client",
        "metadata": "the answer repeats it; a stored answer has it too",
    },
}


def tables() -> list[FieldTable]:
    """A table for each endpoint that generates text; its rows by state, then in the order of the wire type."""
    return [FieldTable(endpoint.path, rows(endpoint)) for endpoint in ENDPOINTS]


def rows(endpoint: EndpointFields) -> list[FieldRow]:
    by_field: dict[str, FieldRow] = {}
    for row in _rows(inspect.type_info(endpoint.kind), endpoint, ""):
        by_field[row.field] = _merge(by_field[row.field], row) if row.field in by_field else row
    return sorted(by_field.values(), key=lambda row: list(STATES).index(row.state))


def _rows(kind: inspect.Type, endpoint: EndpointFields, prefix: str) -> Iterator[FieldRow]:
    """The rows of the structs in this type; for a union, the rows of all its structs."""
    structs = list(_structs(kind))
    tag_field = structs[0].tag_field
    if tag_field is not None:
        tags = " or ".join([f'`"{struct.tag}"`' for struct in structs])
        path = f"{prefix}{tag_field}"
        values = "; ".join([part for part in (tags, _remark(endpoint, path)) if part])
        yield FieldRow(path, "works", values, "", required=path not in UNTYPED)
    for struct in structs:
        for field in struct.fields:
            yield from _field(field, endpoint, f"{prefix}{field.encode_name}")


def _remark(endpoint: EndpointFields, path: str) -> str:
    return OWN_REMARKS.get(endpoint.path, {}).get(path) or REMARKS.get(path, "")


def _merge(row: FieldRow, other: FieldRow) -> FieldRow:
    """One row of a field that several structs have; each may have different values. `required`: by each of them."""
    parts, others = row.values.split("; "), other.values.split("; ")
    first = parts[0] if others[0] in parts[0] else f"{parts[0]} or {others[0]}"
    values = "; ".join(dict.fromkeys([first, *parts[1:], *others[1:]]))
    return msgspec.structs.replace(row, values=values, required=row.required and other.required)


def _field(field: inspect.Field, endpoint: EndpointFields, path: str) -> Iterator[FieldRow]:
    if (entry := endpoint.unserved.get(path)) is not None:
        yield _unserved(path, entry)
    elif (why := endpoint.hints.get(path)) is not None:
        yield FieldRow(path, "hint", words(field.type), why, required=False)
    elif (neutral := _only_neutral(field.type)) is not None:
        yield FieldRow(path, "neutral", neutral, "No answer made here has it", required=False)
    else:
        parts = [words(field.type), _remark(endpoint, path), _description(field.type)]
        values = VALUES.get(path) or "; ".join([part for part in parts if part])
        yield FieldRow(path, "works", values, "", field.required)
        if next(_structs(field.type), None) is not None:
            yield from _rows(field.type, endpoint, f"{path}[]." if _has_list(field.type) else f"{path}.")


def _unserved(path: str, entry: UnsupportedField) -> FieldRow:
    why = _QUOTED.sub(r"`\1`", entry.why)
    if not entry.neutral:
        return FieldRow(path, "refused", "", why, required=False)
    values = " or ".join([f"`{msgspec.json.encode(value).decode()}`" for value in entry.neutral])
    return FieldRow(path, "neutral", values, why, required=False)


def _only_neutral(kind: inspect.Type) -> str | None:
    """The values of a type whose values are all neutral; None for any other type."""
    match kind:
        case inspect.NoneType():
            return "`null`"
        case inspect.UnionType():
            found = [_only_neutral(member) for member in kind.types]
            neutral = [values for values in found if values is not None]
            return " or ".join([v for v in neutral if v != "`null`"]) if len(neutral) == len(found) else None
        case inspect.ListType(max_length=0):
            return "`[]`"
    return None


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    match kind:
        case inspect.StructType():
            yield kind
        case inspect.Metadata():
            yield from _structs(kind.type)
        case inspect.UnionType():
            for member in kind.types:
                yield from _structs(member)
        case inspect.ListType():
            yield from _structs(kind.item_type)


def _has_list(kind: inspect.Type) -> bool:
    match kind:
        case inspect.ListType():
            return True
        case inspect.Metadata():
            return _has_list(kind.type)
        case inspect.UnionType():
            return any(_has_list(member) for member in kind.types)
    return False


def _description(kind: inspect.Type) -> str:
    """The description in the type's JSON schema, as in the OpenAPI description; "" without one."""
    match kind:
        case inspect.Metadata():
            text = str((kind.extra_json_schema or {}).get("description", ""))
            return text[:1].lower() + text[1:]
        case inspect.UnionType():
            return "; ".join([text for member in kind.types if (text := _description(member))])
    return ""


def words(kind: inspect.Type) -> str:
    """A type and its bounds in words. Null is omitted."""
    match kind:
        case inspect.Metadata():
            schema = kind.extra_json_schema or {}
            if "minimum" in schema:
                return f"number from {schema['minimum']} to {schema['maximum']}"
            return words(kind.type)
        case inspect.UnionType():
            members = [words(member) for member in kind.types if not isinstance(member, inspect.NoneType)]
            return ", or ".join(dict.fromkeys(members))
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return (
                "text" if kind.max_length is None else f"text of {kind.min_length or 0} to {kind.max_length} characters"
            )
        case inspect.IntType() | inspect.FloatType():
            return _number(kind)
        case inspect.LiteralType():
            return " or ".join([f'`"{value}"`' for value in sorted(map(str, kind.values))])
        case inspect.ListType():
            return f"list{_length(kind)}{_items(words(kind.item_type))}"
        case inspect.DictType():
            values = "" if isinstance(kind.value_type, inspect.AnyType) else f", each {words(kind.value_type)}"
            return f"object{_length(kind)}{values}"
        case inspect.StructType():
            return "object"
    return "anything"


def _items(item: str) -> str:
    return " of objects" if set(item.split(", or ")) == {"object"} else f", each {item}"


def _length(kind: inspect.ListType | inspect.DictType) -> str:
    return "" if kind.max_length is None else f" (at most {kind.max_length})"


def _number(kind: inspect.IntType | inspect.FloatType) -> str:
    name = "integer" if isinstance(kind, inspect.IntType) else "number"
    low, high = kind.ge, kind.le
    if kind.gt is not None:
        return f"{name} over {_plain(kind.gt)}, at most {_plain(high)}"
    if low is None or low < -BOUND_MAX:
        return name
    return f"{name} from {_plain(low)}" + ("" if high is None or high >= BOUND_MAX else f" to {_plain(high)}")


def _plain(bound: Any) -> str:
    return f"{bound:g}"


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(tables()), indent=1) + b"\n")
