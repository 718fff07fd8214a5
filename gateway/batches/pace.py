"""Number of lines that one gateway process runs at once: adapted to the queue of the batch tier.

Each engine reports once a second how many requests wait there in each tier. While no line waits, more lines run; while
many wait, fewer do. So lines use the capacity that other requests leave, and several gateways share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.protocol.frames import Heartbeat

START = 8  # lines at once, before the first heartbeat
GROWTH = 1.5  # at each heartbeat, until lines wait for the first time, and after FREE_BEATS heartbeats without a queue
SLOW_GROWTH = 1.0625  # at other heartbeats: larger steps would let the queue oscillate
FREE_BEATS = 3
# Lines of the tier that may wait at an engine: when a running line ends, the engine begins a waiting line at once, and
# not after the hold of the next line. The first number, and one line for each QUEUED_PART running requests.
QUEUED_MIN, QUEUED_PART = 4, 16


class LinePace:
    """`limit`: how many lines may run now."""

    def __init__(self, tier: str, outstanding_max: int, heartbeats: Callable[[], Iterable[Heartbeat | None]]) -> None:
        """`heartbeats`: the newest one of each engine that is ready; None: it has sent none yet."""
        self._tier = tier
        self._outstanding_max = outstanding_max
        self._heartbeats = heartbeats
        self._seen: list[Heartbeat] = []
        self._limit = min(START, outstanding_max)
        self._engines = 0
        self._free_beats = FREE_BEATS  # heartbeats without a queue, one after another

    @property
    def limit(self) -> int:
        return self._limit if self._engines else 0

    def adjust(self, outstanding: int) -> None:
        """Follow the engines' newest heartbeats; `outstanding`: lines that run. Has no effect until an engine has sent
        a new heartbeat, which shows the result of the last change."""
        known = list(self._heartbeats())
        self._engines = len(known)
        beats = [beat for beat in known if beat is not None and beat.load is not None]
        if not beats or all(any(beat is seen for seen in self._seen) for beat in beats):
            return
        self._seen = beats
        queued = sum(beat.load.queued.get(self._tier, 0) for beat in beats if beat.load is not None)
        allowed = sum(QUEUED_MIN + beat.running // QUEUED_PART for beat in beats)
        self._free_beats = 0 if queued else self._free_beats + 1
        if queued > allowed:
            self._limit = max(1, min(self._limit, outstanding) - (queued - allowed))
        elif not queued and outstanding >= self._limit:
            growth = GROWTH if self._free_beats > FREE_BEATS else SLOW_GROWTH
            self._limit = min(self._outstanding_max, int(self._limit * growth) + 1)

    def note_full(self) -> None:
        """An engine refused a line, as the tier's queue is full."""
        self._limit = max(1, self._limit // 2)
