"""The items of a stored conversation, in the form in which OpenAI's SDK reads them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from billing.ids import new_id

Item = dict[str, Any]


class _Kind(NamedTuple):
    """A type of items. `fields`: the stored fields besides id, type and status; all of them are texts, or lists of
    parts with a text. Hints, whose values may be anything, are left out."""

    id_prefix: str
    fields: tuple[str, ...]
    has_status: bool = False  # in OpenAI's SDK


# By type. Items of other types are not stored, since no prompt has them.
KINDS = {
    "message": _Kind("msg", ("role", "content", "phase"), has_status=True),
    "function_call": _Kind("fc", ("call_id", "name", "namespace", "arguments"), has_status=True),
    "function_call_output": _Kind("fco", ("call_id", "output"), has_status=True),
    "custom_tool_call": _Kind("ctc", ("call_id", "name", "namespace", "input")),
    "custom_tool_call_output": _Kind("ctco", ("call_id", "output")),
    "reasoning": _Kind("rs", ("summary", "content", "encrypted_content")),
    "compaction": _Kind("cmp", ("encrypted_content",)),
}
ITEM_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_PART_FIELDS = ("type", "text", "refusal")
_STATUSES = ("in_progress", "completed", "incomplete")


class _Answer(msgspec.Struct):
    output: list[Item]


# Floats are read by Python, which reads numbers beyond its range as infinity: the request was accepted with them.
_read_items = msgspec.json.Decoder(list[Any], float_hook=float).decode
_read_answer = msgspec.json.Decoder(_Answer).decode


class TurnItems(msgspec.Struct, frozen=True):
    """The items that a response adds to a conversation: the items of its request (a JSON array), and of its answer (the
    response object)."""

    conversation_id: str
    input: bytes
    answer: bytes

    def read_items(self) -> list[Item]:
        own = [item for item in _read_items(self.input) if isinstance(item, dict)]
        return own + _read_answer(self.answer).output


def items_to_store(items: Sequence[Item], taken: Collection[str]) -> list[Item]:
    """The items that a conversation stores, each with an id. An item's id does not change, unless it is `taken` by
    another item of the conversation or is not an ITEM_ID."""
    found = []
    known = set(taken)
    for item in items:
        name = item.get("type") or ("message" if "role" in item else "")
        kind = KINDS.get(name)
        if kind is None:
            continue
        id_ = item.get("id")
        if not isinstance(id_, str) or not ITEM_ID.fullmatch(id_) or id_ in known:
            id_ = new_id(kind.id_prefix)
        known.add(id_)
        stored = {"id": id_, "type": name, **_members(item, kind.fields)}
        if kind.has_status:
            status = item.get("status")
            stored["status"] = status if status in _STATUSES else "completed"
        found.append(stored)
    return found


def _members(item: Item, fields: Sequence[str]) -> Item:
    """The fields that are not null. The content of a message is a list of parts."""
    found = {field: item[field] for field in fields if item.get(field) is not None}
    for field, value in found.items():
        if field == "content" and isinstance(value, str):
            found[field] = [_part({"type": _text_type(item), "text": value})]
        elif isinstance(value, list):
            found[field] = [_part(part) for part in value]
    return found


def _text_type(message: Item) -> str:
    return "output_text" if message.get("role") == "assistant" else "input_text"


def _part(part: Item) -> Item:
    found = {field: part[field] for field in _PART_FIELDS if part.get(field) is not None}
    return {**found, "annotations": []} if part.get("type") == "output_text" else found
