"""The parts of an answer in the words of the Messages API: content blocks, whole and as the events of a stream."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from gateway.api.messages_wire import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputJsonDelta,
    SignatureDelta,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ToolUseContent,
)
from gateway.tools.json_prefix import complete_object
from gateway.tools.parts import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Part, ReasoningDelta


def blocks_of(parts: Sequence[Part], *, thinking: bool) -> list[AnswerBlock]:
    """The content of a whole answer, at least one block. `thinking`: the text of the reasoning is shown. The input of a
    call that was cut has the members that are whole."""
    blocks: list[AnswerBlock] = []
    arguments = ""
    for part in parts:
        match part:
            case ContentDelta(text):
                blocks.append(TextContent(text=text))
            case ReasoningDelta(text):
                shown = text if thinking else ""
                blocks.append(ThinkingContent(thinking=shown, signature=_signature(_hashed(text))))
            case CallStart(id=id_, name=name):
                blocks.append(ToolUseContent(id=id_, name=name, input={}))
                arguments = ""
            case ArgumentsDelta(text=text):
                arguments += text
            case CallEnd():
                started = blocks[-1]
                assert isinstance(started, ToolUseContent)
                blocks[-1] = ToolUseContent(id=started.id, name=started.name, input=_input(arguments))
    return blocks or [TextContent(text="")]


def _input(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return complete_object(arguments)
    return value if isinstance(value, dict) else {}


class BlockWriter:
    """Makes the events of a stream's blocks."""

    def __init__(self, *, thinking: bool) -> None:
        self._thinking = thinking
        self._index = -1
        self._open: type[Part] | None = None  # the parts of the open block
        self._hash = hashlib.sha256()

    def events(self, part: Part) -> list[Event]:
        """The events of one part."""
        match part:
            case ContentDelta(text):
                opening = self._open_block(ContentDelta, TextContent(text=""))
                return [*opening, BlockDelta(TextDelta(text), self._index)]
            case ReasoningDelta(text):
                opening = self._open_block(ReasoningDelta, ThinkingContent(thinking="", signature=""))
                self._hash.update(text.encode(errors="surrogatepass"))
                return [*opening, BlockDelta(ThinkingDelta(text), self._index)] if self._thinking else opening
            case CallStart(id=id_, name=name):
                self._open = None if self._open is CallStart else self._open
                return self._open_block(CallStart, ToolUseContent(id=id_, name=name, input={}))
            case ArgumentsDelta(text=text):
                return [BlockDelta(InputJsonDelta(text), self._index)]
            case CallEnd():
                return self._close_block()

    def closing(self) -> list[Event]:
        """The end of the last block. An answer without parts has an empty text."""
        opening = self._open_block(ContentDelta, TextContent(text="")) if self._index < 0 else []
        return opening + self._close_block()

    def _open_block(self, kind: type[Part], content: AnswerBlock) -> list[Event]:
        if self._open is kind:
            return []
        closing = self._close_block()
        self._open = kind
        self._index += 1
        return [*closing, BlockStart(content, self._index)]

    def _close_block(self) -> list[Event]:
        if self._open is None:
            return []
        events: list[Event] = []
        if self._open is ReasoningDelta:
            events.append(BlockDelta(SignatureDelta(_signature(self._hash)), self._index))
            self._hash = hashlib.sha256()
        self._open = None
        return [*events, BlockStop(self._index)]


def _hashed(text: str) -> hashlib._Hash:
    return hashlib.sha256(text.encode(errors="surrogatepass"))


def _signature(hashed: hashlib._Hash) -> str:
    """Opaque to clients: the API demands a text. It proves nothing, as thinking blocks of a history are not checked."""
    return base64.b64encode(b"laneway " + hashed.digest()).decode()
