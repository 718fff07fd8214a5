"""Service tiers: their targets, floors and limits, and the tiers of the default configuration. A tier's rank is its
position in the list; rank 0 is served first. Plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

# The part of the sequence slots that crowding shares leave to shares that were served very little.
LIGHT_PART = 1 / 8

TierName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
# Rounding error allowed in the sum of all floors.
FLOORS_ROUNDING = 1e-9
Milliseconds = Annotated[float, Meta(gt=0, le=3_600_000)]


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tier. `service_tier` is the API value that selects it."""

    name: TierName
    service_tier: TierName
    # Guaranteed part of the arena: other tiers cannot preempt below it, and tiers that this one could not preempt leave
    # it free.
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    # Targets for the first token and between tokens. Prefill per step shrinks to keep inter_token_ms; the targets for
    # the first token are reported as attainment.
    ttft_base_ms: Milliseconds = 1000.0
    ttft_per_1k_prompt_tokens_ms: Milliseconds = 1000.0
    inter_token_ms: Milliseconds = 100.0
    # Higher tiers may preempt it above its floor; in exchange it may use their unused floors.
    preemptible: bool = True
    queue_max: Annotated[int, Meta(ge=1)] = 256  # limit of waiting requests; further requests are refused
    queue_target_ms: Milliseconds | None = None  # a longer predicted wait is refused; None: queue_max alone
    # Fairness inside the tier: the weight of a prefill and a decode token, and the seconds after which a share without
    # service is next.
    prefill_weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    decode_weight: Annotated[float, Meta(gt=0, le=1000)] = 2.0
    ageing_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    # Crowding shares (served over twice the tier's mean lately) together have at most this part of the sequence slots;
    # their prefill joins a step while less than this part of its tokens is prefill; their decodes wait for others'
    # prefill. 1: no limit. A smaller value gives other shares earlier first tokens, and costs throughput.
    crowd_part: Annotated[float, Meta(gt=0, le=1)] = 0.25
    # A request that was preempted this often runs to its end inside its tier's floor, if it fits there.
    preemptions_max: Annotated[int, Meta(ge=1, le=1000)] = 3

    def patience_s(self, steps_ahead: int) -> float:
        """Longest step, in seconds, that lets a request which arrives just after the step began keep ttft_base_ms: it
        waits for all steps in flight, and half of its target remains for its own prefill."""
        return self.ttft_base_ms / 1000 / 2 / (1 + steps_ahead)

    def crowd_tokens(self, step_tokens_max: int, prefill_tokens_min: int) -> int:
        """Prefill tokens in a step up to which crowding shares may add prefill. At least the tier's floor, since the
        crowding share may be its only share."""
        return max(int(self.crowd_part * step_tokens_max), math.ceil(self.floor * prefill_tokens_min), 1)

    def crowd_places(self, sequences_max: int) -> int:
        return max(int(self.crowd_part * sequences_max), 1)

    def crowd_places_beside_light(self, sequences_max: int) -> int:
        """Sequence slots for all crowding shares together, if all other shares were served very little."""
        places = sequences_max - max(1, int(LIGHT_PART * sequences_max))
        return max(places, self.crowd_places(sequences_max))


# The targets fit a laptop CPU.
SHIPPED_TIERS: tuple[Tier, ...] = (
    Tier(name="premium", service_tier="priority", floor=0.30, preemptible=False, queue_target_ms=5000.0),
    Tier(name="standard", service_tier="default", floor=0.10, queue_target_ms=20000.0),
    Tier(name="batch", service_tier="flex", floor=0.05, crowd_part=1.0),
)


def check_tiers(tiers: Sequence[Tier]) -> None:
    """Raises ValueError with the reason if the tiers contradict each other."""
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
