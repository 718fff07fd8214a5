"""How fast a tier's queue drains while somebody waits in it, and so how long a newcomer would wait.

It must never look at a clock: the caller says when.
"""

from __future__ import annotations

# The weight of all earlier starts against the newest: about 20 starts are remembered.
MEMORY = 0.95


class QueueRate:
    """Starts per second of waiting. Time in which nobody waits does not count: an idle engine is not a slow one."""

    def __init__(self) -> None:
        self._starts = 0.0
        self._waited_s = 0.0
        self._since: float | None = None  # the last start, or when somebody began to wait; None: nobody waits

    def note_waiting(self, now: float) -> None:
        """Somebody waits now."""
        if self._since is None:
            self._since = now

    def note_start(self, now: float, still_waiting: bool) -> None:
        """One of those who wait has started."""
        assert self._since is not None
        self._starts = MEMORY * self._starts + 1
        self._waited_s = MEMORY * self._waited_s + now - self._since
        self._since = now if still_waiting else None

    def note_empty(self) -> None:
        """Nobody waits any more, though nobody started."""
        self._since = None

    def wait_seconds(self, starts: int, now: float) -> float:
        """Until so many more have started, at the pace of late; 0 while no pace is known."""
        if not self._starts:
            return 0.0
        stalled_s = now - self._since if self._since is not None else 0.0
        return starts * (self._waited_s + stalled_s) / self._starts
