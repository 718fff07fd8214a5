"""Adapters that take their time: each that is not in the arena is loaded, a few at once, while steps go on.

It must never look at a real clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.fake import FakeAdapters
from engine.step import AdapterMove

# As many as the engine reads at once: adapters.weights.READS_MAX, which this must not load.
LOADS_MAX = 4


class SimulatedAdapters(FakeAdapters):
    """`load_s`: from when one is wanted until it may join, wherever it was. There is no host memory here: what leaves
    the arena is loaded again."""

    def __init__(self, pages_each: int, load_s: float, now: Callable[[], float]) -> None:
        super().__init__(pages_each)
        self._load_s = load_s
        self._now = now
        self._ready_at: dict[str, float] = {}  # of those that come, and those that have come and wait for their request

    def want(self, digest: str) -> bool:
        if digest in self._resident or digest in self._ready_at:
            return True
        if sum(at > self._now() for at in self._ready_at.values()) >= LOADS_MAX:
            return False
        self._ready_at[digest] = self._now() + self._load_s
        return True

    def drop(self, digest: str) -> None:
        self._ready_at.pop(digest, None)

    def ready(self, digest: str, *, hidden: bool) -> bool:
        if digest in self._resident:
            return True
        return self.want(digest) and self._ready_at[digest] <= self._now()

    def poll(self) -> Iterable[AdapterMove]:
        return ()

    def next_at(self) -> float | None:
        """When the next one that comes will have come; None: none comes."""
        return min((at for at in self._ready_at.values() if at > self._now()), default=None)
