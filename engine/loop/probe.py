"""Measures the shortest step on this machine before requests are served: no tier can keep a target below it.

One request of a few tokens, through a separate scheduler over the engine's runner, which is idle again afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import msgspec

from engine.memory.arena import Arena
from engine.protocol.frames import ModelInfo, Sampling
from engine.protocol.tiers import Tier
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.scheduler.turns import TARGET_MARGIN
from engine.step import Runner, Sequence, run_step

PROMPT_TOKENS = 4
# The minimum of STEPS steps; while no step is short enough, of more steps for up to PROBE_S_MAX: the machine may be
# busy.
STEPS = 8
PROBE_S_MAX = 5.0
# A shortest step of over IMPOSSIBLE_TIMES the target refuses the start: a busy machine does not explain it. A smaller
# excess is only a warning, because an engine that is restarted under load must start.
IMPOSSIBLE_TIMES = 20.0
# A raised target is RAISED_TIMES the smallest possible target, because a step of several requests is longer than the
# measured step of one request. It is rounded up to a multiple of RAISED_TO_MS.
RAISED_TIMES, RAISED_TO_MS = 1.25, 10
TIER = Tier(name="probe", service_tier="probe")


def shortest_step_s(
    runner: Runner,
    models: Mapping[str, ModelInfo],
    pages: int,
    page_bytes: int,
    enough_s: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of the shortest decode of the slowest model; measured again for up to PROBE_S_MAX while over `enough_s`.
    The runner must be idle, and is idle again afterwards."""
    until = clock() + PROBE_S_MAX
    shortest = dict.fromkeys(models, math.inf)
    while True:
        for name, info in models.items():
            if shortest[name] is math.inf or shortest[name] > enough_s:
                shortest[name] = min(shortest[name], _of_model(runner, info, Arena(pages, page_bytes), clock))
        step_s = max(shortest.values())
        if step_s <= enough_s or clock() >= until:
            return step_s


def _of_model(runner: Runner, info: ModelInfo, arena: Arena, clock: Callable[[], float]) -> float:
    limits = ModelLimits.of(info)
    scheduler = Scheduler(
        (TIER,),
        {info.name: limits},
        arena,
        runner.adapters,
        clock,
        step_tokens_max=PROMPT_TOKENS + 1,
        prefill_tokens_min=PROMPT_TOKENS,
        sequences_max=1,
        steps_ahead=runner.steps_ahead,
    )
    tokens = min(PROMPT_TOKENS, info.context_tokens - 1)
    refusal = scheduler.submit(
        Sequence(
            handle=0,
            gateway=0,
            request_id="probe",
            model=info.name,
            adapter=None,
            namespace="",
            tier=TIER.name,
            share="",
            prompt_ids=[0] * tokens,
            max_tokens=min(STEPS, info.context_tokens - tokens),
            sampling=Sampling(temperature=0.0),
            stop_ids=frozenset(),
            arrived_at=0.0,
        )
    )
    assert refusal is None, refusal.message
    seconds = []
    while (step := scheduler.schedule()) is not None:
        began = clock()
        result = run_step(runner, step)
        seconds.append(clock() - began)
        scheduler.complete(step, result, seconds[-1])
    return min(seconds)


def least_target_ms(step_s: float) -> int:
    """The smallest whole target that steps of `step_s` can meet, with the margin that the planner leaves to it."""
    return math.ceil(round(step_s * 1000 / TARGET_MARGIN, 6))


def with_raised_targets(tiers: tuple[Tier, ...], step_s: float) -> tuple[Tier, ...]:
    """The tiers, with targets below `step_s` raised to what such steps can keep."""
    step_ms = step_s * 1000
    if all(min(tier.inter_token_ms, tier.ttft_base_ms) >= step_ms for tier in tiers):
        return tiers
    least = float(math.ceil(RAISED_TIMES * least_target_ms(step_s) / RAISED_TO_MS) * RAISED_TO_MS)
    return tuple(
        msgspec.structs.replace(
            tier,
            inter_token_ms=tier.inter_token_ms if tier.inter_token_ms >= step_ms else least,
            ttft_base_ms=max(tier.ttft_base_ms, least),  # not below a step, which may take inter_token_ms
            queue_target_ms=None if tier.queue_target_ms is None else max(tier.queue_target_ms, least),
        )
        for tier in tiers
    )


def shortest_target_s(tiers: tuple[Tier, ...]) -> float:
    return min(min(tier.inter_token_ms, tier.ttft_base_ms) for tier in tiers) / 1000


def impossible_targets(tiers: tuple[Tier, ...], step_s: float) -> list[str]:
    """A sentence for each target below `step_s` / IMPOSSIBLE_TIMES."""
    return unreachable_targets(tiers, step_s / IMPOSSIBLE_TIMES, step_s)


def unreachable_targets(tiers: tuple[Tier, ...], step_s: float, shown_s: float | None = None) -> list[str]:
    """A sentence for each target below `step_s`. Not even a single request can meet it: the time between tokens is at
    least a step, and so is the time to the first token. `shown_s`: the step named in the sentence, if another."""
    step_ms, found = (step_s if shown_s is None else shown_s) * 1000, []
    for tier in tiers:
        for field, target_ms in (("inter_token_ms", tier.inter_token_ms), ("ttft_base_ms", tier.ttft_base_ms)):
            if target_ms < step_s * 1000:
                found.append(
                    f"tiers: {field} of {tier.name!r} is {target_ms:g}, and the shortest step takes {step_ms:.1f} ms "
                    f"here: set {field} to at least {least_target_ms(step_ms / 1000)}, or serve a smaller model or on "
                    "a faster device; if something else keeps this machine busy, start again when it is idle"
                )
    return found
