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

# After a first request has ended, its preempted place stays reserved for first requests for KEPT_S seconds. A client
# that sends short requests one after another therefore preempts once, not once per request.
KEPT_S = 1.0
# At most this part of all places is reserved so.
KEPT_PART = 0.5
# Seconds before a failed attempt to make room is repeated, if nothing has changed.
VAIN_S = 0.1


class FirstRequests:
    """Makes room for first requests of all tiers, and reserves the places that they leave."""

    def __init__(
        self,
        tiers: Ordered[Tier],
        room: Capacity,
        arena: Arena,
        queues: Ordered[TierQueue],
        clock: Callable[[], float],
        preempt: Callable[[Entry, int], None],
        sequences_max: int,
    ) -> None:
        """`preempt(victim, cause)`: see Room."""
        self._tiers = tiers
        self._room = room
        self._arena = arena
        self._queues = queues
        self._clock = clock
        self._preempt = preempt
        self._kept_max = int(KEPT_PART * sequences_max)
        self._kept: list[deque[float]] = [deque() for _ in tiers]  # by tier: until when each place is reserved
        # By tier: the last failed attempt. See `next`.
        self._vain: list[tuple[int | None, int, float]] = [(0, 0, -math.inf)] * len(tiers)

    # ---- reserved places

    def kept(self, tier: int) -> int:
        kept, now = self._kept[tier], self._clock()
        while kept and kept[0] <= now:
            kept.popleft()
        return len(kept)

    def kept_from(self, entry: Entry) -> bool:
        """Whether the request must not join because all spare places are reserved for first requests. A share that runs
        nothing, and a request that is owed its run, may always take a place."""
        kept = self._kept[entry.tier]
        if not kept or entry.owed or not self._queues[entry.tier].runs(entry.sequence.share):
            return False
        return self._room.spare_places(entry.tier) <= self.kept(entry.tier)

    def joined(self, entry: Entry) -> None:
        """A request joined. A first request uses up one reserved place of its tier, if there is one."""
        if entry.first and self.kept(entry.tier):
            self._kept[entry.tier].popleft()
            entry.keeps_place = True

    def note_ending(self, entry: Entry) -> None:
        """A running request ended: its place is reserved if it was preempted or reserved for it."""
        self._queues[entry.tier].note_ending(entry)
        kept = self._kept[entry.tier]
        if entry.keeps_place and len(kept) < self._kept_max:
            kept.append(self._clock() + KEPT_S)

    # ---- room

    def next(self, model: str, tier: int, ready: Ready) -> Entry | None:
        """The first request for which others may be preempted. After a failed attempt it is None until the set of
        running requests has changed, another request has become first, or VAIN_S have passed. If lower tiers were
        preempted for the failed attempt, a change of the running requests does not shorten VAIN_S."""
        queue = self._queues[tier]
        changes, newest, at = self._vain[tier]
        same = changes in (None, self._room.changes) and newest == queue.newest_first
        if same and self._clock() < at + VAIN_S:
            return None
        return queue.first(model, ready)

    def make_room(self, entry: Entry) -> bool:
        """Preempt requests until a first request has a place and its pages. False: its tier has too few victims, and
        none of them was preempted. Lower tiers may have been."""
        places, pages = self._room.missing_capacity(entry)
        victims: list[Entry] = []
        changes: int | None = self._room.changes
        if (places > 0 or pages > 0) and self._victims(entry, places, pages):
            self._room.reclaim_pages(entry)
            places, pages = self._room.missing_capacity(entry, reclaimed=True)
            victims = self._victims(entry, places, pages)
            changes = None
        if (places > 0 or pages > 0) and not victims:
            self._vain[entry.tier] = changes, self._queues[entry.tier].newest_first, self._clock()
            return False
        entry.preempts_share = True
        entry.keeps_place = places > 0
        for victim in victims:
            self._preempt(victim, entry.tier)
            victim.made_way_for = entry.sequence.share
        return True

    def _victims(self, entry: Entry, places: int, pages: int) -> list[Entry]:
        """Victims that free `places` places and `pages` pages; empty if that is impossible. Each is the youngest
        request of the share that then holds most for its weight. Each share keeps at least one request; when pages are
        lacking, only a share with at least as many pages for its weight as the first request needs loses one."""
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

    def _holdings(self, entry: Entry) -> list[_ShareUse]:
        """Shares with several running requests that were served at least as much as the first request's share: by the
        fairness counters its turn is before theirs."""
        queue, most = self._queues[entry.tier], self._tiers[entry.tier].preemptions_max
        holdings: dict[str, _ShareUse] = {}
        asked_at = entry.sequence.arrived_at
        for other in self._room.running[entry.tier]:
            share = other.sequence.share
            if share not in holdings:
                holdings[share] = _ShareUse(other.sequence.weight, most, asked_at)
            holdings[share].add_entry(other)
        served = queue.served(entry.sequence.share)
        return [own for share, own in holdings.items() if own.count > 1 and queue.served(share) >= served]

    def _freed(self, victim: Entry) -> int:
        """Pages that only the victim holds, and that its preemption frees."""
        return sum(self._arena.references(page) == 1 for page in victim.sequence.pages)


class _ShareUse:
    """What a share holds in a tier."""

    def __init__(self, weight: float, preemptions_max: int, asked_at: float) -> None:
        """`asked_at`: when the first request was queued. Requests that started later are no victims: the queue's order
        put them first."""
        self._asked_at = asked_at
        self.weight = weight
        self.count = 0
        self.pages = 0
        self._preemptions_max = preemptions_max
        self._entries: list[Entry] = []  # those that may be preempted, oldest first

    def add_entry(self, entry: Entry) -> None:
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
        """Remove and return the youngest that may be preempted; None: the share keeps what is left."""
        if self.count < 2 or not self._entries:
            return None
        entry = self._entries.pop()
        self.count -= 1
        self.pages -= len(entry.sequence.pages)
        return entry
