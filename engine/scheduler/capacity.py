"""Sequence slots, pages and adapters of the running requests: which request gets them, and which request is preempted
or which adapter is evicted for it.

Within its floors a tier loses nothing to others. Above its floors, lower tiers are preempted for higher ones, and
inside a tier the youngest request is preempted for a running request that grows. This module knows no steps, queues or
shares."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from engine.memory.adapter_residency import AdapterResidency
from engine.memory.arena import Arena
from engine.memory.prefix_cache import PrefixCache
from engine.protocol.tiers import Tier
from engine.scheduler.entry import Entry
from engine.scheduler.floors import Floors
from engine.scheduler.swap import Swap


class Capacity:
    """Knows every running request. `preempt(victim, cause)` is the scheduler's: it calls `leave_batch` before it
    returns; `cause` is the rank of the tier for which it preempts."""

    def __init__(
        self,
        tiers: Ordered[Tier],
        arena: Arena,
        prefix: PrefixCache,
        residency: AdapterResidency,
        swap: Swap,
        sequences_max: int,
        preempt: Callable[[Entry, int], None],
    ) -> None:
        self.running: list[list[Entry]] = [[] for _ in tiers]  # by tier, oldest first
        self._tiers = tiers
        self._arena = arena
        self._prefix = prefix
        self._residency = residency
        self._swap = swap
        self._preempt = preempt
        self.pages = Floors(tiers, arena.pages, lambda rank: arena.held(tiers[rank].name), arena.available)
        self.slots = Floors(
            tiers, sequences_max, lambda rank: len(self.running[rank]), lambda: sequences_max - self.count()
        )
        self._reserved_pages = [0] * len(tiers)
        self._reserved_slots = [0] * len(tiers)
        self.changes = 0  # number of joins and leaves

    def count(self) -> int:
        return sum(map(len, self.running))

    # ---- joining, growing, leaving

    def join_batch(self, entry: Entry) -> bool:
        """Give a waiting request a slot, its adapter, and pages for all its tokens, preempting lower tiers; or none of
        the three. A request that is owed its run also reserves its floor's pages for all that it may ever need."""
        sequence, holder = entry.sequence, self._tiers[entry.tier].name
        if self.slots.spare(entry.tier, reclaim=True) < 1:
            return False
        page_tokens = entry.chain.tokens_per_page
        cached = self._prefix.match(entry.chain, sequence.tokens, entry.cacheable() // page_tokens)
        self._arena.retain(cached, holder)
        missing = self.pages_of(entry, sequence.token_count()) - len(cached)
        try:
            # Preempting and evicting may have evicted the request's own adapter.
            joins = self._evict_for_entry(entry, missing) and self._residency.is_adapter_ready(sequence.adapter)
            if joins:
                self._take_capacity(entry, cached, missing)
        except Exception:
            self._arena.release(reversed(cached), holder)
            raise
        if not joins:
            self._arena.release(reversed(cached), holder)
            return False
        entry.running = True
        self.changes += 1
        bisect.insort(self.running[entry.tier], entry, key=lambda other: other.number)
        # Its adapter may lie in more pages now than it needs alone. If the floor does not cover them, the request can
        # be preempted like others.
        if entry.owed and self.can_reserve(entry):
            entry.reserved = self._pages_to_end(entry)
            self._reserved_pages[entry.tier] += entry.reserved
            self._reserved_slots[entry.tier] += 1
        return True

    def _take_capacity(self, entry: Entry, cached: list[int], missing: int) -> None:
        """Take a slot, the adapter and `missing` pages; `cached` pages are held already. If this raises, the request
        has acquired nothing."""
        sequence, holder = entry.sequence, self._tiers[entry.tier].name
        while self.slots.spare(entry.tier) < 1:
            victim = self._slot_victim(entry.tier)
            assert victim is not None, "no free place, and no request that may be preempted for one"
            self._preempt(victim, entry.tier)
        self._residency.evict_idle(missing + self._adapter_pages(entry), sequence.adapter, entry.tier)
        self._residency.acquire_adapter(sequence.adapter, holder)
        own: list[int] = []
        try:
            own = self._arena.allocate(missing, holder)
            sequence.pages = cached + own
            sequence.computed = len(cached) * entry.chain.tokens_per_page
            entry.shared = entry.published = len(cached)
            self._swap.restore(entry, len(cached))
        except Exception:
            sequence.pages, sequence.computed = [], 0
            self._arena.release(reversed(own), holder)
            self._residency.release_adapter(sequence.adapter, holder)
            raise

    def grow_entry(self, entry: Entry) -> bool:
        """Allocate one more page for a running request. False: it was preempted itself.

        That can happen even to a request that is owed its run: its tier's floor also counted pages that requests of its
        tier shared with requests it cannot preempt, and the former have ended. It is then preempted once more than
        `preemptions_max`.
        """
        sequence = entry.sequence
        while self.pages.below_capacity(entry.tier) < 1:
            victim = self._youngest(entry.tier) or entry
            self._preempt(victim, entry.tier)
            if victim is entry:
                return False
        while self.pages.spare(entry.tier) < 1:
            # Within its floor a tier may evict adapters that higher tiers only wait for.
            if self._residency.evict_adapter(sequence.adapter, entry.tier if self.pages.over(entry.tier) >= 0 else 0):
                continue
            victim = self._page_victim(entry.tier) or self._youngest(entry.tier) or entry
            self._preempt(victim, entry.tier)
            if victim is entry:
                return False
        self._residency.evict_idle(1, sequence.adapter, entry.tier)
        sequence.pages += self._arena.allocate(1, self._tiers[entry.tier].name)
        return True

    def leave_batch(self, entry: Entry) -> None:
        """Release the slot, the adapter and the pages."""
        sequence, holder = entry.sequence, self._tiers[entry.tier].name
        entry.running = False
        self.changes += 1
        self.running[entry.tier].remove(entry)
        # Last page first: the end of a chain is evicted before its beginning.
        self._arena.release(reversed(sequence.pages), holder)
        sequence.pages = []
        self._residency.release_adapter(sequence.adapter, holder)
        if entry.reserved:
            self._reserved_pages[entry.tier] -= entry.reserved
            self._reserved_slots[entry.tier] -= 1
            entry.reserved = 0

    def evacuate_model(self, model: str, rank: int | None) -> bool:
        """Preempt the model's running requests for a demand of tier `rank`; None: preempt nothing. While one of them
        must finish, none of them is preempted, because the weights remain on the device in any case. Returns whether
        the model runs no request."""
        running = [entry for tier in self.running for entry in tier if entry.sequence.model == model]
        if rank is None or any(self._must_finish(entry, rank) for entry in running):
            return not running
        for entry in running:
            self._preempt(entry, rank)
        return True

    def _must_finish(self, entry: Entry, rank: int) -> bool:
        """Whether the request's model remains on the device until the request has ended, although a request of tier
        `rank` needs its bytes. A request that was preempted `preemptions_max` times must finish: otherwise two models
        of one tier could evict each other without end when a run takes longer than a residence."""
        tier = self._tiers[entry.tier]
        is_preempted_often = entry.tier <= rank and entry.sequence.preemptions >= tier.preemptions_max
        return entry.reserved > 0 or not tier.preemptible or is_preempted_often

    # ---- what fits

    def is_owed_run(self, entry: Entry) -> bool:
        """A request that was preempted `preemptions_max` times is owed a run to its end, if its tier's floor is enough
        for it."""
        if entry.sequence.preemptions < self._tiers[entry.tier].preemptions_max:
            return False
        return self.slots.floor(entry.tier) > 0 and self._pages_to_end(entry) <= self.pages.floor(entry.tier)

    def has_outgrown_floor(self, entry: Entry) -> bool:
        """The request needs more than its tier's floor, because its adapter lies in more pages than when it became owed
        its run."""
        return self._pages_to_end(entry) > self.pages.floor(entry.tier)

    def can_reserve(self, entry: Entry) -> bool:
        """The floor has capacity for the request beside the requests that have reserved capacity in it."""
        tier = entry.tier
        pages = self._reserved_pages[tier] + self._pages_to_end(entry)
        return pages <= self.pages.floor(tier) and self._reserved_slots[tier] < self.slots.floor(tier)

    def within_floor(self, entry: Entry) -> bool:
        """The request could join without a page beyond its tier's floor."""
        pages = self.pages_of(entry, entry.sequence.token_count()) + self._adapter_pages(entry)
        return self.pages.over(entry.tier) + pages <= 0

    def spare_slots(self, tier: int) -> int:
        """Slots that the tier could take after preempting all that lower tiers borrow."""
        return self.slots.spare(tier, reclaim=True)

    def missing_capacity(self, entry: Entry, *, reclaimed: bool = False) -> tuple[int, int]:
        """Slots and pages that a waiting request lacks even after preempting lower tiers and evicting idle adapters; 0
        or less: none. Counts neither headroom nor cached pages.

        The pages are a lower bound: a page that lower tiers or idle adapters hold in common with others is not freed.
        With `reclaimed` they are exact, if `reclaim_pages` was called before.
        """
        pages = self.pages_of(entry, entry.sequence.token_count()) + self._adapter_pages(entry)
        reachable_pages = self.pages.spare(entry.tier, reclaim=not reclaimed)
        reachable_pages += 0 if reclaimed else self._residency.evictable_pages(entry.tier)
        joined = self._residency.pages_to_retain(entry.sequence.adapter, self._tiers[entry.tier].name)
        over_capacity = pages + joined - self.pages.below_capacity(entry.tier)
        return 1 - self.spare_slots(entry.tier), max(pages - reachable_pages, over_capacity)

    def pages_of(self, entry: Entry, tokens: int) -> int:
        return -(-tokens // entry.chain.tokens_per_page)

    def check_integrity(self) -> None:
        """Raises AssertionError. Includes the checks of the arena and of the prefix cache."""
        for tier, running in enumerate(self.running):
            reserved = [entry.reserved for entry in running if entry.reserved]
            assert sum(reserved) == self._reserved_pages[tier] <= self.pages.floor(tier)
            assert len(reserved) == self._reserved_slots[tier] <= self.slots.floor(tier)
            for entry in running:
                held = len(entry.sequence.pages)
                assert not entry.reserved or held <= entry.reserved, f"{entry.sequence.request_id} outgrew its floor"
        references = self._residency.held_pages()
        for running in self.running:
            for entry in running:
                references.update(entry.sequence.pages)
        self._arena.check_integrity(references)
        self._prefix.check_integrity()

    # ---- eviction and preemption

    def _evict_for_entry(self, entry: Entry, missing: int) -> bool:
        """Evict idle adapters, then preempt lower tiers, until `missing` pages, the adapter's pages and the headroom
        are available. Returns whether they are; if they cannot become available, nothing is evicted or preempted."""
        adapter = entry.sequence.adapter
        headroom = self._headroom(entry, missing)
        pages_wanted = missing + self._adapter_pages(entry) + headroom
        rank = self._eviction_rank(entry, missing)
        idle = self._residency.evictable_pages(rank)
        pages_taken = missing + self._adapter_pages(entry)
        pages_taken += self._residency.pages_to_retain(adapter, self._tiers[entry.tier].name)
        if self.count() and self.pages.below_capacity(entry.tier) < pages_taken:
            return False
        if self.pages.spare(entry.tier, reclaim=True) + idle < pages_wanted:
            return False
        return self._evict_and_preempt(entry, missing, headroom, rank)

    def reclaim_pages(self, entry: Entry) -> None:
        """Evict idle adapters, then preempt lower tiers, as far as a waiting request needs it for its pages."""
        missing = self.pages_of(entry, entry.sequence.token_count())
        self._evict_and_preempt(entry, missing, 0, self._eviction_rank(entry, missing))

    def _evict_and_preempt(self, entry: Entry, missing: int, headroom: int, rank: int) -> bool:
        """Evict adapters that no tier above `rank` waits for, then preempt lower tiers, until `missing` pages, the
        adapter's pages and `headroom` are available. False: they are not."""
        adapter = entry.sequence.adapter
        # Evicting an adapter may change the pages that the own one needs, as adapters share pages.
        while self.pages.spare(entry.tier) < missing + self._adapter_pages(entry) + headroom:
            if self._residency.evict_adapter(adapter, rank):
                continue
            victim = self._page_victim(entry.tier)
            if victim:
                self._preempt(victim, entry.tier)
            elif self.count() or not self._residency.evict_adapter(keep=None):
                return False
        return True

    def _eviction_rank(self, entry: Entry, missing: int) -> int:
        """The `rank` for AdapterResidency.evict_adapter: adapters that higher tiers wait for are not evicted, unless
        nothing runs or the request joins within its tier's floor. `missing`: pages that the tier does not hold yet."""
        within_floor = self.pages.over(entry.tier) + missing + self._adapter_pages(entry) <= 0
        return entry.tier if self.count() and not within_floor else 0

    def _headroom(self, entry: Entry, missing: int) -> int:
        """One page for each running request that could preempt the new one when it grows; within the floor only
        requests of its own tier can. 0 if the request is owed its pages, or joins as a first request
        (first_requests.py)."""
        if entry.owed or entry.preempts_as_first:
            return 0
        own = len(self.running[entry.tier])
        if self.pages.over(entry.tier) + missing + self._adapter_pages(entry) + own <= 0:
            return own
        return sum(len(running) for running in self.running[: entry.tier + 1])

    def _page_victim(self, tier: int) -> Entry | None:
        """The request to preempt so that `tier` gets pages, in the lowest tier that borrows some."""
        for rank in range(len(self._tiers) - 1, tier, -1):
            if self.pages.borrows(rank) and (victim := _cheapest(self.running[rank])):
                return victim
        return None

    def _slot_victim(self, tier: int) -> Entry | None:
        """The request to preempt so that `tier` gets a slot, in the lowest tier that borrows one."""
        for rank in range(len(self._tiers) - 1, tier, -1):
            if self.slots.borrows(rank) and (victim := _cheapest(self.running[rank])):
                return victim
        return None

    def _youngest(self, tier: int) -> Entry | None:
        """The youngest request that may be preempted for another of its tier; None: all are owed their run. A share's
        first request (first_requests.py) is taken only if there is no other."""
        free = [entry for entry in reversed(self.running[tier]) if not entry.reserved]
        return next((entry for entry in free if not entry.first), free[0] if free else None)

    def _pages_to_end(self, entry: Entry) -> int:
        """The most pages that the request will hold, its adapter's (AdapterResidency.footprint) included. The last id's
        KV is never computed."""
        sequence = entry.sequence
        tokens = max(sequence.token_count(), len(sequence.prompt_ids) + sequence.max_tokens - 1)
        return self.pages_of(entry, tokens) + self._residency.footprint(sequence.adapter)

    def _adapter_pages(self, entry: Entry) -> int:
        return self._residency.pages_needed(entry.sequence.adapter)


def _cheapest(entries: list[Entry]) -> Entry | None:
    """The request whose preemption loses least computed work per page freed, among equals the youngest. Requests that
    are owed their run are left out."""
    free = [entry for entry in entries if not entry.reserved]
    return min(free, key=lambda entry: (entry.lost_work(), -entry.number), default=None)
