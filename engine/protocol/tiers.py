"""What a service tier promises, and the tiers that ship. Order in a list is rank: the first is served first.

Plain data. It must never know a tenant, a price, or what is running.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

# The part of an engine's places that crowding shares leave to shares that were served very little.
LIGHT_PART = 1 / 8

TierName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
# Floors that are meant to add up to 1 may exceed it by this much through rounding.
FLOORS_ROUNDING = 1e-9
Milliseconds = Annotated[float, Meta(gt=0, le=3_600_000)]


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tier. `service_tier` is what callers write for it."""

    name: TierName
    service_tier: TierName
    # Share of the arena that other tiers cannot preempt it from, and that those it could not preempt leave to it.
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    # Targets for the first token and between tokens. Prefill shrinks to keep the latter; the former is for whoever
    # measures the promise.
    ttft_base_ms: Milliseconds = 1000.0
    ttft_per_1k_prompt_tokens_ms: Milliseconds = 1000.0
    inter_token_ms: Milliseconds = 100.0
    # May be preempted by higher tiers above its floor; in exchange it may use their floors while they do not.
    preemptible: bool = True
    queue_max: Annotated[int, Meta(ge=1)] = 256  # waiting requests; over it new ones are refused
    queue_target_ms: Milliseconds | None = None  # a longer predicted wait is refused; None: queue_max alone
    # Fairness inside the tier: what a token of each kind counts, and after how long a share that gets nothing is next.
    prefill_weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    decode_weight: Annotated[float, Meta(gt=0, le=1000)] = 2.0
    ageing_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    # Shares that were served over twice the tier's mean lately have together at most this part of the engine's sequence
    # places; their prefill joins a step while less than this part of its tokens is prefill; and their decodes wait for
    # others' prefill. 1: nothing is kept from them. It is the first tokens of other shares, and costs throughput.
    crowd_part: Annotated[float, Meta(gt=0, le=1)] = 0.25
    # A request preempted so often runs to its end inside its tier's floor, if it fits there.
    preemptions_max: Annotated[int, Meta(ge=1, le=1000)] = 3

    def patience_s(self, steps_ahead: int) -> float:
        """How long a step may be for the sake of a request that came just after it began: it waits for all steps in
        flight, and half of its target is left for its own prefill."""
        return self.ttft_base_ms / 1000 / 2 / (1 + steps_ahead)

    def crowd_tokens(self, step_tokens_max: int, prefill_tokens_min: int) -> int:
        """Prefill tokens of a step up to which shares that crowd the tier may add to it. At least what the floor
        promises the tier, since the crowding share may be its only one."""
        return max(int(self.crowd_part * step_tokens_max), math.ceil(self.floor * prefill_tokens_min), 1)

    def crowd_places(self, sequences_max: int) -> int:
        return max(int(self.crowd_part * sequences_max), 1)

    def crowd_places_beside_light(self, sequences_max: int) -> int:
        """Places for crowding shares together, where all others were served very little."""
        places = sequences_max - max(1, int(LIGHT_PART * sequences_max))
        return max(places, self.crowd_places(sequences_max))


# The targets fit a laptop CPU.
SHIPPED_TIERS: tuple[Tier, ...] = (
    Tier(name="premium", service_tier="priority", floor=0.30, preemptible=False, queue_target_ms=5000.0),
    Tier(name="standard", service_tier="default", floor=0.10, queue_target_ms=20000.0),
    Tier(name="batch", service_tier="flex", floor=0.05, crowd_part=1.0),
)


def check_tiers(tiers: Sequence[Tier]) -> None:
    """Raises ValueError with the reason when the tiers cannot be kept together."""
    if not tiers:
        raise ValueError("there must be at least one tier")
    for what, names in (("name", [t.name for t in tiers]), ("service_tier", [t.service_tier for t in tiers])):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tiers have the {what} {twice[0]!r}")
    for tier in tiers:
        if not 0 <= tier.floor <= 1:
            raise ValueError(f"the floor of tier {tier.name!r} is {tier.floor:g}; it is a share between 0 and 1")
        if tier.queue_max < 1:
            raise ValueError(f"queue_max of tier {tier.name!r} is {tier.queue_max}; it must be at least 1")
    floors = sum(tier.floor for tier in tiers)
    if floors > 1 + FLOORS_ROUNDING:
        raise ValueError(f"the floors of all tiers add up to {floors:g}; the limit is 1, the whole arena")
