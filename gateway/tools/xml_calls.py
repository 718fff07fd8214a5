"""Reads calls that are elements: Qwen3-Coder's `<function=name>` with a `<parameter=key>` for each argument."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

from gateway.tools.definitions import ToolSpec
from gateway.tools.readers import CallClosed, CallOpened, CallText, ReadEvent, ReadState
from gateway.tools.scanning import (
    BLANK,
    FRAMING_CHARS_MAX,
    AnswerMarkers,
    Matched,
    MatchState,
    held_suffix,
    match_pattern,
)

FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
VALUE_END = "</parameter>"


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a parameter's value is written as its text."""
    if "type" not in schema and "enum" in schema:
        return isinstance(schema["enum"], list) and all(isinstance(one, str) for one in schema["enum"])
    return bool(schema.get("type") == "string")


class _Phase(enum.Enum):
    HEAD = "head"
    PARAMETER = "parameter"  # before a parameter or the end of the function
    TEXT = "text"  # in a value that is passed on as it arrives
    VALUE = "value"  # in a value that is passed on as a whole
    TAIL = "tail"  # behind the function


class XmlCallReader:
    """Implements `CallReader`. The arguments become a JSON object. A text is passed on as it arrives. Every other value
    is passed on once it is whole: unchanged if it is JSON, else as a text."""

    def __init__(self, tools: Mapping[str, ToolSpec], markers: AnswerMarkers, opens: str, closes: str) -> None:
        self._tools = tools
        self._markers = markers
        self._open = markers.symbol(opens)
        self._close = markers.symbol(closes)
        self._phase = _Phase.HEAD
        self._properties: dict[str, Any] = {}
        self._as_json = False  # texts too
        self._begun = False  # the object has a member
        self._begins_value = False  # the line break before a value may follow

    def read(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState]:
        at = 0
        while True:
            rest = text[at:]
            match self._phase:
                case _Phase.HEAD:
                    size, state = self._read_head(rest, events, last=last)
                case _Phase.PARAMETER:
                    size, state = self._read_parameter(rest, events, last=last)
                case _Phase.TEXT:
                    size, state = self._read_text(rest, events, last=last)
                case _Phase.VALUE:
                    size, state = self._read_value(rest, events, last=last)
                case _Phase.TAIL:
                    size, state = self._read_tail(rest, last=last)
            at += size
            if state is not None:
                return at, state

    def _read_head(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState | None]:
        matched = match_pattern([self._open, BLANK, FUNCTION], text)
        name, size, state = _tag_name(text, matched)
        if state is MatchState.PARTIAL and not last:
            return 0, ReadState.MORE
        if state is not MatchState.FULL:
            return 0, ReadState.FAILED
        tool = self._tools.get(name)
        properties = {} if tool is None else tool.schema().get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._as_json = tool is not None and tool.lark is not None
        events.append(CallOpened(name))
        self._phase = _Phase.PARAMETER
        return size, None

    def _read_parameter(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState | None]:
        ending = match_pattern([BLANK, FUNCTION_END], text)
        if ending.state is MatchState.FULL:
            events.append(CallText("}" if self._begun else "{}"))
            events.append(CallClosed(complete=True))
            self._phase = _Phase.TAIL
            return ending.end, None
        key, size, state = _tag_name(text, match_pattern([BLANK, PARAMETER], text))
        if MatchState.PARTIAL in (state, ending.state) and not last:
            return 0, ReadState.MORE
        if state is not MatchState.FULL:
            events.append(CallClosed(complete=False))
            return (len(text) if last and state is MatchState.PARTIAL else 0), ReadState.DONE
        schema = self._properties.get(key)
        head = (", " if self._begun else "{") + json.dumps(key, ensure_ascii=False) + ": "
        self._begun = True
        self._begins_value = True
        if isinstance(schema, dict) and is_text(schema) and not self._as_json:
            events.append(CallText(head + '"'))
            self._phase = _Phase.TEXT
        else:
            events.append(CallText(head))
            self._phase = _Phase.VALUE
        return size, None

    def _read_text(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState | None]:
        at = 0
        if self._begins_value:
            if not text and not last:
                return 0, ReadState.MORE
            # A break that belongs to the end of an empty value is both: the end decides.
            at = int(text.startswith("\n"))
            self._begins_value = False
        end, cut = text.find(VALUE_END, at), self._markers.find_symbol(text[at:])
        if cut >= 0 and (end < 0 or at + cut < end):
            return self._cut_value(text, at, at + cut, events)
        if end >= 0:
            stop = end - 1 if end > at and text[end - 1] == "\n" else end
            events.append(CallText(_escaped(text[at:stop]) + '"'))
            self._phase = _Phase.PARAMETER
            return end + len(VALUE_END), None
        if last:
            events += [CallText(_escaped(text[at:])), CallClosed(complete=False)]
            return len(text), ReadState.DONE
        held = held_suffix(text[at:], "\n" + VALUE_END) or held_suffix(text[at:], VALUE_END)
        size = len(text) - held
        if size > at:
            events.append(CallText(_escaped(text[at:size])))
        return size, ReadState.MORE

    def _cut_value(self, text: str, start: int, cut: int, events: list[ReadEvent]) -> tuple[int, ReadState]:
        """A marker inside a value ends the call."""
        events += [CallText(_escaped(text[start:cut])), CallClosed(complete=False)]
        return cut + len(self._close) * text.startswith(self._close, cut), ReadState.DONE

    def _read_value(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState | None]:
        end, cut = text.find(VALUE_END), self._markers.find_symbol(text)
        if cut >= 0 and (end < 0 or cut < end):
            events += [CallText(_value_of(text[:cut])), CallClosed(complete=False)]
            return cut + len(self._close) * text.startswith(self._close, cut), ReadState.DONE
        if end < 0:
            if last:
                events += [CallText(text.removeprefix("\n")), CallClosed(complete=False)]
            return (len(text) if last else 0), ReadState.DONE if last else ReadState.MORE
        events.append(CallText(_value_of(text[:end])))
        self._phase = _Phase.PARAMETER
        return end + len(VALUE_END), None

    def _read_tail(self, text: str, *, last: bool) -> tuple[int, ReadState]:
        matched = match_pattern([BLANK, self._close], text)
        if matched.state is MatchState.FULL:
            return matched.end, ReadState.DONE
        if matched.state is MatchState.PARTIAL:
            return (len(text), ReadState.DONE) if last else (0, ReadState.MORE)
        return 0, ReadState.DONE


def _tag_name(text: str, matched: Matched) -> tuple[str, int, MatchState]:
    """The name that ends with `>`, behind the match: the name, the end of its tag, and whether it is whole."""
    if matched.state is not MatchState.FULL:
        return "", 0, matched.state
    end = text.find(">", matched.end)
    name = text[matched.end : end if end >= 0 else len(text)]
    if matched.end + len(name) > FRAMING_CHARS_MAX or any(
        char in "\n<" or "\ud800" <= char <= "\udfff" for char in name
    ):
        return "", 0, MatchState.FAILED
    if end < 0:
        return "", 0, MatchState.PARTIAL
    return name, end + 1, MatchState.FULL if name else MatchState.FAILED


def _escaped(text: str) -> str:
    """Inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _value_of(text: str) -> str:
    """The value as JSON."""
    text = text.removeprefix("\n").removesuffix("\n")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text
