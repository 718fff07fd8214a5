"""Handles an exception in the scheduling of one request, which is a bug of the engine. The request is torn down, ends
with an error, and is logged and counted; other requests continue.

The limit is the ownership of pages, adapters and slots. `Scheduler.check_integrity` verifies it after a fault, before
the next step begins. If it fails the engine exits, because a page with two owners would show one tenant's text to
another. An exception outside the scheduling of a single request also ends the engine: the next step would raise it
again. This module does not choose what runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

from engine.memory.adapter_residency import AdapterResidency
from engine.memory.weight_residency import WeightResidency
from engine.scheduler.capacity import Capacity
from engine.scheduler.entry import Entry
from engine.scheduler.plan import StepPlan
from engine.scheduler.queues import TierQueue
from engine.scheduler.served import ModelTable
from engine.scheduler.swap import Swap
from engine.step import PENDING_ID, DeviceLost

_log = logging.getLogger(__name__)


class Faults:
    """`entries`: all requests that have not ended, by gateway and handle."""

    def __init__(
        self,
        entries: dict[tuple[int, int], Entry],
        capacity: Capacity,
        queues: Ordered[TierQueue],
        residency: AdapterResidency,
        weights: WeightResidency,
        swap: Swap,
        served: ModelTable,
    ) -> None:
        self.count = 0  # since the start
        self.unchecked = False  # a fault happened after the last integrity check
        self._entries = entries
        self._capacity = capacity
        self._queues = queues
        self._residency = residency
        self._weights = weights
        self._swap = swap
        self._served = served

    def take_out(self, entry: Entry, error: Exception) -> str:
        """Log and count the fault, and remove the request from all structures. The exception may have left it running,
        waiting, both or neither. Returns the error message of its ending. Raises DeviceLost again, and the arena's
        error when the request does not own its pages."""
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
            self._capacity.leave_batch(entry)
        self._queues[entry.tier].discard(entry, self._capacity.running[entry.tier])
        self._swap.release_slots(entry)
        if self._entries.get((sequence.gateway, sequence.handle)) is entry:
            del self._entries[sequence.gateway, sequence.handle]
            self._served.note_ending(entry)
        others = (own for own in self._entries.values() if not own.running)
        ranks = Counter(own.tier for own in others if own.sequence.adapter == sequence.adapter)
        self._residency.recount(sequence.adapter, ranks)
        return f"internal error: {type(error).__name__}"

    def check_integrity(self, in_flight: Iterable[StepPlan]) -> None:
        """Raises AssertionError unless every page, slot, adapter and chunk has exactly the owners that the requests
        say."""
        running = [entry for entries in self._capacity.running for entry in entries]
        chunks = Counter(entry for plan in in_flight for entry in plan.chunks)
        for entry in self._entries.values():
            sequence = entry.sequence
            assert entry.running == (entry in running)
            assert entry.running or not sequence.pages, f"{sequence.request_id} holds pages and does not run"
            assert entry.in_flight == chunks[entry], f"{sequence.request_id} has {chunks[entry]} chunks in flight"
            assert sequence.output_ids.count(PENDING_ID) <= entry.in_flight, f"{sequence.request_id} misses an id"
        assert len(running) + sum(map(len, self._queues)) == len(self._entries)
        self._capacity.check_integrity()
        with_adapter = [(e.sequence.adapter, e) for e in self._entries.values() if e.sequence.adapter]
        waiting = Counter((adapter, e.tier) for adapter, e in with_adapter if not e.running)
        self._residency.check_integrity(waiting, Counter(adapter for adapter, e in with_adapter if e.running))
        self._swap.check_integrity(entry for entry in self._entries.values() if not entry.running)
        self._weights.check_integrity({entry.sequence.model for entry in running})


class NoStep(Exception):
    """There is work, no step is in flight, no load is awaited, and yet no step can be planned."""


def find_blocking_request(entries: Iterable[Entry], claims: Iterable[Entry]) -> Entry:
    """The request to end when no step can be planned, so that the others can continue. In this order: a request that
    blocks others from joining (`claims`), a waiting request that is owed its run, another waiting request, a running
    request; among equals the highest tier, then the oldest."""
    for claim in claims:
        return claim
    return min(entries, key=lambda entry: (entry.running, not entry.owed, entry.tier, entry.number))
