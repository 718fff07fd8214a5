"""The items of a stored conversation, in the form in which OpenAI's SDK reads them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from billing.ids import new_id

Item = dict[str, Any]

# By the type of an item: how its id begins. Items of other types are not stored, since no prompt has them.
ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "additional_tools": "at",
}
ITEM_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_WITH_STATUS = ("message", "function_call", "function_call_output")  # types that have a status in the SDK
_STATUSES = ("in_progress", "completed", "incomplete")


class _Answer(msgspec.Struct):
    output: list[Item]


_read_items = msgspec.json.Decoder(list[Any]).decode
_read_answer = msgspec.json.Decoder(_Answer).decode


class TurnItems(msgspec.Struct, frozen=True):
    """What a response adds to a conversation: the items of its request (a JSON array), and those of its answer (the
    response object)."""

    conversation_id: str
    input: bytes
    answer: bytes

    def read_items(self) -> list[Item]:
        own = [item for item in _read_items(self.input) if isinstance(item, dict)]
        return own + _read_answer(self.answer).output


def items_to_store(items: Sequence[Item], taken: Collection[str]) -> list[Item]:
    """The items that a conversation stores, each with an id. An item keeps its id, unless that is `taken` by another
    item of the conversation or is not an ITEM_ID."""
    found = []
    known = set(taken)
    for item in items:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind not in ID_PREFIXES:
            continue
        id_ = item.get("id")
        if not isinstance(id_, str) or not ITEM_ID.fullmatch(id_) or id_ in known:
            id_ = new_id(ID_PREFIXES[kind])
        known.add(id_)
        found.append(_normal_form(item, kind, id_))
    return found


def _normal_form(item: Item, kind: str, id_: str) -> Item:
    """The item without null members, with its type, id and status. The content of a message is a list of parts."""
    found = {"id": id_, "type": kind, **{name: value for name, value in item.items() if value is not None}}
    found |= {"id": id_, "type": kind}
    if kind in _WITH_STATUS and found.get("status") not in _STATUSES:
        found["status"] = "completed"
    if kind == "message":
        content = found.get("content", "")
        if isinstance(content, str):
            content = [{"type": "output_text" if item.get("role") == "assistant" else "input_text", "text": content}]
        found["content"] = [_part(part) for part in content]
    return found


def _part(part: Item) -> Item:
    found = {name: value for name, value in part.items() if value is not None}
    return {**found, "annotations": found.get("annotations", [])} if found.get("type") == "output_text" else found
