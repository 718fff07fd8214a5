"""Nobody reads or writes what is not theirs: a thousand steps of mixed traffic in an arena full of traps.

Every free page is NaN after every step, every second page is a guard whose sum is checked, and the table row
of an adapter that left points outside the arena. One NaN read ends a request with an error, one foreign write changes a
guard, and one stale row is an illegal access.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import oracle
import pytest
import torch
from gpu_engine import GpuEngine

from engine.arena import PageKind
from engine.protocol import Sampling
from engine.step import Sequence

pytestmark = pytest.mark.gpu
STEPS = int(os.environ.get("LANEWAY_TRAP_STEPS", "1000"))
GUARD = "guard"


class Traps:
    """Everything that an engine must not touch, made to tell."""

    def __init__(self, engine: GpuEngine) -> None:
        self._engine = engine
        self._arena = engine.scheduler.arena
        self._bytes = engine.runner.adapters._arena
        pages = self._arena.allocate(self._arena.pages, GUARD)
        self._guards = sorted(pages)[1::2]
        self._arena.release(sorted(pages)[0::2], GUARD)
        index = torch.tensor(self._guards, device="cuda")
        noise = torch.randint(0, 256, (len(self._guards), self._arena.page_bytes), dtype=torch.uint8, device="cuda")
        self._bytes[index] = noise
        self._index = index
        self._sums = self._sum()
        rows = engine.runner.adapters.rows
        assert rows is not None
        removed, entries = rows.remove, rows.table.entries

        def remove_and_poison(digest: str) -> None:
            row, _ = rows.find(digest)
            removed(digest)
            entries[row] = 1 << 44

        rows.remove = remove_and_poison  # type: ignore[method-assign]

    def set(self) -> None:
        """NaN into every page that is free now. In stream order: a step in flight reads what it had."""
        free = [page for page, kind in enumerate(self._arena._kind) if kind is PageKind.FREE]
        if free:
            self._bytes[torch.tensor(free, device="cuda")] = 0xFF

    def check(self) -> None:
        assert torch.equal(self._sum(), self._sums), "a guard page was written"

    def _sum(self) -> torch.Tensor:
        weights = torch.arange(1, self._arena.page_bytes + 1, device="cuda", dtype=torch.int64)
        return (self._bytes[self._index].long() * weights).sum(1)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_steps_among_traps(seed: int, capture: bool, tmp_path: Path) -> None:
    dice = random.Random(seed)
    directory = oracle.save_tiny("llama", tmp_path / "model", num_hidden_layers=2, head_dim=32, seed=seed)
    base = oracle.load(directory)
    paths = []
    for index, (rank, targets) in enumerate(
        [(4, ["q_proj", "v_proj"]), (20, "all-linear"), (33, ["down_proj", "up_proj"])]
    ):
        for copy in range(3):
            path = tmp_path / f"adapter{index}{copy}"
            paths.append(oracle.save_tiny_adapter(base, path, r=rank, target_modules=targets, seed=10 * index + copy))
    engine = GpuEngine(
        directory, dtype="bfloat16", arena_bytes=16 << 20, step_tokens_max=96, sequences_max=16, capture=capture
    )
    digests: list[str | None] = [None, *engine.add_adapters(paths, tmp_path / "store").values()]
    # Too few pages for all that asks: sequences are preempted, adapters evicted, cached prefixes dropped.
    traps = Traps(engine)
    arena = engine.scheduler.arena
    arena.allocate(arena.available() - 260, "elsewhere")
    prefixes = [[dice.randrange(1, oracle.TINY_VOCAB) for _ in range(60)] for _ in range(4)]

    def fresh() -> Sequence:
        prompt = [dice.randrange(1, oracle.TINY_VOCAB) for _ in range(dice.randrange(1, 90))]
        if dice.random() < 0.4:
            prompt = dice.choice(prefixes) + prompt
        sampling = Sampling(dice.choice([0.0, 1.0]), top_p=dice.choice([1.0, 0.9]), seed=dice.randrange(1 << 60))
        tier = dice.choice(["premium", "standard", "batch"])
        stops = frozenset({7}) if dice.random() < 0.5 else frozenset()
        return engine.request(prompt, dice.randrange(1, 60), dice.choice(digests), sampling, tier, stops)

    live: list[Sequence] = []

    def after_step() -> None:
        traps.set()
        if len(engine.steps) % 50 == 0:
            traps.check()
        if len(engine.steps) < STEPS:
            if sum(engine.scheduler.waiting().values()) < 12:
                live.append(fresh())
                assert engine.scheduler.submit(live[-1]) is None
            if live and dice.random() < 0.05:
                gone = dice.choice(live)
                engine.scheduler.abort(gone.gateway, gone.handle)

    traps.set()
    engine.run([fresh() for _ in range(20)], after_step, ("length", "stop", "aborted"))
    traps.check()
    assert len(engine.steps) >= STEPS
    print(
        f"\nseed {seed}, capture {capture}: {len(engine.steps)} steps, {engine.scheduler.preemptions} preemptions, "
        f"{len(live)} requests, {engine.scheduler.prefix.hits} cached tokens"
    )
    assert STEPS < 1000 or engine.scheduler.preemptions > 0
    assert STEPS < 1000 or engine.scheduler.prefix.hits > 0
