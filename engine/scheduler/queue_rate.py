"""The rate at which a tier's queue drains while requests wait in it, and so how long a new request would wait.

It reads no clock: the caller passes the time.
"""

from __future__ import annotations

# The weight of all earlier starts against the newest: about 20 starts are remembered.
MEMORY = 0.95


class QueueRate:
    """Starts per second of waiting. Time without waiting requests does not count, so that an idle engine does not look
    slow."""

    def __init__(self) -> None:
        self._starts = 0.0
        self._waited_s = 0.0
        self._since: float | None = None  # the last start, or since when requests wait; None: none waits

    def note_waiting(self, now: float) -> None:
        """A request waits now."""
        if self._since is None:
            self._since = now

    def note_start(self, now: float, still_waiting: bool) -> None:
        """A waiting request has started."""
        assert self._since is not None
        self._starts = MEMORY * self._starts + 1
        self._waited_s = MEMORY * self._waited_s + now - self._since
        self._since = now if still_waiting else None

    def note_empty(self) -> None:
        """No request waits any more, although none started."""
        self._since = None

    def wait_seconds(self, starts: int, now: float) -> float:
        """Predicted seconds until `starts` more requests have started; 0 while the rate is unknown."""
        if not self._starts:
            return 0.0
        stalled_s = now - self._since if self._since is not None else 0.0
        return starts * (self._waited_s + stalled_s) / self._starts
