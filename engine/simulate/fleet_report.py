"""The report of a simulated fleet: the same traffic under each routing policy, as data and as text.

The same simulation gives the same bytes. This module must never measure anything itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from engine.protocol.tiers import Tier
from engine.simulate.conversations import FleetText
from engine.simulate.fleet import ONE_ENGINE, FleetWorld, hit_rate
from engine.simulate.report import SHARE_TO_HOLD, Percentiles, number, percent, percentiles, table

SCHEMA = 1


class FleetTierReport(msgspec.Struct, frozen=True):
    """Requests of one tier. Times are milliseconds since the request arrived at a gateway."""

    tier: str
    requests: int
    refused: dict[str, int]  # by code, after every engine refused
    ttft_ms: Percentiles
    ttft_met: float | None  # part of the requests that met their target
    ttft_holds: bool | None
    output_tokens_per_s: float  # over the time in which requests arrive


class SimulatedEngineReport(msgspec.Struct, frozen=True):
    name: str
    requests: int  # requests that the engine ran
    output_tokens: int
    busy: float  # part of the time until the end in which the device computed
    prefix_hit_rate: float | None
    adapter_loads: int
    killed: bool


class RunReport(msgspec.Struct, frozen=True):
    """One routing policy."""

    routing: str
    requests: int
    resumed: int  # continuations on another engine after a kill
    resumed_gap_ms: Percentiles  # the longest pause between two tokens of each resumed text
    ended_at_s: float
    output_tokens: int
    output_tokens_per_s: float  # over the time in which requests arrive
    prefix_hit_rate: float | None
    hit_rate_to_one_engine: float | None  # prefix_hit_rate / the single engine's; None: it was not simulated
    adapter_loads: int
    imbalance: float | None  # the busiest engine's time over the mean
    ttft_ms: Percentiles
    tiers: list[FleetTierReport]
    engines: list[SimulatedEngineReport]


class FleetReport(msgspec.Struct, frozen=True):
    schema: int
    settings: dict[str, Any]
    holds: bool  # whether the first policy held all first-token targets
    runs: list[RunReport]


def fleet_report(worlds: Sequence[FleetWorld], settings: dict[str, Any]) -> FleetReport:
    one = next((hit_rate([*world.engines.values()]) for world in worlds if world.policy == ONE_ENGINE), None)
    runs = [_run(world, one) for world in worlds]
    return FleetReport(SCHEMA, settings, all(tier.ttft_holds is not False for tier in runs[0].tiers), runs)


def _run(world: FleetWorld, one: float | None) -> RunReport:
    engines = [*world.engines.values(), *world.dead]
    rate = hit_rate(engines)
    busy = {engine.name: 0.0 for engine in engines}  # one name for an engine and its successor after a kill
    for engine in engines:
        busy[engine.name] += engine.busy_s
    mean_s = sum(busy.values()) / len(busy)
    tiers = [_tier(world, tier) for tier in world.settings.tiers]
    return RunReport(
        routing=world.policy,
        requests=len(world.texts),
        resumed=len(world.resumed),
        resumed_gap_ms=percentiles([1000 * text.gap_s for text in dict.fromkeys(world.resumed)]),
        ended_at_s=world.clock.now,
        output_tokens=sum(text.made for text in world.texts),
        output_tokens_per_s=sum(tier.output_tokens_per_s for tier in tiers),
        prefix_hit_rate=rate,
        hit_rate_to_one_engine=rate / one if rate is not None and one else None,
        adapter_loads=sum(engine.adapter_loads for engine in engines),
        imbalance=max(busy.values()) / mean_s if mean_s else None,
        ttft_ms=percentiles(list(_first_ms(world.texts))),
        tiers=tiers,
        engines=[
            SimulatedEngineReport(
                engine.name,
                engine.requests,
                engine.tokens,
                engine.busy_s / world.clock.now if world.clock.now else 0.0,
                hit_rate([engine]),
                engine.adapter_loads,
                engine in world.dead,
            )
            for engine in engines
        ],
    )


def _tier(world: FleetWorld, tier: Tier) -> FleetTierReport:
    texts = [text for text in world.texts if text.tier == tier.name]
    first = [text for text in texts if text.first_at is not None]
    refused = Counter(text.refused for text in texts if text.refused)
    promised = len(first) + refused["queue_full"]
    met = sum(_met(tier, text) for text in first) / promised if promised else None
    return FleetTierReport(
        tier=tier.name,
        requests=len(texts),
        refused=dict(sorted(refused.items())),
        ttft_ms=percentiles(list(_first_ms(texts))),
        ttft_met=met,
        ttft_holds=None if met is None else met >= SHARE_TO_HOLD,
        output_tokens_per_s=world.made_in_time[tier.name] / world.settings.traffic.duration_s,
    )


def _first_ms(texts: Sequence[FleetText]) -> Iterator[float]:
    return (1000 * (text.first_at - text.at_s) for text in texts if text.first_at is not None)


def _met(tier: Tier, text: FleetText) -> bool:
    target_ms = tier.ttft_base_ms + tier.ttft_per_1k_prompt_tokens_ms * len(text.ids) / 1000
    return text.first_at is not None and 1000 * (text.first_at - text.at_s) <= target_ms


# ---- as text


def fleet_text(report: FleetReport) -> str:
    settings = report.settings
    names = [tier["name"] for tier in settings["tiers"]]
    columns = ["routing", "requests", "refused", "tok/s", "cached", "of one's", "adapter loads", "imbalance"]
    for name in names:
        columns += [f"{name} TTFT p50", "p99 ms"]
    if killed := bool(settings["kills"]):
        columns += ["resumed", "gap p50", "p99 ms"]
    lines = [
        f"{settings['engines']} engines, {settings['gateways']} gateways, requests arrive for "
        f"{settings['traffic']['duration_s']:,.0f} s",
        "",
        *table(columns, [_cells(run, killed) for run in report.runs]),
        "",
        *(
            f"{report.runs[0].routing}, {tier.tier}: {percent(tier.ttft_met)} of first tokens met the target"
            for tier in report.runs[0].tiers
        ),
    ]
    return "\n".join(lines)


def _cells(run: RunReport, killed: bool) -> list[str]:
    cells = [
        run.routing,
        f"{run.requests:,}",
        f"{sum(sum(tier.refused.values()) for tier in run.tiers):,}",
        f"{run.output_tokens_per_s:,.0f}",
        percent(run.prefix_hit_rate),
        percent(run.hit_rate_to_one_engine),
        f"{run.adapter_loads:,}",
        number(run.imbalance, 2),
    ]
    for tier in run.tiers:
        cells += [number(tier.ttft_ms.p50), number(tier.ttft_ms.p99)]
    if killed:
        cells += [f"{run.resumed:,}", number(run.resumed_gap_ms.p50), number(run.resumed_gap_ms.p99)]
    return cells
