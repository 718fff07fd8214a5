"""A poisoned arena: a read or write of a page that belongs to another request is detected.

Every free page is NaN after every step, every second page is a guard whose sum is checked, and the table row of an
adapter that left points outside the arena. One NaN read ends a request with an error, one foreign write changes a
guard, and one stale row is an illegal access.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch

from engine.memory.arena import PageKind
from engine.protocol.frames import Sampling
from engine.step import Sequence
from kernels.lora_work import pack_entry
from support import oracle
from support.engine.in_process import Drive

GUARD = "guard"
# Fewer pages than sequences, adapters and prefixes need: sequences are preempted, adapters and cached prefixes evicted.
PAGES = 260


class Traps:
    """Poison in all memory that an engine must not touch, so that a read or write is detected."""

    def __init__(self, engine: Drive) -> None:
        self._arena = engine.scheduler.arena
        self._bytes = engine.runner.adapters._arena
        pages = sorted(self._arena.allocate(self._arena.pages, GUARD))
        self._guards = torch.tensor(pages[1::2], device=self._bytes.device)
        self._arena.release(pages[0::2], GUARD)
        self._arena.allocate(self._arena.available() - PAGES, "elsewhere")
        shape = (len(self._guards), self._arena.page_bytes)
        self._bytes[self._guards] = torch.randint(0, 256, shape, dtype=torch.uint8, device=self._bytes.device)
        self._sums = self._sum()
        rows = engine.runner.adapters.rows
        if rows is not None:  # a GPU's
            self._poison(rows)

    def _poison(self, rows: object) -> None:
        removed, entries = rows.remove_row, rows.table.entries  # type: ignore[attr-defined]

        def remove_and_poison(digest: str) -> None:
            row, _ = rows.find(digest)  # type: ignore[attr-defined]
            removed(digest)
            entries[row, ..., 0] = pack_entry(16, 1.0)
            entries[row, ..., 1:] = 1 << 44

        rows.remove_row = remove_and_poison  # type: ignore[attr-defined]

    def set(self) -> None:
        """Write NaN into every page that is free now, in stream order: a step in flight reads the bytes from before."""
        free = [page for page, kind in enumerate(self._arena._kind) if kind is PageKind.FREE]
        if free:
            self._bytes[torch.tensor(free, device=self._bytes.device)] = 0xFF

    def check(self) -> None:
        assert torch.equal(self._sum(), self._sums), "a guard page was written"

    def _sum(self) -> torch.Tensor:
        weights = torch.arange(1, self._arena.page_bytes + 1, device=self._bytes.device, dtype=torch.int64)
        return (self._bytes[self._guards].long() * weights).sum(1)


def tiny_model(directory: Path, seed: int) -> tuple[Path, list[Path]]:
    """A model of two layers, and nine adapters of different ranks and targets."""
    model = oracle.save_tiny("llama", directory / "model", num_hidden_layers=2, head_dim=32, seed=seed)
    base = oracle.load(model)
    kinds = [(4, ["q_proj", "v_proj"]), (20, "all-linear"), (33, ["down_proj", "up_proj"])]
    return model, [
        oracle.save_tiny_adapter(base, directory / f"{rank}-{copy}", r=rank, target_modules=targets, seed=rank + copy)
        for rank, targets in kinds
        for copy in range(3)
    ]


def run_among_traps(engine: Drive, adapters: list[Path], scratch: Path, seed: int, steps: int) -> str:
    """Run a number of steps of mixed traffic: models, tiers, adapters, shared prefixes, stops, aborts. Every id that a
    step made is in the output of its request, and in no other. Returns a summary."""
    dice = random.Random(seed)
    models = list(engine.runner.models)
    digests: dict[str, list[str | None]] = {}
    for index, model in enumerate(models):
        own = engine.add_adapters(adapters[index :: len(models)], scratch, model)
        digests[model] = [None, *own.values()]
    pool = engine.runner.host_pool
    if pool is not None:
        pool.page_copy_s = 0.0  # however little is known of steps, it is worth its copies
    traps = Traps(engine)
    prefixes = [[dice.randrange(1, oracle.TINY_VOCAB) for _ in range(60)] for _ in range(4)]
    live: list[Sequence] = []
    asked: list[Sequence] = []

    def fresh() -> Sequence:
        prompt = [dice.randrange(1, oracle.TINY_VOCAB) for _ in range(dice.randrange(1, 90))]
        if dice.random() < 0.4:
            prompt = dice.choice(prefixes) + prompt
        sampling = Sampling(dice.choice([0.0, 1.0]), top_p=dice.choice([1.0, 0.9]), seed=dice.randrange(1 << 60))
        tier = dice.choice(["premium", "standard", "batch"])
        stops = frozenset({7}) if dice.random() < 0.5 else frozenset()
        model = models[0] if len(models) == 1 else dice.choice(models)
        new, adapter = dice.randrange(1, 60), dice.choice(digests[model])
        asked.append(engine.request(prompt, new, adapter, sampling, tier, stops, model))
        return asked[-1]

    def after_step() -> None:
        traps.set()
        if len(engine.steps) % 50 == 0:
            traps.check()
        if len(engine.steps) < steps:
            if sum(engine.scheduler.waiting().values()) < 12:
                live.append(fresh())
                assert engine.scheduler.submit(live[-1]) is None
            if live and dice.random() < 0.05:
                gone = dice.choice(live)
                engine.scheduler.abort(gone.gateway, gone.handle)

    traps.set()
    engine.run([fresh() for _ in range(20)], after_step, ("length", "stop", "aborted"))
    traps.check()
    assert len(engine.steps) >= steps
    assert {own.handle: own.output_ids for own in asked if own.output_ids} == engine.made, "the books of tokens"
    assert {step.model for step in engine.steps} == set(models)
    scheduler = engine.scheduler
    assert steps < 100 or scheduler.preemptions > 0
    assert steps < 100 or scheduler.prefix.hits > 0
    swapped = sum(sequence.swapped_tokens for sequence in asked)
    assert steps < 100 or bool(swapped) == (pool is not None)
    assert scheduler.swap.free_slots() == scheduler.swap.slots
    return (
        f"{len(engine.steps)} steps, {scheduler.preemptions} preemptions, {scheduler.prefix.hits} cached tokens, "
        f"{swapped} swapped"
    )
