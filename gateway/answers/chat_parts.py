"""The parts of an answer in the words of chat completions: a message, and the deltas of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gateway.api import chat_wire
from gateway.tools.parts import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Part, ReasoningDelta


def message_of(parts: Sequence[Part], *, reasoning: bool) -> chat_wire.AnswerMessage:
    """The whole message. `reasoning`: it shows the reasoning. An answer without text has the content null if it has
    calls."""
    content = "".join([part.text for part in parts if isinstance(part, ContentDelta)])
    reasoned = "".join([part.text for part in parts if isinstance(part, ReasoningDelta)]) if reasoning else ""
    starts = [part for part in parts if isinstance(part, CallStart)]
    arguments = [""] * len(starts)
    for part in parts:
        if isinstance(part, ArgumentsDelta):
            arguments[part.index] += part.text
    calls = [_call(start, arguments[start.index]) for start in starts]
    return chat_wire.AnswerMessage(
        content=content if content or not calls else None,
        reasoning=reasoned or UNSET,
        reasoning_content=reasoned or UNSET,
        tool_calls=calls or UNSET,
    )


def _call(start: CallStart, text: str) -> chat_wire.AnsweredCall:
    if start.custom:
        custom = chat_wire.AnsweredCustom(name=start.name, input=text)
        return chat_wire.AnsweredCall(id=start.id, type="custom", custom=custom)
    return chat_wire.AnsweredCall(id=start.id, function=chat_wire.AnsweredFunction(name=start.name, arguments=text))


class DeltaWriter:
    """Makes the deltas of one text."""

    def __init__(self, *, reasoning: bool) -> None:
        self._reasoning = reasoning
        self._custom = False  # the open call is of a custom tool

    def delta(self, part: Part) -> chat_wire.Delta | None:
        """None: the part has no delta."""
        match part:
            case ContentDelta(text):
                return chat_wire.Delta(content=text)
            case ReasoningDelta(text):
                return chat_wire.Delta(reasoning=text, reasoning_content=text) if self._reasoning else None
            case CallStart():
                self._custom = part.custom
                return chat_wire.Delta(tool_calls=[_started(part)])
            case ArgumentsDelta(index, text):
                return chat_wire.Delta(tool_calls=[self._arguments(index, text)])
            case CallEnd():
                return None

    def _arguments(self, index: int, text: str) -> chat_wire.CallDelta:
        if self._custom:
            return chat_wire.CallDelta(index=index, custom=chat_wire.CustomDelta(input=text))
        return chat_wire.CallDelta(index=index, function=chat_wire.FunctionDelta(arguments=text))


def _started(start: CallStart) -> chat_wire.CallDelta:
    if start.custom:
        custom = chat_wire.CustomDelta(name=start.name, input="")
        return chat_wire.CallDelta(index=start.index, id=start.id, type="custom", custom=custom)
    function = chat_wire.FunctionDelta(name=start.name, arguments="")
    return chat_wire.CallDelta(index=start.index, id=start.id, type="function", function=function)
