"""A request that is preempted repeatedly while its pages are in host memory, and a check of the pages copied back."""

from __future__ import annotations

import torch

from engine.step import HostPool, Sequence
from support.engine.in_process import Drive
from support.engine.poisoned_arena import Traps

INTERRUPT_EVERY = 7  # steps
PROMPT_TOKENS, NEW_TOKENS = 75, 60


class Compared:
    """A host pool that records the pages copied out and copied back. It works in stream order: like the engine, it
    never waits for a copy."""

    def __init__(self, pool: HostPool, arena: torch.Tensor) -> None:
        self.slots, self.page_copy_s = pool.slots, 0.0  # however little is known of steps, it is worth its copies
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._pool = pool
        self._arena = arena
        self._out: dict[int, torch.Tensor] = {}

    def copy_out(self, pages: list[int], slots: list[int]) -> None:
        for page, slot in zip(pages, slots, strict=True):
            self._out[slot] = self._arena[page].clone()
        self._pool.copy_out(pages, slots)

    def copy_in(self, slots: list[int], pages: list[int]) -> None:
        self._pool.copy_in(slots, pages)
        self.pairs += [(self._out[slot], self._arena[page].clone()) for slot, page in zip(slots, pages, strict=True)]

    def check(self) -> None:
        assert self.pairs
        assert all(torch.equal(out, back) for out, back in self.pairs), "a page was copied back with other bytes"


def run_swapped(engine: Drive, adapter: str | None) -> None:
    """One sequence slot, so that a request runs alone in each of its steps: it draws the same ids as an uninterrupted
    run exactly when the copied pages are equal."""
    arena, pool = engine.scheduler.arena, Compared(engine.runner.host_pool, engine.runner.adapters._arena)
    engine.scheduler.swap._pool = pool
    traps = Traps(engine)

    def forget() -> None:
        """Drop all cached prefixes, and put NaN into every free page."""
        arena.release(arena.allocate(arena.available(), "forget"), "forget")
        traps.set()

    prompt = [1 + i * 37 % 60 for i in range(PROMPT_TOKENS)]
    whole = engine.request(prompt, NEW_TOKENS, adapter, tier="batch")
    forget()
    engine.run([whole])
    assert not whole.preemptions

    cut = engine.request(prompt, NEW_TOKENS, adapter, tier="batch")
    began = len(engine.steps)
    urgent: list[Sequence] = []

    def interrupt() -> None:
        if (len(engine.steps) - began) % INTERRUPT_EVERY == 0 and len(cut.output_ids) < NEW_TOKENS - 2:
            urgent.append(engine.request([1 + len(urgent), 2, 3], 2, tier="premium"))
            assert engine.scheduler.submit(urgent[-1]) is None
        if not cut.pages:
            forget()

    forget()
    engine.run([cut], interrupt)
    assert cut.preemptions > 2
    assert cut.swapped_tokens > 2 * PROMPT_TOKENS
    assert cut.recomputed_tokens == 0
    assert cut.output_ids == whole.output_ids
    pool.check()
    traps.check()
    assert engine.scheduler.swap.free_slots() == pool.slots
    engine.scheduler.swap.check_integrity([])
