"""How the console is shown what is configured of tiers and what came of it.

Plain answers; nothing here asks an engine or reads a database.
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
    """Of requests whose first token came since `start_time` (the whole minute in which the window begins): from their
    arrival at the gateway to the token. `share_within_target` is against each request's own target, by its prompt's
    length; null when there was none. Quantiles are at most 9.1 % too high, and never too low. `refused_503`: requests
    that got a 503 and no token; they are not in `requests`. All of it is known here after `late_s_max`."""

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
    """A prompt of n tokens has its first token within ttft_base_ms + ttft_per_1k_prompt_tokens_ms × n / 1000."""

    ttft_base_ms: float
    ttft_per_1k_prompt_tokens_ms: float
    inter_token_ms: float


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """One tier as it is configured, and what came of it. `rank` 0 is served first; `floor` is a share of the arena."""

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
    """From high to low. `recorded_since`: the first minute that is known, about a day back at most; null: none."""

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
