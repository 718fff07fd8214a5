"""Pages of preempted requests in host memory, and the decision whether copying them is cheaper than recomputing.

It tracks the numbers of pages and host slots; the HostPool copies the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.memory.arena import Arena
from engine.scheduler.cost_model import CostModels
from engine.scheduler.entry import Entry
from engine.step import HostPool


@dataclass(slots=True, frozen=True)
class _Saved:
    """The KV of `tokens` tokens: for each page its host slot, or None for a page that others held too."""

    tokens: int
    slots: list[int | None]


class Swap:
    """Host slots belong to waiting requests: from a preemption until the request joins again or ends."""

    def __init__(self, pool: HostPool | None, arena: Arena, cost_models: CostModels) -> None:
        """`pool` None: everything is recomputed."""
        self.slots = pool.slots if pool is not None else 0
        self.tokens = 0  # tokens copied back
        self._pool = pool
        self._arena = arena
        self._cost_models = cost_models
        self._free = list(range(self.slots - 1, -1, -1))  # a stack: lowest slot first, then the last freed
        self._saved: dict[Entry, _Saved] = {}

    def free_slots(self) -> int:
        return len(self._free)

    def save(self, entry: Entry) -> bool:
        """Copy out the pages that only this running request holds, if that is cheaper than recomputing them and host
        memory has space for all. Called while it still has its pages; a step in flight writes them first, as the device
        works in order. Returns whether it copied."""
        sequence = entry.sequence
        if self._pool is None or entry.aborting or entry.is_last_in_flight():
            return False  # it ends with the step in flight
        page_tokens = entry.chain.tokens_per_page
        filled = sequence.pages[: -(-sequence.computed // page_tokens)]
        own = [page for page in filled if self._arena.references(page) == 1]
        if not own or len(own) > len(self._free):
            return False
        tokens = sequence.computed - (len(filled) - len(own)) * page_tokens
        recompute_s = self._cost_models.of(sequence.model).costs.prefill_token_s * tokens
        if 2 * self._pool.page_copy_s * len(own) > recompute_s:  # out and in
            return False
        slots = {page: self._free.pop() for page in own}
        try:
            self._pool.copy_out(own, list(slots.values()))
        except Exception:
            self._free += reversed(slots.values())
            raise
        self._saved[entry] = _Saved(sequence.computed, [slots.get(page) for page in filled])
        return True

    def restore(self, entry: Entry, cached: int) -> None:
        """The request joins again: it has `cached` pages from the prefix cache, and new ones. Copy back the pages that
        follow the cached ones without a gap; the rest is recomputed. Frees its host slots."""
        saved = self._saved.get(entry)
        if saved is None:
            return
        sequence = entry.sequence
        slots = []
        for slot in saved.slots[cached:]:
            if slot is None:
                break
            slots.append(slot)
        if slots:
            assert self._pool is not None
            self._pool.copy_in(slots, sequence.pages[cached : cached + len(slots)])
            back = min(saved.tokens, (cached + len(slots)) * entry.chain.tokens_per_page)
            assert sequence.computed < back < sequence.token_count()
            self.tokens += back - sequence.computed
            sequence.swapped_tokens += back - sequence.computed
            sequence.computed = back
        self.release_slots(entry)

    def release_slots(self, entry: Entry) -> None:
        """Free the request's host slots, if it has any."""
        saved = self._saved.pop(entry, None)
        if saved is not None:
            self._free += [slot for slot in saved.slots if slot is not None]

    def check_integrity(self, waiting: Iterable[Entry]) -> None:
        """Raises AssertionError: a slot with two owners or none, or owned by a request that does not wait."""
        assert set(self._saved) <= set(waiting), "a request that does not wait holds slots"
        held = [slot for saved in self._saved.values() for slot in saved.slots if slot is not None]
        assert sorted(held + self._free) == list(range(self.slots)), "a slot has two owners, or none"
