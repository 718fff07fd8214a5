"""A step being put together: which chunk of which request, and how many tokens are left.

What is planned may be dropped until the step begins. It must never decide: the scheduler does.
"""

from __future__ import annotations

from engine.entry import Entry
from engine.step import Chunk, Step


class Plan:
    """At most `tokens` tokens of one model, in the order of `add`."""

    def __init__(self, model: str, tokens: int) -> None:
        self.model = model
        self.tokens_left = tokens
        self.chunks: dict[Entry, Chunk] = {}
        self.step: Step | None = None  # once it has begun

    def add(self, entry: Entry, count: int) -> None:
        """The next `count` tokens of a request, whose pages it has."""
        sequence = entry.sequence
        start = sequence.computed
        assert 0 < count <= self.tokens_left
        self.tokens_left -= count
        self.chunks[entry] = Chunk(sequence, start, count, start + count == sequence.token_count())

    def drop(self, entry: Entry) -> None:
        """Take a request out again, if it is in."""
        chunk = self.chunks.pop(entry, None)
        if chunk:
            self.tokens_left += chunk.count

    def begin(self, number: int) -> Step:
        self.step = Step(number, self.model, list(self.chunks.values()))
        return self.step
