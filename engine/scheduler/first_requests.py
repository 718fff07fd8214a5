"""First requests of shares: a share that has nothing in a tier does not wait behind the share that fills the tier.

A request is its share's first if the share had nothing in the tier, running or waiting, when the request was queued, or
if the share's last running request ended and this request is the share's oldest in the queue. A first request may
preempt the youngest request of the share that holds most for its weight. A share that always runs a request in the tier
has no first request, so two shares that flood a tier do not preempt each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from engine.memory.arena import Arena
from engine.protocol.tiers import Tier
from engine.scheduler.capacity import Capacity
from engine.scheduler.entry import Entry
from engine.scheduler.queues import Ready, TierQueue

# After a first request has ended, its preempted slot stays reserved for first requests for RESERVED_SLOT_S. A client
# that sends short requests one after another therefore preempts once, not once per request.
RESERVED_SLOT_S = 1.0
# At most this part of all slots is reserved so.
RESERVED_SLOTS_PART = 0.5
# Seconds before a failed attempt is repeated, if nothing has changed.
RETRY_S = 0.1


class FirstRequests:
    """Preempts others for first requests of all tiers, and reserves the slots that first requests leave."""

    def __init__(
        self,
        tiers: Ordered[Tier],
        capacity: Capacity,
        arena: Arena,
        queues: Ordered[TierQueue],
        clock: Callable[[], float],
        preempt: Callable[[Entry, int], None],
        sequences_max: int,
    ) -> None:
        """`preempt(victim, cause)`: see Capacity."""
        self._tiers = tiers
        self._capacity = capacity
        self._arena = arena
        self._queues = queues
        self._clock = clock
        self._preempt = preempt
        self._reserved_max = int(RESERVED_SLOTS_PART * sequences_max)
        self._reserved_until: list[deque[float]] = [
            deque() for _ in tiers
        ]  # by tier: until when each place is reserved
        # By tier, the last failed attempt: number of joins and leaves (None: any), `newest_first`, time.
        self._last_failure: list[tuple[int | None, int, float]] = [(0, 0, -math.inf)] * len(tiers)

    # ---- reserved slots

    def reserved_slots(self, tier: int) -> int:
        """Slots of the tier that are reserved for first requests now."""
        reserved_slots, now = self._reserved_until[tier], self._clock()
        while reserved_slots and reserved_slots[0] <= now:
            reserved_slots.popleft()
        return len(reserved_slots)

    def must_leave_slot(self, entry: Entry) -> bool:
        """The request must not join, because all spare slots are reserved for first requests. A share that runs
        nothing, and a request that is owed its run, may take any slot."""
        reserved_slots = self._reserved_until[entry.tier]
        if not reserved_slots or entry.owed or not self._queues[entry.tier].has_running(entry.sequence.share):
            return False
        return self._capacity.spare_slots(entry.tier) <= self.reserved_slots(entry.tier)

    def note_joined(self, entry: Entry) -> None:
        """A request joined. A first request uses up one reserved slot of its tier, if the tier has a reserved slot."""
        if entry.first and self.reserved_slots(entry.tier):
            self._reserved_until[entry.tier].popleft()
            entry.slot_reserved = True

    def note_ending(self, entry: Entry) -> None:
        """A running request ended. Its slot is reserved if it was preempted or reserved for the request."""
        self._queues[entry.tier].note_ending(entry)
        reserved_slots = self._reserved_until[entry.tier]
        if entry.slot_reserved and len(reserved_slots) < self._reserved_max:
            reserved_slots.append(self._clock() + RESERVED_SLOT_S)

    # ---- preemption

    def find_first_request(self, model: str, tier: int, ready: Ready) -> Entry | None:
        """The first request that others may be preempted for. After a failed attempt it is None until the set of
        running requests has changed, another request has become first, or RETRY_S have passed. If lower tiers were
        preempted for the failed attempt, a change of the running requests does not shorten RETRY_S."""
        queue = self._queues[tier]
        changes, newest, at = self._last_failure[tier]
        same = changes in (None, self._capacity.changes) and newest == queue.newest_first
        if same and self._clock() < at + RETRY_S:
            return None
        return queue.first_request(model, ready)

    def preempt_for_first(self, entry: Entry) -> bool:
        """Preempt requests until a first request has a slot and its pages. False: its tier has too few victims, and
        none of them was preempted. Lower tiers may have been."""
        slots, pages = self._capacity.missing_capacity(entry)
        victims: list[Entry] = []
        changes: int | None = self._capacity.changes
        if (slots > 0 or pages > 0) and self._victims(entry, slots, pages):
            self._capacity.reclaim_pages(entry)
            slots, pages = self._capacity.missing_capacity(entry, reclaimed=True)
            victims = self._victims(entry, slots, pages)
            changes = None
        if (slots > 0 or pages > 0) and not victims:
            self._last_failure[entry.tier] = changes, self._queues[entry.tier].newest_first, self._clock()
            return False
        entry.preempts_as_first = True
        entry.slot_reserved = slots > 0
        for victim in victims:
            self._preempt(victim, entry.tier)
            victim.preempted_for_share = entry.sequence.share
        return True

    def _victims(self, entry: Entry, slots: int, pages: int) -> list[Entry]:
        """Victims that free `slots` slots and `pages` pages; empty if that is impossible. Each victim is the youngest
        request of the share that then holds most for its weight. Each share keeps at least one request. If pages are
        missing, a share loses a request only if it has at least as many pages for its weight as the first request
        needs."""
        uses = self._share_uses(entry)
        limit = (
            self._capacity.pages_of(entry, entry.sequence.token_count()) / entry.sequence.weight if pages > 0 else 0.0
        )
        found: list[Entry] = []
        while slots > 0 or pages > 0:
            by_pages = pages > 0
            largest = max(uses, key=lambda use: use.size(by_pages), default=None)
            if largest is None:
                return []
            victim = largest.victim()
            if victim is None or largest.pages / largest.weight < limit:
                uses.remove(largest)
                continue
            found.append(victim)
            slots -= 1
            pages -= self._pages_freed(victim)
        return found

    def _share_uses(self, entry: Entry) -> list[_ShareUse]:
        """Shares with several running requests that were served at least as much as the first request's share: by the
        fairness counters they are behind it."""
        queue, most = self._queues[entry.tier], self._tiers[entry.tier].preemptions_max
        uses: dict[str, _ShareUse] = {}
        queued_at = entry.sequence.arrived_at
        for other in self._capacity.running[entry.tier]:
            share = other.sequence.share
            if share not in uses:
                uses[share] = _ShareUse(other.sequence.weight, most, queued_at)
            uses[share].add_entry(other)
        served = queue.served_tokens(entry.sequence.share)
        return [own for share, own in uses.items() if own.count > 1 and queue.served_tokens(share) >= served]

    def _pages_freed(self, victim: Entry) -> int:
        """Pages that only the victim holds, and that its preemption frees."""
        return sum(self._arena.references(page) == 1 for page in victim.sequence.pages)


class _ShareUse:
    """The slots and pages of a share in a tier."""

    def __init__(self, weight: float, preemptions_max: int, queued_at: float) -> None:
        """`queued_at`: when the first request was queued. Requests that started later are no victims, as the queue's
        order put them first."""
        self._queued_at = queued_at
        self.weight = weight
        self.count = 0
        self.pages = 0
        self._preemptions_max = preemptions_max
        self._entries: list[Entry] = []  # requests that may be preempted, oldest first

    def add_entry(self, entry: Entry) -> None:
        self.count += 1
        self.pages += len(entry.sequence.pages)
        started_at = entry.sequence.started_at
        before = started_at is not None and started_at < self._queued_at
        ending = entry.aborting or (entry.in_flight and entry.is_last_in_flight())
        if before and not entry.reserved and not ending and entry.sequence.preemptions < self._preemptions_max:
            self._entries.append(entry)

    def size(self, by_pages: bool) -> float:
        return (self.pages if by_pages else self.count) / self.weight

    def victim(self) -> Entry | None:
        """Remove and return the youngest request that may be preempted; None: there is none, or it is the share's
        last."""
        if self.count < 2 or not self._entries:
            return None
        entry = self._entries.pop()
        self.count -= 1
        self.pages -= len(entry.sequence.pages)
        return entry
