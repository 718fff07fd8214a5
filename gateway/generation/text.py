"""From a request's ids to the text its caller sees: decoding, stop sequences, and how many ids that text took."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from engine.protocol.frames import Logprobs
from engine.text.tokenizer import Detokenizer
from gateway.generation.stops import StopScanner


class DrawnIds:
    """Ids with their logprobs, in arrays: 12 bytes per alternative and no object for each. The offset of an id is the
    number of characters decoded before it."""

    __slots__ = ("_ends", "_ids", "_offsets", "_values")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._ends = array("Q")  # for each id, the end of its alternatives in the two arrays below
        self._ids = array("I")
        self._values = array("d")

    def add_id(self, offset: int, logprobs: Logprobs) -> None:
        """Add an id. `logprobs`: the id's own first, then the likeliest ids."""
        self._offsets.append(offset)
        self._ids.extend([id_ for id_, _ in logprobs])
        self._values.extend([value for _, value in logprobs])
        self._ends.append(len(self._ids))

    def extend(self, other: DrawnIds) -> None:
        before = len(self._ids)
        self._offsets.extend(other._offsets)
        self._ids.extend(other._ids)
        self._values.extend(other._values)
        self._ends.extend([before + end for end in other._ends])

    def __len__(self) -> int:
        return len(self._offsets)

    def token(self, at: int) -> tuple[int, Logprobs]:
        """The offset and the logprobs of one id."""
        start, end = self._ends[at - 1] if at else 0, self._ends[at]
        return self._offsets[at], list(zip(self._ids[start:end], self._values[start:end], strict=True))


class TextOfIds:
    """For one text. `tokens` counts the ids up to and including the one that completed a stop sequence. An id among
    `stop_ids` ends the text and is not shown. Before `min_tokens` ids no stop sequence is looked for."""

    __slots__ = ("_bulk", "_chars", "_detokenizer", "_drawn", "_min_tokens", "_scanner", "_stop_ids", "tokens")

    def __init__(
        self, detokenizer: Detokenizer, stops: list[str], stop_ids: Collection[int] = (), min_tokens: int = 0
    ) -> None:
        self.tokens = 0
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._bulk = not stops
        self._chars = 0
        self._drawn = DrawnIds()

    @property
    def stopped(self) -> bool:
        return self._scanner.stopped

    @property
    def matched(self) -> str | None:
        """The stop sequence that ended the text."""
        return self._scanner.matched

    def push_ids(self, ids: list[int], logprobs: Sequence[Logprobs] = ()) -> str:
        """The new text that may be shown. Ids after a stop are not counted and show nothing. `logprobs`: of each id, or
        of none; `take_drawn` gives them back for those that counted."""
        if self._bulk and not logprobs:
            self.tokens += len(ids)
            return self._detokenizer.push_ids(ids if ids[-1] not in self._stop_ids else ids[:-1])
        shown = ""
        for at, id_ in enumerate(ids):
            if self._scanner.stopped:
                break
            self.tokens += 1
            if logprobs:
                self._drawn.add_id(self._chars, logprobs[at])
            text = "" if id_ in self._stop_ids else self._detokenizer.push_ids([id_])
            self._chars += len(text)
            shown += text if self.tokens <= self._min_tokens else self._scanner.push_text(text)
        return shown

    def take_drawn(self) -> DrawnIds:
        """The logprobs of the ids that counted since the last call."""
        drawn, self._drawn = self._drawn, DrawnIds()
        return drawn

    def flush_text(self) -> str:
        """No more ids come: what was held back."""
        if self._scanner.stopped:
            return ""
        shown = self._scanner.push_text(self._detokenizer.flush_text())
        return shown if self._scanner.stopped else shown + self._scanner.flush_text()
