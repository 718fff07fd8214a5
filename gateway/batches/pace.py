"""How many lines one gateway process runs at once: as many as the engines take without a queue at the batch tier.

Each engine says once a second how many requests wait there in each tier. While few wait, more lines run; while many
wait, fewer do. So lines use the capacity that other requests leave, whatever it is, and several gateways share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.protocol.frames import Heartbeat

START = 8  # lines at once, before the first heartbeat says more
GROWTH = 1.5  # at each heartbeat, while all lines run and none waits
QUEUED_MAX = 4  # waiting requests of the tier at each engine, beside which lines may be added


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

    @property
    def limit(self) -> int:
        return self._limit if self._engines else 0

    def adjust(self, outstanding: int) -> None:
        """Follow the engines' newest heartbeats; `outstanding`: lines that run. No effect until an engine has sent a
        new one, since it says what the last change did."""
        known = list(self._heartbeats())
        self._engines = len(known)
        beats = [beat for beat in known if beat is not None and beat.load is not None]
        if not beats or all(any(beat is seen for seen in self._seen) for beat in beats):
            return
        self._seen = beats
        queued = sum(beat.load.queued.get(self._tier, 0) for beat in beats if beat.load is not None)
        allowed = QUEUED_MAX * len(beats)
        if queued > allowed:
            self._limit = max(1, min(self._limit, outstanding) - (queued - allowed))
        elif outstanding >= self._limit:
            self._limit = min(self._outstanding_max, int(self._limit * GROWTH) + 1)

    def note_full(self) -> None:
        """An engine refused a line, as the tier's queue is full."""
        self._limit = max(1, self._limit // 2)
