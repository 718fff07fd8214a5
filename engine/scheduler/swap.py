"""Which pages of preempted requests lie in host memory, and when that is worth their copies.

It keeps numbers of pages and slots; the host pool copies. It must never touch the bytes.
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
    """The KV of `tokens` tokens: by page the slot that it lies in, or None for one that others held too."""

    tokens: int
    slots: list[int | None]


class Swap:
    """Slots belong to requests that wait: from a preemption until they join again or end."""

    def __init__(self, pool: HostPool | None, arena: Arena, cost_models: CostModels) -> None:
        """Without a pool everything is recomputed."""
        self.slots = pool.slots if pool is not None else 0
        self.tokens = 0  # brought back
        self._pool = pool
        self._arena = arena
        self._cost_models = cost_models
        self._free = list(range(self.slots - 1, -1, -1))  # a stack: the lowest and the last freed come first
        self._saved: dict[Entry, _Saved] = {}

    def free_slots(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def save(self, entry: Entry) -> bool:
        """Copy out what a running request has that nobody shares, while it still has its pages: if that costs less than
        to compute it again, and there is room for all of it. A step in flight that writes them comes first, as all work
        is in order. Whether it did."""
        sequence = entry.sequence
        if self._pool is None or entry.aborting or len(sequence.output_ids) >= sequence.max_tokens:
            return False  # it ends with the step in flight
        page_tokens = entry.chain.tokens_per_page
        filled = sequence.pages[: -(-sequence.computed // page_tokens)]
        own = [page for page in filled if self._arena.references(page) == 1]
        if not own or len(own) > len(self._free):
            return False
        tokens = sequence.computed - (len(filled) - len(own)) * page_tokens
        again_s = self._cost_models.of(sequence.model).costs.prefill_token_s * tokens
        if 2 * self._pool.page_copy_s * len(own) > again_s:  # out and in
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
        """One that joins again has found `cached` pages in the prefix cache and has been given the others. Bring back
        what follows on those, as far as it goes; the rest is computed again. Its slots are free then."""
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
        """Free its slots, if it has any."""
        saved = self._saved.pop(entry, None)
        if saved is not None:
            self._free += [slot for slot in saved.slots if slot is not None]

    def check_integrity(self, waiting: Iterable[Entry]) -> None:
        """AssertionError says what is wrong: a slot owned twice or by nobody, or by a request that does not wait."""
        assert set(self._saved) <= set(waiting), "a request that does not wait holds slots"
        held = [slot for saved in self._saved.values() for slot in saved.slots if slot is not None]
        assert sorted(held + self._free) == list(range(self.slots)), "a slot has two owners, or none"
