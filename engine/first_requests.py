"""The first requests of shares: a share that has nothing in a tier and asks does not wait for the share that fills it.

A request is a share's first if the share had nothing in the tier, running or waiting, when it was queued, or if the
share's last running request ended and this is the oldest that waits. It may preempt the youngest request of the share
with the most room for its weight; a share that always runs something in the tier never has a first request, so that two
which flood it do not preempt each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from engine.arena import Arena
from engine.entry import Entry
from engine.queues import Ready, TierQueue
from engine.room import Room
from engine.tiers import Tier

# A place that was preempted for a share is kept for first requests so long after its request has ended: a client that
# sends one short request after the other preempts once, and not once for each.
KEPT_S = 1.0
# At most this part of all places is kept.
KEPT_PART = 0.5
# After an attempt in vain.
VAIN_S = 0.1


class FirstRequests:
    """Makes room for first requests, and keeps the places that they leave. Of all tiers."""

    def __init__(
        self,
        tiers: Ordered[Tier],
        room: Room,
        arena: Arena,
        queues: Ordered[TierQueue],
        clock: Callable[[], float],
        preempt: Callable[[Entry, int], None],
        sequences_max: int,
    ) -> None:
        """`preempt(victim, cause)` as Room's."""
        self._tiers = tiers
        self._room = room
        self._arena = arena
        self._queues = queues
        self._clock = clock
        self._preempt = preempt
        self._kept_max = int(KEPT_PART * sequences_max)
        self._kept: list[deque[float]] = [deque() for _ in tiers]  # until when each place is kept, by tier
        self._vain = [(0, 0, -math.inf)] * len(tiers)  # see `next`; of the last attempt in vain

    # ---- places that are kept

    def kept(self, tier: int) -> int:
        kept, now = self._kept[tier], self._clock()
        while kept and kept[0] <= now:
            kept.popleft()
        return len(kept)

    def kept_from(self, entry: Entry) -> bool:
        """All places that are left are kept for first requests, and this is not one. A share that runs nothing is not
        refused one, nor a request that is owed its run."""
        kept = self._kept[entry.tier]
        if not kept or entry.owed or not self._queues[entry.tier].runs(entry.sequence.share):
            return False
        return self._room.spare_places(entry.tier) <= self.kept(entry.tier)

    def joined(self, entry: Entry) -> None:
        """A first request joined, be it in a place that was kept."""
        if entry.first and self.kept(entry.tier):
            self._kept[entry.tier].popleft()
            entry.keeps_place = True

    def ended(self, entry: Entry) -> None:
        """A running request ended."""
        self._queues[entry.tier].ended(entry)
        kept = self._kept[entry.tier]
        if entry.keeps_place and len(kept) < self._kept_max:
            kept.append(self._clock() + KEPT_S)

    # ---- room

    def next(self, model: str, tier: int, ready: Ready) -> Entry | None:
        """The first request for which others may be preempted. An attempt in vain is not repeated in every step: only
        once the running requests have changed, there is another first request, or VAIN_S have passed."""
        queue = self._queues[tier]
        changes, newest, at = self._vain[tier]
        if (changes, newest) == (self._room.changes, queue.newest_first) and self._clock() < at + VAIN_S:
            return None
        return queue.first(model, ready)

    def make_room(self, entry: Entry) -> bool:
        """Preempt what a first request lacks of a place and of pages. False: that cannot be, and nothing was
        preempted."""
        places, pages = self._room.lacks(entry)
        victims: list[Entry] = []
        if places > 0 or pages > 0:
            victims = self._victims(entry, places, pages)
            if not victims:
                self._vain[entry.tier] = self._room.changes, self._queues[entry.tier].newest_first, self._clock()
                return False
        entry.preempts_share = True
        entry.keeps_place = places > 0
        for victim in victims:
            self._preempt(victim, entry.tier)
            victim.made_way_for = entry.sequence.share
        return True

    def _victims(self, entry: Entry, places: int, pages: int) -> list[Entry]:
        """The youngest of the share that has most room for its weight, again and again until `places` places and
        `pages` pages are free; nobody, if that cannot be. Each share keeps a request, and more pages for its weight
        than the newcomer gets."""
        holdings = self._holdings(entry)
        limit = self._room.pages_of(entry, entry.sequence.token_count()) / entry.sequence.weight if pages > 0 else 0.0
        found: list[Entry] = []
        while places > 0 or pages > 0:
            by_pages = pages > 0
            largest = max(holdings, key=lambda holding: holding.size(by_pages), default=None)
            if largest is None:
                return []
            victim = largest.victim()
            if victim is None or largest.pages / largest.weight < limit:
                holdings.remove(largest)
                continue
            found.append(victim)
            places -= 1
            pages -= self._freed(victim)
        return found

    def _holdings(self, entry: Entry) -> list[_Holding]:
        """Of the shares that were served as much as the newcomer's at least: the counters of fairness say that it is
        next."""
        queue, most = self._queues[entry.tier], self._tiers[entry.tier].preemptions_max
        holdings: dict[str, _Holding] = {}
        asked_at = entry.sequence.arrived_at
        for other in self._room.running[entry.tier]:
            share = other.sequence.share
            if share not in holdings:
                holdings[share] = _Holding(other.sequence.weight, most, asked_at)
            holdings[share].add(other)
        served = queue.served(entry.sequence.share)
        return [own for share, own in holdings.items() if own.count > 1 and queue.served(share) >= served]

    def _freed(self, victim: Entry) -> int:
        """Pages that nobody else holds."""
        return sum(self._arena.references(page) == 1 for page in victim.sequence.pages)


class _Holding:
    """What a share has in a tier."""

    def __init__(self, weight: float, preemptions_max: int, asked_at: float) -> None:
        """`asked_at`: when the first request was queued. Those that started since were next, by the queue's order."""
        self._asked_at = asked_at
        self.weight = weight
        self.count = 0
        self.pages = 0
        self._preemptions_max = preemptions_max
        self._entries: list[Entry] = []  # that may be preempted, oldest first

    def add(self, entry: Entry) -> None:
        self.count += 1
        self.pages += len(entry.sequence.pages)
        started_at = entry.sequence.started_at
        before = started_at is not None and started_at < self._asked_at
        ending = entry.aborting or (entry.in_flight and len(entry.sequence.output_ids) >= entry.sequence.max_tokens)
        if before and not entry.reserved and not ending and entry.sequence.preemptions < self._preemptions_max:
            self._entries.append(entry)

    def size(self, by_pages: bool) -> float:
        return (self.pages if by_pages else self.count) / self.weight

    def victim(self) -> Entry | None:
        """Its youngest, which is taken out; None: it has to keep the rest."""
        if self.count < 2 or not self._entries:
            return None
        entry = self._entries.pop()
        self.count -= 1
        self.pages -= len(entry.sequence.pages)
        return entry
