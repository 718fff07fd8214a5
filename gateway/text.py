"""From a request's ids to the text its caller sees: decoding, stop sequences, and how many ids that text took."""

from __future__ import annotations

from engine.tokenizer import Detokenizer
from gateway.stops import StopScanner


class TextOfIds:
    """For one choice. `tokens` counts the ids up to and including the one that completed a stop sequence."""

    __slots__ = ("_bulk", "_detokenizer", "_scanner", "tokens")

    def __init__(self, detokenizer: Detokenizer, stops: list[str]) -> None:
        self.tokens = 0
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)
        self._bulk = not stops

    @property
    def stopped(self) -> bool:
        return self._scanner.stopped

    def push(self, ids: list[int]) -> str:
        """The new text that may be shown. Ids after a stop are not counted and show nothing."""
        if self._bulk:
            self.tokens += len(ids)
            return self._detokenizer.push(ids)
        shown = ""
        for id_ in ids:
            if self._scanner.stopped:
                break
            self.tokens += 1
            shown += self._scanner.push(self._detokenizer.push([id_]))
        return shown

    def finish(self) -> str:
        """No more ids come: what was held back."""
        if self._scanner.stopped:
            return ""
        shown = self._scanner.push(self._detokenizer.finish())
        return shown if self._scanner.stopped else shown + self._scanner.finish()
