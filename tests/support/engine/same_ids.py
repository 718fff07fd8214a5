"""Requests whose greedy ids are compared: alone, in any company, and after preemption, through the real scheduler."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.cpu.runner import TorchRunner
from engine.memory.arena import Arena
from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Sequence, Step, run_step

GREEDY = Sampling(temperature=0.0)


@dataclass
class Case:
    """A request. `expected`: its ids; if they are not known in advance, the ids of its first run."""

    model: str
    prompt: list[int]
    tier: str = "standard"
    adapter: str | None = None  # digest
    new: int = 24
    expected: list[int] = field(default_factory=list)

    def sequence(self, handle: int) -> Sequence:
        return Sequence(
            handle, 0, f"r{handle}", self.model, self.adapter, "tenant", self.tier, self.model, self.prompt, self.new,
            GREEDY, frozenset(), 0.0,
        )  # fmt: skip


@dataclass
class Run:
    scheduler: Scheduler
    steps: list[Step]
    swapped_tokens: int


def run_cases(
    runner: TorchRunner,
    cases: list[Case],
    *,
    pages: int | None = None,
    sequences_max: int = 16,
    step_tokens_max: int = 64,
) -> Run:
    """Run all requests through a separate scheduler; ids are compared with the expected ones. `pages` limits the
    arena."""
    for digest in runner.adapters.resident():
        runner.adapters.evict_adapter(digest)
    arena = Arena(pages or runner.pages, runner.page_bytes)
    limits = {name: ModelLimits.of(info) for name, info in runner.models.items()}
    scheduler = Scheduler(
        SHIPPED_TIERS, limits, arena, runner.adapters, lambda: 0.0, sequences_max=sequences_max,
        step_tokens_max=step_tokens_max, prefill_tokens_min=16, host_pool=runner.host_pool,
    )  # fmt: skip
    sequences = [case.sequence(handle) for handle, case in enumerate(cases)]
    for sequence in sequences:
        assert scheduler.submit(sequence) is None
    steps: list[Step] = []
    while scheduler.has_work():
        step = scheduler.schedule()
        if step is None:  # a load, or a copy of pages, is in flight
            time.sleep(0.0002)
            continue
        steps.append(step)
        for ended in scheduler.complete(step, run_step(runner, step), 0.01).ended:
            assert ended.reason == "length", ended.message
        arena.check_integrity()
    scheduler.check_integrity()
    runner.adapters.check_integrity()
    for index, (sequence, case) in enumerate(zip(sequences, cases, strict=True)):
        case.expected = case.expected or list(sequence.output_ids)
        assert sequence.output_ids == case.expected, (index, case.model, case.adapter)
    return Run(scheduler, steps, sum(sequence.swapped_tokens for sequence in sequences))
