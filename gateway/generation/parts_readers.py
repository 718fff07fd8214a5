"""From a stream's output to the parts of an answer: as `generation.text`, for answers with reasoning or calls.

Stop sequences end the answer where its text has them. Reasoning and calls are not scanned: an answer that ended inside
arguments would be of no use. Every id is counted, markers and reasoning too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from engine.protocol.frames import Logprobs
from engine.text.tokenizer import Detokenizer
from gateway.engines.engine import Output
from gateway.generation.stops import StopScanner
from gateway.generation.text import DrawnIds, TextOfTexts
from gateway.tools.parser import AnswerParser, AnswerSyntax
from gateway.tools.parts import ContentDelta, Part
from gateway.tools.scanning import AnswerMarkers


class _PartsFilter:
    """Parses text and looks for stop sequences in the content."""

    __slots__ = ("_parser", "_parts", "scanner")

    def __init__(self, syntax: AnswerSyntax, stops: list[str]) -> None:
        self._parser = AnswerParser(syntax)
        self._parts: list[Part] = []
        self.scanner = StopScanner(stops)

    @property
    def calls(self) -> int:
        return self._parser.calls

    @property
    def reasons(self) -> bool:
        return self._parser.reasons

    def push_text(self, text: str, *, scanned: bool) -> None:
        self._parser.push_text(text)
        self._scan(scanned=scanned)

    def finish(self) -> None:
        if self.scanner.stopped:
            return
        self._parser.finish()
        self._scan(scanned=True)
        if not self.scanner.stopped:
            self._release()

    def take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _scan(self, *, scanned: bool) -> None:
        for part in self._parser.take_parts():
            if self.scanner.stopped:
                return
            if isinstance(part, ContentDelta):
                text = self.scanner.push_text(part.text) if scanned else part.text
                if text:
                    self._parts.append(ContentDelta(text))
            else:
                self._release()
                self._parts.append(part)

    def _release(self) -> None:
        """No stop sequence can begin in the content before another part."""
        if text := self.scanner.flush_text():
            self._parts.append(ContentDelta(text))


class PartsOfIds:
    """Implements `OutputReader` for one text of an engine that answers with ids. `push_output` returns no text: the
    text is in the parts. `reasoning` counts the ids of the reasoning, its markers among them."""

    __slots__ = (
        "_chars",
        "_detokenizer",
        "_drawn",
        "_filter",
        "_min_tokens",
        "_stop_ids",
        "_symbols",
        "reasoning",
        "tokens",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        syntax: AnswerSyntax,
        stops: list[str],
        stop_ids: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self.tokens = 0
        self.reasoning = 0
        self._detokenizer = detokenizer
        self._filter = _PartsFilter(syntax, stops)
        self._symbols = syntax.markers.ids
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._chars = 0
        self._drawn = DrawnIds()

    @property
    def stopped(self) -> bool:
        return self._filter.scanner.stopped

    @property
    def matched(self) -> str | None:
        return self._filter.scanner.matched

    @property
    def calls(self) -> int:
        """Calls that were started."""
        return self._filter.calls

    def push_output(self, output: Output, logprobs: Sequence[Logprobs] = ()) -> str:
        parts = self._filter
        for at, id_ in enumerate(output):
            if parts.scanner.stopped:
                break
            self.tokens += 1
            if logprobs:
                self._drawn.add_id(self._chars, logprobs[at])
            reasons = parts.reasons
            if id_ not in self._stop_ids:
                text = self._text_of(id_)
                self._chars += len(text)
                parts.push_text(text, scanned=self.tokens > self._min_tokens)
            self.reasoning += reasons or parts.reasons
        return ""

    def _text_of(self, id_: int) -> str:
        symbol = self._symbols.get(id_)
        # The bytes of an unfinished character end before a marker.
        return self._detokenizer.push_ids([id_]) if symbol is None else self._detokenizer.flush_text() + symbol

    def take_drawn(self) -> DrawnIds:
        drawn, self._drawn = self._drawn, DrawnIds()
        return drawn

    def take_parts(self) -> list[Part]:
        """The parts since the last call."""
        return self._filter.take_parts()

    def flush_text(self) -> str:
        if not self.stopped:
            self._filter.push_text(self._detokenizer.flush_text(), scanned=True)
            self._filter.finish()
        return ""


class PartsOfTexts(TextOfTexts):
    """The parts of texts of an engine that answers with text: markers are found by their text. The tokens of a piece
    are counted as reasoning if it ends or begins inside the reasoning."""

    __slots__ = ("_filter",)

    def __init__(self, syntax: AnswerSyntax, stops: list[str], min_tokens: int = 0) -> None:
        super().__init__(stops, min_tokens)
        self._filter = _PartsFilter(msgspec.structs.replace(syntax, markers=AnswerMarkers((), {})), stops)
        self._scanner = self._filter.scanner

    @property
    def calls(self) -> int:
        return self._filter.calls

    def push_output(self, output: Output, logprobs: Sequence[Logprobs] = ()) -> str:
        for piece in output:
            if self._scanner.stopped:
                break
            reasons = self._filter.reasons
            self._push_piece(piece)
            self._filter.push_text(piece.text, scanned=self.tokens > self._min_tokens)
            if reasons or self._filter.reasons:
                self.reasoning += piece.tokens
        return ""

    def take_parts(self) -> list[Part]:
        return self._filter.take_parts()

    def flush_text(self) -> str:
        self._filter.finish()
        return ""


PartsReader = PartsOfIds | PartsOfTexts
