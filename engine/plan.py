"""A step being put together, then in flight: which chunk of which request, and how many tokens are left.

What is planned may be dropped until the step begins. It must never decide: the scheduler does.
"""

from __future__ import annotations

from engine.entry import Entry
from engine.step import PENDING_ID, Chunk, Step


class Plan:
    """At most `tokens` tokens of one model, in the order of `add`."""

    def __init__(self, model: str, tokens: int) -> None:
        self.model = model
        self.tokens_left = tokens
        self.chunks: dict[Entry, Chunk] = {}
        self.step: Step | None = None  # once it has begun
        self._assumed = False

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
        for entry in self.chunks:
            entry.in_flight += 1
        self.step = Step(number, self.model, list(self.chunks.values()))
        return self.step

    def assume(self) -> None:
        """Let its requests look as if the step, in flight, were completed, PENDING_ID standing for what it draws: then
        the next step can be planned. Before that the runner must have begun it. Twice is once."""
        if self._assumed:
            return
        self._assumed = True
        for entry, chunk in self.chunks.items():
            if not entry.ended:
                sequence = entry.sequence
                sequence.computed = chunk.start + chunk.count
                if chunk.sample:
                    sequence.output_ids.append(PENDING_ID)
