"""Stop sequences in a text that arrives in pieces: never split, never leaked, whatever the pieces.

The text ends before the stop that is complete first; of several complete at the same character, before the longest.
Text that may be the beginning of a stop is held back until the next text decides.
"""

from __future__ import annotations


class StopScanner:
    """Finds the stop sequences of one text. Without stop sequences no text is held back."""

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: list[str]) -> None:
        assert all(stops), "an empty stop would end every text"
        self._stops = stops
        self._held = ""
        self.matched: str | None = None  # the stop that ended the text

    @property
    def stopped(self) -> bool:
        return self.matched is not None

    def push_text(self, text: str) -> str:
        """Add a piece; return the text that may be shown now. When a stop is complete, sets `matched` and returns the
        last of the text; nothing may be pushed afterwards."""
        assert not self.stopped, "the text has ended"
        if not self._stops:
            return text
        text = self._held + text
        found = self._first(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush_text(self) -> str:
        """The text that was held back, after an end without a stop."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """The beginning of the stop that is complete first, and the stop; None if no stop is complete."""
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1:] if found else None

    def _undecided(self, text: str) -> int:
        """The length of the longest suffix of the text that is a prefix of a stop."""
        longest = 0
        for stop in self._stops:
            start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= start < len(text) - longest:
                if stop.startswith(text[start:]):
                    longest = len(text) - start
                    break
                start = text.find(stop[0], start + 1)
        return longest
