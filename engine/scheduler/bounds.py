"""The numbers behind two promises: nobody starves in a tier that has a floor, and its shares are served alike.

Arithmetic only; tests hold the scheduler to it, and the simulator prints it.
"""

from __future__ import annotations

import math

from engine.protocol.tiers import Tier
from engine.scheduler.turns import MODEL_WAIT_STEPS_MAX


def starvation_bound_steps(tier: Tier, requests: int, tokens: int, max_tokens: int, prefill_tokens_min: int) -> int:
    """Steps within which `requests` requests of a tier have all ended, whatever the other tiers do: each has at most
    `tokens` tokens, prompt and answer together, of which at most `max_tokens` are made.

    It holds where one of them fits into the tier's floor, of pages (its adapter's among them) and of places. Then at
    any time one of them is in the floor, or can join it, and of two steps one does its decode, or each has its floor's
    share of at least `prefill_tokens_min` tokens of prefill put aside for it. A run takes at most the steps of its
    prefill, those until the first of it is put aside, and two for each token made; nobody begins more than
    `preemptions_max` runs in vain. Where steps of several models take turns, it counts those of the tier's own model,
    while its weights are on the device.
    """
    if not tier.floor:
        raise ValueError(f"tier {tier.name!r} has no floor: nothing bounds how long it waits for others")
    run = math.ceil(tokens / (tier.floor * prefill_tokens_min)) + math.ceil(1 / tier.floor) + 2 * max_tokens
    return requests * (tier.preemptions_max + 1) * run


def fairness_bound(tier: Tier, batch_tokens_max: int) -> float:
    """By how much the weighted tokens of two shares of weight 1 can come to differ over any time in which requests of
    both wait, where those that run together have at most `batch_tokens_max` tokens: 2 · max(w_p · L, w_q · M) of VTC's
    theorem 4.4 (Sheng et al., OSDI 2024), which takes w_q ≥ w_p, and no prompt L is longer than M. For a tier that is
    never preempted, without a prefix cache."""
    return 2 * max(tier.prefill_weight, tier.decode_weight) * batch_tokens_max


def turn_bound_steps(models: int) -> int:
    """Steps between two of one model, where so many have work and their weights on the device: when it has waited for
    MODEL_WAIT_STEPS_MAX, those that wait longer go before it, and before each of them one that is urgent."""
    return MODEL_WAIT_STEPS_MAX + 2 * models
