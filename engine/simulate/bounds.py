"""The bounds on starvation, fairness and turns. Tests hold the scheduler to them, and the simulator prints them."""

from __future__ import annotations

import math

from engine.protocol.tiers import Tier
from engine.scheduler.turns import MODEL_WAIT_STEPS_MAX


def starvation_bound_steps(tier: Tier, requests: int, tokens: int, max_tokens: int, prefill_tokens_min: int) -> int:
    """Steps of their model within which `requests` requests of a tier have all ended, whatever other tiers do; each has
    at most `tokens` tokens (prompt and answer), of which at most `max_tokens` are made:

        requests · (preemptions_max + 1) · run, with
        run = ⌈tokens / (floor · prefill_tokens_min)⌉ + ⌈1 / floor⌉ + 2 · max_tokens

    Condition: one such request fits into the tier's floor of pages (its adapter's included) and of slots. Then at any
    time one of them is in the floor or can join it; and of two steps one computes its decode, or adds its floor's part
    of at least `prefill_tokens_min` tokens to the prefill owed to it. A run takes at most the steps of its prefill, the
    steps until its first prefill is owed, and two per token made; each request begins at most `preemptions_max` runs
    without ending. The count includes only steps of the tier's own model while its weights are resident. Raises
    ValueError if the tier has no floor.
    """
    if not tier.floor:
        raise ValueError(f"tier {tier.name!r} has no floor: nothing bounds how long it waits for others")
    run = math.ceil(tokens / (tier.floor * prefill_tokens_min)) + math.ceil(1 / tier.floor) + 2 * max_tokens
    return requests * (tier.preemptions_max + 1) * run


def fairness_bound(tier: Tier, batch_tokens_max: int) -> float:
    """The most by which the weighted tokens of two shares of weight 1 differ over any time in which both have waiting
    requests, if the requests that run together have at most `batch_tokens_max` (M) tokens:

        2 · max(prefill_weight · L, decode_weight · M)

    This is theorem 4.4 of Virtual Token Counter (Sheng et al., OSDI 2024), for decode_weight ≥ prefill_weight; no
    prompt L is longer than M. It holds for a tier that is never preempted, without a prefix cache.
    """
    return 2 * max(tier.prefill_weight, tier.decode_weight) * batch_tokens_max


def turn_bound_steps(models: int) -> int:
    """The most steps between two steps of one model, where `models` models have work and resident weights:

        MODEL_WAIT_STEPS_MAX + 2 · models

    A model that has waited for MODEL_WAIT_STEPS_MAX steps is behind the models that have waited longer, each of which
    may follow one urgent model.
    """
    return MODEL_WAIT_STEPS_MAX + 2 * models
