"""Reads calls that are JSON objects with a name and arguments: Hermes, Llama 3 and Mistral."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from gateway.tools.definitions import ToolSpec
from gateway.tools.readers import CallClosed, CallOpened, CallText, ReadEvent, ReadState
from gateway.tools.scanning import (
    BLANK,
    QUOTED,
    AnswerMarkers,
    JsonObjectScanner,
    MatchState,
    Pattern,
    Peek,
    match_any,
)


class JsonFraming(msgspec.Struct, frozen=True, kw_only=True):
    """The text around the objects. With `close` a section has one call; without it a section is a list. `list_open`
    and `list_close` are written as they are here, and read with any white space."""

    open: str = ""
    list_open: str = ""
    separator: str = ""
    list_close: str = ""
    close: str = ""
    arguments_key: str = "arguments"


class _Phase(enum.Enum):
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"  # behind the arguments
    NEXT = "next"  # behind a call


class JsonCallReader:
    """Implements `CallReader`. The arguments are passed on as the model writes them."""

    def __init__(self, framing: JsonFraming, tools: Mapping[str, ToolSpec], markers: AnswerMarkers) -> None:
        self._framing = framing
        self._tools = tools
        self._markers = markers
        self._open = markers.symbol(framing.open)
        self._close = markers.symbol(framing.close)
        self._phase = _Phase.HEAD
        self._first = True
        self._scanner = JsonObjectScanner()
        begin: Pattern = [part for part in (self._open, BLANK, framing.list_open.strip(), BLANK) if part != ""]
        self._begin_heads = self._heads(begin)
        self._next_heads = self._heads([BLANK])

    def _heads(self, before: Pattern) -> list[Pattern]:
        """Patterns of a call up to its arguments; the last one has no arguments."""
        name: Pattern = [*before, "{", BLANK, '"name"', BLANK, ":", BLANK, QUOTED, BLANK]
        keys = ("arguments", "parameters")
        return [*[[*name, ",", BLANK, f'"{key}"', BLANK, ":", BLANK, Peek("{")] for key in keys], [*name, Peek("}")]]

    def read(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState]:
        at = 0
        while True:
            match self._phase:
                case _Phase.HEAD:
                    size, state = self._read_head(text[at:], events, last=last)
                case _Phase.ARGUMENTS:
                    size, state = self._read_arguments(text[at:], events, last=last)
                case _Phase.TAIL:
                    size, state = self._read_tail(text[at:], last=last)
                case _Phase.NEXT:
                    size, state = self._read_next(text[at:], last=last)
            at += size
            if state is not None:
                return at, state

    def _read_head(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState | None]:
        index, matched = match_any(self._begin_heads if self._first else self._next_heads, text)
        if matched.state is MatchState.PARTIAL and not last:
            return 0, ReadState.MORE
        if matched.state is not MatchState.FULL:
            return 0, ReadState.FAILED
        [name] = matched.captures
        if not self._framing.open and name not in self._tools:
            return 0, ReadState.FAILED  # without a marker only a tool's name distinguishes a call from text
        self._first = False
        events.append(CallOpened(name))
        if index == len(self._begin_heads) - 1:  # no arguments
            events.append(CallText("{}"))
            events.append(CallClosed(complete=True))
            self._phase = _Phase.TAIL
        else:
            self._scanner = JsonObjectScanner()
            self._phase = _Phase.ARGUMENTS
        return matched.end, None

    def _read_arguments(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState | None]:
        cut = self._markers.find_symbol(text)
        size = self._scanner.push_text(text if cut < 0 else text[:cut])
        if size:
            events.append(CallText(text[:size]))
        if self._scanner.done:
            events.append(CallClosed(complete=True))
            self._phase = _Phase.TAIL
            return size, None
        if cut < 0:
            if last:
                events.append(CallClosed(complete=False))
            return size, ReadState.DONE if last else ReadState.MORE
        # A marker inside the arguments ends them: no JSON text has it.
        events.append(CallClosed(complete=False))
        closes = text.startswith(self._close, size) and bool(self._close)
        return size + len(self._close) * closes, ReadState.DONE

    def _read_tail(self, text: str, *, last: bool) -> tuple[int, ReadState | None]:
        """The object's closing bracket; before it, Mistral's models write the id of the call."""
        own_id: Pattern = [BLANK, ",", BLANK, '"id"', BLANK, ":", BLANK, QUOTED, BLANK, "}"]
        _, matched = match_any([[BLANK, "}"], own_id], text)
        if matched.state is MatchState.FULL:
            self._phase = _Phase.NEXT
            return matched.end, None
        return self._end_or_wait(text, matched.state, last=last)

    def _read_next(self, text: str, *, last: bool) -> tuple[int, ReadState | None]:
        framing = self._framing
        ends: list[Pattern] = []
        if self._close:
            ends.append([BLANK, self._close])
        elif framing.list_close:
            ends.append([BLANK, framing.list_close])
        goes_on = len(ends)
        if framing.separator:
            ends.append([BLANK, framing.separator, BLANK, Peek("{")])
        index, matched = match_any(ends, text)
        if matched.state is MatchState.FULL:
            if index == goes_on:
                self._phase = _Phase.HEAD
                return matched.end, None
            return matched.end, ReadState.DONE
        return self._end_or_wait(text, matched.state, last=last)

    def _end_or_wait(self, text: str, state: MatchState, *, last: bool) -> tuple[int, ReadState]:
        """Behind a whole call: unfinished framing at the end of the answer is dropped; other text is content."""
        if state is MatchState.PARTIAL and not last:
            return 0, ReadState.MORE
        if state is MatchState.PARTIAL and last:
            return len(text), ReadState.DONE
        return 0, ReadState.DONE
