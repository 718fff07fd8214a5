"""From the text of an answer, as it arrives, to its parts: reasoning, text, calls with their arguments.

The same parser serves streams and whole answers, so both have the same parts. It never fails: text that is no call in
the model's format is text of the answer. At most one marker is held back, with the white space before it, and the head
of a call until its name is known.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

import msgspec

from gateway.tools.custom import InputReader
from gateway.tools.definitions import ToolSpec
from gateway.tools.formats import ToolFormat
from gateway.tools.parts import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Part, ReasoningDelta
from gateway.tools.readers import CallClosed, CallOpened, CallReader, CallText, ReadEvent, ReadState
from gateway.tools.scanning import AnswerMarkers, held_suffix

# White space that is held back because a call or the end may follow.
HELD_BLANK_MAX = 256
PYTHON_TAG = "<|python_tag|>"  # Llama's models may write it before a call


class ReasoningMarkers(msgspec.Struct, frozen=True):
    """Around the reasoning of a model."""

    start: str = "<think>"
    end: str = "</think>"


class AnswerSyntax(msgspec.Struct, frozen=True):
    """How to read one request's answers. `reasoning`: None if the model does not reason; `reasoning_open`: the prompt
    ends inside the reasoning. `format`: None if the answer has no calls; `tools`: the tools that the answer may call,
    by name."""

    markers: AnswerMarkers
    reasoning: ReasoningMarkers | None = None
    reasoning_open: bool = False
    format: ToolFormat | None = None
    tools: Mapping[str, ToolSpec] = {}
    id_prefix: str = "call_"


class _Phase(enum.Enum):
    BEGIN = "begin"  # the reasoning may begin
    REASONING = "reasoning"
    REASONED = "reasoned"  # line breaks behind the reasoning
    CONTENT = "content"
    CALLS = "calls"


class AnswerParser:
    """The parser of one text. `framing` counts the characters that are in no part: markers, and the brackets and the
    name of a call."""

    def __init__(self, syntax: AnswerSyntax, new_id: Callable[[], str] | None = None) -> None:
        self._syntax = syntax
        self._markers = syntax.markers
        format_ = syntax.format
        self._new_id = new_id or (lambda: "" if format_ is None else format_.new_id(syntax.id_prefix))
        reasoning = syntax.reasoning
        self._start = "" if reasoning is None else self._markers.symbol(reasoning.start)
        self._end = "" if reasoning is None else self._markers.symbol(reasoning.end)
        self._opens = self._markers.symbol(format_.markers[0]) if format_ is not None and format_.markers else ""
        self._buffer = ""
        self._parts: list[Part] = []
        self._calls: CallReader | None = None
        self._before = ""
        self._input: InputReader | None = None  # of a custom tool
        self._shown = False  # the content since the last call has more than white space
        self._begins = True  # nothing but white space and reasoning was read
        self.calls = 0
        self.framing = 0
        self.reasoning_chars = 0
        if reasoning is None:
            self._phase = _Phase.CONTENT
        else:
            self._phase = _Phase.REASONING if syntax.reasoning_open else _Phase.BEGIN
        self._trim = syntax.reasoning_open  # line breaks at the reasoning's beginning are dropped

    @property
    def reasons(self) -> bool:
        """The next text is reasoning, as far as is known."""
        return self._phase is _Phase.REASONING

    def push_text(self, text: str) -> None:
        """Add text, in which markers that are ids stand as their symbols."""
        if text:
            self._buffer += text
            self._advance_phases(last=False)

    def finish(self) -> None:
        """The text has ended."""
        self._advance_phases(last=True)

    def take_parts(self) -> list[Part]:
        """The parts since the last call."""
        parts, self._parts = self._parts, []
        return parts

    def _advance_phases(self, *, last: bool) -> None:
        steps = {
            _Phase.BEGIN: self._begin,
            _Phase.REASONING: self._reason,
            _Phase.REASONED: self._leave_reasoning,
            _Phase.CONTENT: self._content,
            _Phase.CALLS: self._read_calls,
        }
        while steps[self._phase](last=last):
            pass

    # ---- each step returns whether a further step can do something

    def _begin(self, *, last: bool) -> bool:
        text = self._buffer.lstrip()
        blank = len(self._buffer) - len(text)
        if blank <= HELD_BLANK_MAX:
            if text.startswith(self._start):
                self._drop(blank + len(self._start))
                self._phase, self._trim = _Phase.REASONING, True
                return True
            if self._start.startswith(text) and not last:
                return False
        self._phase = _Phase.CONTENT
        return True

    def _reason(self, *, last: bool) -> bool:
        if self._trim:
            text = self._buffer.lstrip("\n")
            self._drop(len(self._buffer) - len(text))
            self._trim = not text
        found = self._buffer.find(self._end)
        if found >= 0:
            size = found - _breaks_at_end(self._buffer[:found])
            self._add_reasoning(self._buffer[:size])
            self._drop(found - size + len(self._end))
            self._phase = _Phase.REASONED
            return True
        held = 0
        if not last:
            held = held_suffix(self._buffer, self._end)
            held += _breaks_at_end(self._buffer[: len(self._buffer) - held])
        self._add_reasoning(self._buffer[: len(self._buffer) - held])
        return False

    def _leave_reasoning(self, *, last: bool) -> bool:
        text = self._buffer.lstrip("\n")
        self._drop(len(self._buffer) - len(text))
        if text:
            self._phase = _Phase.CONTENT
        return bool(text)

    def _content(self, *, last: bool) -> bool:
        if self._syntax.format is None:
            self._add_content(self._buffer)
            return False
        if not self._opens:
            return self._content_before_calls(last=last)
        found = self._buffer.find(self._opens)
        if found >= 0:
            before = self._buffer[:found]
            if self._shown or before.strip() or found > HELD_BLANK_MAX:
                self._add_content(before)
                found = 0
            self._open_calls(found)
            return True
        held = 0 if last else held_suffix(self._buffer, self._opens)
        self._add_before(self._buffer[: len(self._buffer) - held], last=last)
        return False

    def _content_before_calls(self, *, last: bool) -> bool:
        """The content before calls, for a format without a marker: an object at the beginning of the answer may be a
        call."""
        if self._begins:
            size = self._size_before_object(last=last)
            if size is None:
                return False
            if size >= 0:
                self._open_calls(size)
                return True
            self._begins = False
        self._add_before(self._buffer, last=last)
        return False

    def _size_before_object(self, *, last: bool) -> int | None:
        """The characters before the object that the answer begins with: white space, and Llama's tag. -1: the answer
        begins with something else; None: more text is needed."""
        tag = self._markers.symbol(PYTHON_TAG)
        text = self._buffer.lstrip()
        size = len(self._buffer) - len(text)
        if text.startswith(tag):
            rest = text.removeprefix(tag).lstrip()
            size += len(text) - len(rest)
            text = rest
        elif text and tag.startswith(text) and not last:
            return None
        if size > HELD_BLANK_MAX or (text and not text.startswith("{")):
            return -1
        if not text:
            return -1 if last else None
        return size

    def _open_calls(self, before: int) -> None:
        """`before`: characters before the call that are dropped if it is a call: white space, and Llama's tag."""
        assert self._syntax.format is not None
        self._before, self._buffer = self._buffer[:before], self._buffer[before:]
        self._begins = False
        self._calls = self._syntax.format.reader(self._syntax.tools, self._markers)
        self._phase = _Phase.CALLS

    def _read_calls(self, *, last: bool) -> bool:
        assert self._calls is not None
        events: list[ReadEvent] = []
        size, state = self._calls.read(self._buffer, events, last=last)
        passed = 0
        for event in events:
            passed += self._take_event(event)
        self._buffer = self._buffer[size:]
        self.framing += max(0, size - passed)
        if state is ReadState.MORE:
            return False
        self._phase = _Phase.CONTENT
        if state is ReadState.FAILED:
            # The marker is text: it must not open calls once more.
            size = len(self._before) + max(1, len(self._opens))
            self._buffer, self._before = self._before + self._buffer, ""
            self._add_content(self._buffer[:size])
        return True

    def _take_event(self, event: ReadEvent) -> int:
        """Returns the characters passed on as they are."""
        match event:
            case CallOpened(name):
                self.framing += len(self._before)
                self._before = ""
                tool = self._syntax.tools.get(name)
                custom = tool is not None and tool.custom
                self._input = InputReader() if custom else None
                self._parts.append(CallStart(self.calls, self._new_id(), name, custom))
                self.calls += 1
                return 0
            case CallText(text):
                shown = self._markers.spell(text)
                if self._input is not None:
                    shown = self._input.push_text(shown)
                if shown:
                    self._parts.append(ArgumentsDelta(self.calls - 1, shown))
                return len(text)
            case CallClosed(complete):
                if self._input is not None and (rest := self._input.push_text("", last=True)):
                    self._parts.append(ArgumentsDelta(self.calls - 1, rest))
                self._parts.append(CallEnd(self.calls - 1, complete))
                self._shown = False
                return 0

    def _add_before(self, text: str, *, last: bool) -> None:
        """Content that a call may follow. White space alone is held back: it is dropped before a call and behind the
        last call."""
        if self._shown or text.strip() or len(text) > HELD_BLANK_MAX or (last and not self.calls):
            self._add_content(text)
        elif last:
            self._drop(len(text))

    def _add_content(self, text: str) -> None:
        """The beginning of the buffer is content."""
        if text:
            self._shown = True
            self._parts.append(ContentDelta(self._markers.spell(text)))
            self._buffer = self._buffer[len(text) :]

    def _add_reasoning(self, text: str) -> None:
        if text:
            self.reasoning_chars += len(text)
            self._parts.append(ReasoningDelta(self._markers.spell(text)))
            self._buffer = self._buffer[len(text) :]

    def _drop(self, chars: int) -> None:
        self.framing += chars
        self._buffer = self._buffer[chars:]


def _breaks_at_end(text: str) -> int:
    """The line breaks at the end that are held back, since the reasoning may end behind them."""
    return min(len(text) - len(text.rstrip("\n")), HELD_BLANK_MAX)
