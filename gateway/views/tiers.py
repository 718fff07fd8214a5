"""How tiers are shown: their settings and their attainment.

Pure functions: nothing here asks an engine or reads a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gateway.config.settings import TierSection
from gateway.generation.first_tokens import FirstTokenSummary, delay_s

Window = Literal["5m", "1h", "24h"]
WINDOWS_S: dict[Window, int] = {"5m": 300, "1h": 3600, "24h": 86_400}
NOTHING = FirstTokenSummary(requests=0, within_target=0, refused=0, p50_ms=None, p95_ms=None, p99_ms=None)


class Attainment(msgspec.Struct, frozen=True, kw_only=True):
    """Times from arrival at the gateway to the first token, of requests whose first token came since `start_time` (the
    whole minute in which the window begins). `share_within_target`: the part that met each request's own target, which
    depends on its prompt's length; null without requests. Quantiles are at most 9.1 % too high, and never too low.
    `refused_503`: requests that got a 503 and no token; `requests` does not count them. Values are complete after
    `late_s_max`."""

    window: Window
    start_time: int
    requests: int
    within_target: int
    share_within_target: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    ttft_p99_ms: float | None
    refused_503: int
    late_s_max: float


class TierTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The target for the first token of a prompt of n tokens is ttft_base_ms + ttft_per_1k_prompt_tokens_ms × n /
    1000."""

    ttft_base_ms: float
    ttft_per_1k_prompt_tokens_ms: float
    inter_token_ms: float


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """The settings and the attainment of a tier. `rank` 0 is the highest; `floor` is the guaranteed part of the
    arena."""

    name: str
    service_tier: str
    rank: int
    floor: float
    preemptible: bool
    preemptions_max: int
    queue_max: int
    queue_target_ms: float | None
    targets: TierTargets
    attainment: list[Attainment]


class TiersView(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers from high to low. `recorded_since`: the first recorded minute, at most about a day ago; null: none."""

    data: list[TierView]
    recorded_since: int | None
    object: Literal["list"] = "list"


def tier_view(
    tier: TierSection, rank: int, windows: Mapping[int, tuple[int, Mapping[str, FirstTokenSummary]]]
) -> TierView:
    """`windows`: see first_tokens.summaries."""
    return TierView(
        name=tier.name,
        service_tier=tier.service_tier,
        rank=rank,
        floor=tier.floor,
        preemptible=tier.preemptible,
        preemptions_max=tier.preemptions_max,
        queue_max=tier.queue_max,
        queue_target_ms=tier.queue_target_ms,
        targets=TierTargets(
            ttft_base_ms=tier.ttft_base_ms,
            ttft_per_1k_prompt_tokens_ms=tier.ttft_per_1k_prompt_tokens_ms,
            inter_token_ms=tier.inter_token_ms,
        ),
        attainment=[
            _attainment(window, windows[window_s][0], windows[window_s][1].get(tier.name, NOTHING))
            for window, window_s in WINDOWS_S.items()
        ],
    )


def _attainment(window: Window, start_time: int, found: FirstTokenSummary) -> Attainment:
    return Attainment(
        window=window,
        start_time=start_time,
        requests=found.requests,
        within_target=found.within_target,
        share_within_target=round(found.within_target / found.requests, 6) if found.requests else None,
        ttft_p50_ms=found.p50_ms,
        ttft_p95_ms=found.p95_ms,
        ttft_p99_ms=found.p99_ms,
        refused_503=found.refused,
        late_s_max=delay_s(WINDOWS_S[window]),
    )
