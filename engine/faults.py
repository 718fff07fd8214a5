"""What becomes of a request whose scheduling raised: our own mistake. That request is torn down, ends with an error, is
logged and counted; the others go on.

The line is the books of who owns what: pages, adapters, places, slots. `Scheduler.check_integrity` runs after a fault,
before the next step begins. Where it finds them wrong the engine ends, as a page with two owners would show one
tenant's text to another. The same holds for what raises outside any one request's scheduling: the next step would raise
again. It must never choose what runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

from engine.entry import Entry
from engine.queues import TierQueue
from engine.residency import Residency
from engine.room import Room
from engine.served import Served
from engine.step import PENDING_ID, DeviceLost
from engine.swap import Swap

_log = logging.getLogger(__name__)


class Faults:
    """`entries` are all requests that have not ended, by gateway and handle."""

    def __init__(
        self,
        entries: dict[tuple[int, int], Entry],
        room: Room,
        queues: Ordered[TierQueue],
        residency: Residency,
        swap: Swap,
        served: Served,
    ) -> None:
        self.count = 0  # since the start
        self.unchecked = False  # one came, and the books were not looked over since
        self._entries = entries
        self._room = room
        self._queues = queues
        self._residency = residency
        self._swap = swap
        self._served = served

    def take_out(self, entry: Entry, error: Exception) -> str:
        """Log and count the fault, and take the request out of everything, in whatever state the exception left it: it
        may run, wait, do both or neither. Returns what its ending says. Raises DeviceLost again, and whatever the arena
        raises when the request's pages are not its own."""
        if isinstance(error, DeviceLost):
            raise error
        sequence = entry.sequence
        self.count += 1
        self.unchecked = True
        fields = {"request_id": sequence.request_id, "tier": entry.tier, "running": entry.running}
        _log.error("scheduling.failed", exc_info=error, extra={"fields": fields})
        entry.ended = True
        while sequence.output_ids and sequence.output_ids[-1] == PENDING_ID:
            sequence.output_ids.pop()
        if entry.running:
            self._room.leave(entry)
        self._queues[entry.tier].discard(entry, self._room.running[entry.tier])
        self._swap.forget(entry)
        if self._entries.get((sequence.gateway, sequence.handle)) is entry:
            del self._entries[sequence.gateway, sequence.handle]
            self._served.ended(entry)
        others = (own for own in self._entries.values() if not own.running)
        ranks = Counter(own.tier for own in others if own.sequence.adapter == sequence.adapter)
        self._residency.recount(sequence.adapter, ranks)
        return f"internal error: {type(error).__name__}"


class NoStep(Exception):
    """There is work, nothing is in flight or awaited, and no step can be made of it."""


def stuck(entries: Iterable[Entry], claims: Iterable[Entry]) -> Entry:
    """Of requests of which no step can be made, the one to end first, so that the others may go on: one that keeps
    others from joining (`claims`), then one that is owed its run, then who waits, by tier and age; last who runs."""
    for claim in claims:
        return claim
    return min(entries, key=lambda entry: (entry.running, not entry.owed, entry.tier, entry.number))
