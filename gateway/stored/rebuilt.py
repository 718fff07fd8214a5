"""Rebuilds the response object of a response in the background from its stored events, before it ends or if it never
does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.errors import encode

EVENT_END = b"\n\n"
_DATA = b"data: "
# By the type of an event: the list of the item that has the text (None: the item itself), and the name of the text.
_TEXTS: dict[str, tuple[str | None, str]] = {
    "response.output_text.delta": ("content", "text"),
    "response.reasoning_text.delta": ("content", "text"),
    "response.reasoning_summary_text.delta": ("summary", "text"),
    "response.function_call_arguments.delta": (None, "arguments"),
    "response.custom_tool_call_input.delta": (None, "input"),
}
_PARTS = {"response.content_part.added": "content", "response.reasoning_summary_part.added": "summary"}


def split_events(events: bytes) -> list[bytes]:
    """The server-sent events of a group, each with its end."""
    return [event + EVENT_END for event in events.split(EVENT_END)[:-1]]


def rebuild_response(response: bytes, events: Iterable[bytes], **members: Any) -> bytes:
    """`response`, an object without output, with the output of `events` (server-sent events from the first on) and with
    `members` in the place of its own. An item that has not ended has the status "incomplete", if it has one."""
    output: list[dict[str, Any]] = []
    pieces: list[str] = []  # of the open text
    place: tuple[dict[str, Any], str] | None = None  # of the open text: an object, and a name in it

    def close_text() -> None:
        nonlocal place
        if place is not None:
            place[0][place[1]] = "".join(pieces)
        pieces.clear()
        place = None

    for event in events:
        data = msgspec.json.decode(event[event.index(_DATA) + len(_DATA) :])
        kind = data["type"]
        if kind in _TEXTS:
            among, name = _TEXTS[kind]
            item = output[data["output_index"]]
            place = item if among is None else item[among][-1], name
            pieces.append(data["delta"])
        elif kind in _PARTS:
            output[data["output_index"]].setdefault(_PARTS[kind], []).append(data["part"])
        elif kind == "response.output_item.added":
            output.append(data["item"])
        elif kind == "response.output_item.done":
            close_text()
            output[data["output_index"]] = data["item"]
    close_text()
    for item in output:
        if item.get("status") == "in_progress":
            item["status"] = "incomplete"
    decoded = msgspec.json.decode(response)
    return encode({**decoded, **members, "output": output})
