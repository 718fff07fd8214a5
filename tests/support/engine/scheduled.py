"""Runs sequences through the real scheduler on a runner in this process, with steps ahead where the runner has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from engine.memory.arena import Arena
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Runner, Sequence, Step, StepOutcome, run_step

# Steps after which the later sequences arrive.
LATER_AFTER_STEPS = 3
LOAD_POLL_S = 0.0002


def run_sequences(
    runner: Runner,
    sequences: list[Sequence],
    arena: Arena,
    take: Callable[[StepOutcome], None],
    later: list[Sequence] | None = None,
    **limits: Any,
) -> tuple[Scheduler, list[Step]]:
    """Run all to their end, which must be "length"; `later` arrive after some steps. `take` receives each outcome."""
    served = runner.models  # type: ignore[attr-defined]
    models = {
        name: ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)
        for name, info in served.items()
    }
    scheduler = Scheduler(
        SHIPPED_TIERS, models, arena, runner.adapters, time.monotonic, steps_ahead=runner.steps_ahead, **limits
    )
    waiting, steps, ended = list(later or []), list[Step](), 0
    for own in sequences:
        assert scheduler.submit(own) is None
    in_flight: list[tuple[Step, Any]] = []
    while scheduler.has_work() or waiting or in_flight:
        if waiting and len(steps) >= LATER_AFTER_STEPS:
            for own in waiting:
                assert scheduler.submit(own) is None
            waiting = []
        while len(in_flight) <= runner.steps_ahead and (step := scheduler.schedule()) is not None:
            steps.append(step)
            if not runner.steps_ahead:
                in_flight.append((step, run_step(runner, step)))
                break
            in_flight.append((step, runner.begin_step(step)))
            if len(in_flight) == 1:
                in_flight[0][1].draw(None)
            else:
                break  # its ids are drawn once those of the step before are known
        if not in_flight:
            assert scheduler.has_blocked_requests, "nothing runs, and nothing is loaded"
            time.sleep(LOAD_POLL_S)
            continue
        step, pending = in_flight.pop(0)
        result = pending if not runner.steps_ahead else pending.result()
        outcome = scheduler.complete(step, result, 0.01)
        if in_flight and runner.steps_ahead:
            in_flight[0][1].draw(None)
        take(outcome)
        for ending in outcome.ended:
            assert ending.reason == "length", ending.message
            ended += 1
    scheduler.check_integrity()
    assert ended == len(sequences) + len(later or [])
    return scheduler, steps
