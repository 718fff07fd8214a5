"""Events of `/v1/responses`: a client that follows the SDK's own types builds the same items from them."""

from __future__ import annotations

import json
import os
import random
import string
from collections.abc import Sequence
from typing import Any

import pydantic
import pytest
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent

from gateway.answers.responses_parts import ItemWriter
from gateway.answers.responses_shape import error_code
from gateway.errors import (
    ApiError,
    BudgetExceeded,
    ContextLengthExceeded,
    EngineDown,
    InternalError,
    InvalidRequest,
    RateLimited,
    encode,
)
from gateway.stored.rebuilt import rebuild_response
from gateway.tools.definitions import ToolSpec
from gateway.tools.parts import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Part, ReasoningDelta

GENERATIONS = int(os.environ.get("LANEWAY_GENERATIONS", "400"))
EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)
ITEM: Any = pydantic.TypeAdapter(ResponseOutputItem)
TOOLS = {
    "find": ToolSpec("find"),
    "shell": ToolSpec("shell", custom=True),
    "sky__see": ToolSpec("sky__see", namespace="sky"),
}


def random_parts(dice: random.Random) -> list[Part]:
    """Parts as an answer's reader makes them: reasoning, then text and calls in any order, perhaps cut."""

    def text() -> str:
        return "".join(dice.choices(string.printable + 'ä"\\漢', k=dice.randrange(1, 9)))

    parts: list[Part] = [ReasoningDelta(text()) for _ in range(dice.choice([0, 0, 1, 3]))]
    calls = 0
    for _ in range(dice.randrange(5)):
        if dice.random() < 0.5:
            parts += [ContentDelta(text()) for _ in range(dice.randrange(1, 4))]
            continue
        name = dice.choice(list(TOOLS))
        parts.append(CallStart(calls, f"call_{calls}", name, TOOLS[name].custom))
        parts += [ArgumentsDelta(calls, text()) for _ in range(dice.randrange(4))]
        if dice.random() < 0.1:
            break  # cut
        parts.append(CallEnd(calls, dice.random() < 0.95))
        calls += 1
    return parts


class Client:
    """Builds the output from events alone, and checks their order."""

    def __init__(self) -> None:
        self.output: list[Any] = []
        self.open: int | None = None  # output index of the open item
        self.part_open = False
        self.texts: dict[str, str] = {}  # by kind of the deltas

    def take(self, event: Any) -> None:
        kind = event.type.removeprefix("response.")
        if kind == "output_item.added":
            assert self.open is None
            assert event.output_index == len(self.output)
            self.output.append(event.item)
            self.open, self.texts = event.output_index, {}
            return
        assert event.output_index == self.open, event
        item = self.output[-1]
        if kind == "output_item.done":
            assert not self.part_open
            assert (event.item.id, event.item.type) == (item.id, item.type)
            self.output[-1] = event.item
            self.open = None
            return
        assert event.item_id == item.id
        if kind in ("content_part.added", "reasoning_summary_part.added"):
            assert not self.part_open
            self.part_open = True
        elif kind in ("content_part.done", "reasoning_summary_part.done"):
            assert self.part_open
            self.part_open = False
            assert event.part.text == "".join(self.texts.values())
        elif kind.endswith(".delta"):
            name = kind.removesuffix(".delta")
            self.texts[name] = self.texts.get(name, "") + event.delta
        else:
            name = kind.removesuffix(".done")
            whole = next(getattr(event, field) for field in ("text", "arguments", "input") if hasattr(event, field))
            assert whole == self.texts.get(name, "")


def sent(writer: ItemWriter, part: Part) -> list[bytes]:
    """The server-sent events of a part, without numbers."""
    if (event := writer.extend(part)) is not None:
        return [event + b"0}\n\n"]
    return list(map(encoded, writer.events(part)))


def encoded(event: Any) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + encode({**event, "sequence_number": 0}) + b"\n\n"


def play(parts: Sequence[Part], *, reasoning: bool, summarized: bool, cut: bool) -> ItemWriter:
    writer, client = ItemWriter("0" * 24, TOOLS, reasoning=reasoning, summarized=summarized), Client()
    events = [event for part in parts for event in sent(writer, part)]
    open_items = json.loads(rebuild_response(b"{}", events))["output"]
    events += map(encoded, writer.close(complete=not cut))
    for event in events:
        name, _, data = event.partition(b"\ndata: ")
        found = EVENT.validate_python(json.loads(data))
        assert name == b"event: " + found.type.encode()
        client.take(found)
    assert client.open is None
    items = [json.loads(item.model_dump_json(exclude_unset=True)) for item in client.output]
    assert items == writer.items
    for item in writer.items:
        ITEM.validate_python(item)
    assert json.loads(rebuild_response(b"{}", events))["output"] == writer.items
    # Before its end an item has its texts as well. Only the parts that `done` events add may be missing.
    assert [texts_of(item) for item in open_items] == [texts_of(item) for item in writer.items]
    return writer


def texts_of(item: Any) -> list[str]:
    parts = [*item.get("summary", []), *item.get("content", [])]
    return [item.get("arguments", ""), item.get("input", ""), *[part["text"] for part in parts]]


def test_events_build_the_items_of_random_answers() -> None:
    seen: set[str] = set()
    for seed in range(GENERATIONS):
        dice = random.Random(seed)
        parts = random_parts(dice)
        shown, summarized, cut = dice.random() < 0.9, dice.random() < 0.3, dice.random() < 0.1
        writer = play(parts, reasoning=shown, summarized=summarized, cut=cut)
        seen |= {item["type"] for item in writer.items}
        assert len({item["id"] for item in writer.items}) == len(writer.items)
        text = "".join(part.text for part in parts if isinstance(part, ContentDelta))
        content = [part["text"] for item in writer.items if item["type"] == "message" for part in item["content"]]
        assert "".join(content) == text
    assert seen == {"message", "reasoning", "function_call", "custom_tool_call"}


def test_a_namespace_and_a_name_are_apart() -> None:
    writer = play([CallStart(0, "call_1", "sky__see"), CallEnd(0)], reasoning=True, summarized=False, cut=False)
    assert (writer.items[0]["namespace"], writer.items[0]["name"]) == ("sky", "see")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BudgetExceeded("Spent.", code="key_budget_exceeded"), "insufficient_quota"),
        (ContextLengthExceeded("Too long."), "context_length_exceeded"),
        (RateLimited("Too many.", retry_after_s=1.5), "rate_limit_exceeded"),
        (InvalidRequest("No."), "invalid_prompt"),
        (InternalError(), "server_error"),
        (EngineDown("Away."), "engine_unavailable"),
    ],
)
def test_a_failed_response_has_the_code_that_codex_reads(error: ApiError, code: str) -> None:
    assert error_code(error) == code
