"""The report of a simulation: which targets held, by tier and by tenant, as data and as text.

The same simulation gives the same bytes. This module must never measure anything itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from engine.protocol.tiers import Tier
from engine.simulate.measure import FinishedRequest, Measure
from engine.simulate.traffic import SimulatedRequest
from engine.simulate.world import World

SCHEMA = 1
# A tier's target holds if this part of its requests met the first-token target, or of its gaps the inter-token target.
SHARE_TO_HOLD = 0.99


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles with linear interpolation, as numpy's default; null without values."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class GroupReport(msgspec.Struct, frozen=True):
    """Requests of one tier or one tenant. Times are milliseconds since the request arrived."""

    name: str
    requests: int
    refused: dict[str, int]  # by code
    aborted: int
    failed: int
    ttft_ms: Percentiles
    ttft_met: float | None  # part of the requests that met their target; a request refused for a full queue did not
    queue_ms: Percentiles  # until the first chunk began
    output_tokens: int
    prompt_tokens: int  # of requests that ran
    cached_tokens: int
    prefix_hit_rate: float | None
    preemptions: int
    recomputed_tokens: dict[str, int]  # by the tier that caused it
    swapped_tokens: int  # copied back from host memory instead
    device_s: float  # its part of all steps' time


class TierReport(msgspec.Struct, frozen=True):
    tier: str
    ttft_base_ms: float
    ttft_per_1k_prompt_tokens_ms: float
    ttft_holds: bool | None  # None: nothing was measured
    inter_token_target_ms: float
    inter_token_ms: Percentiles
    inter_token_holds: bool | None
    output_tokens_per_s: float  # over the time in which requests arrived
    served_gap: float  # the widest between two waiting tenants, in weighted tokens per unit of weight
    served_gap_bound: float  # the theorem's bound for the largest batch of this simulation
    group: GroupReport


class WeightsReport(msgspec.Struct, frozen=True):
    """The report on weights, for several models that do not all fit on the device. Times as in GroupReport; refused
    requests are not counted."""

    hit_rate: float | None  # part of the requests that found their model on the device
    loads: int
    evictions: int
    ttft_ms: Percentiles
    ttft_hit_ms: Percentiles
    ttft_miss_ms: Percentiles


class SimulationReport(msgspec.Struct, frozen=True):
    schema: int
    settings: dict[str, Any]
    holds: bool  # whether all targets of all tiers held
    duration_s: float  # the time in which requests arrived
    ended_at_s: float
    steps: int
    utilisation: float  # part of the time until the end in which the device computed
    step_ms_mean: float | None
    output_tokens: int
    output_tokens_per_s: float
    overrun_tokens: int
    preemptions: int
    prefix_hit_rate: float | None
    weights: WeightsReport | None
    tiers: list[TierReport]
    tenants: list[GroupReport]  # by tier, then by their requests, most first


def make_report(world: World, settings: dict[str, Any]) -> SimulationReport:
    measure, scheduler = world.measure, world.scheduler
    tiers = [_tier(measure, rank) for rank in range(len(measure.tiers))]
    made = sum(report.group.output_tokens for report in tiers)
    prefix = scheduler.prefix
    return SimulationReport(
        schema=SCHEMA,
        settings=settings,
        holds=all(tier.ttft_holds is not False and tier.inter_token_holds is not False for tier in tiers),
        duration_s=measure.duration_s,
        ended_at_s=measure.ended_at,
        steps=measure.steps,
        utilisation=measure.busy_s / measure.ended_at if measure.ended_at else 0.0,
        step_ms_mean=1000 * measure.busy_s / measure.steps if measure.steps else None,
        output_tokens=made,
        output_tokens_per_s=sum(tier.output_tokens_per_s for tier in tiers),
        overrun_tokens=scheduler.results.tokens_overrun,
        preemptions=scheduler.preemptions,
        prefix_hit_rate=prefix.hits / prefix.queries if prefix.queries else None,
        weights=_weights(world) if world.weights else None,
        tiers=tiers,
        tenants=_tenants(measure),
    )


def _weights(world: World) -> WeightsReport:
    endings, weights = world.measure.endings, world.scheduler.weight_residency
    first = [(ending.found, 1000 * ending.ttft_s) for ending in endings if ending.ttft_s is not None]
    return WeightsReport(
        hit_rate=sum(ending.found for ending in endings) / len(endings) if endings else None,
        loads=sum(model.loads for model in weights.models.values()),
        evictions=weights.evictions.total(),
        ttft_ms=percentiles([ttft_ms for _, ttft_ms in first]),
        ttft_hit_ms=percentiles([ttft_ms for found, ttft_ms in first if found]),
        ttft_miss_ms=percentiles([ttft_ms for found, ttft_ms in first if not found]),
    )


def _tier(measure: Measure, rank: int) -> TierReport:
    tier, served = measure.tiers[rank], measure.served[rank]
    endings = [ending for ending in measure.endings if ending.request.tier == tier.name]
    refusals = [(request, code) for request, code in measure.refusals if request.tier == tier.name]
    gaps_ms = percentiles(np.asarray(measure.gaps_s[rank]) * 1000)
    group = _group(tier.name, tier, endings, refusals)
    return TierReport(
        tier=tier.name,
        ttft_base_ms=tier.ttft_base_ms,
        ttft_per_1k_prompt_tokens_ms=tier.ttft_per_1k_prompt_tokens_ms,
        ttft_holds=None if group.ttft_met is None else group.ttft_met >= SHARE_TO_HOLD,
        inter_token_target_ms=tier.inter_token_ms,
        inter_token_ms=gaps_ms,
        inter_token_holds=None if gaps_ms.p99 is None else gaps_ms.p99 <= tier.inter_token_ms,
        output_tokens_per_s=measure.made_in_time[rank] / measure.duration_s,
        served_gap=served.widest,
        served_gap_bound=measure.served_gap_bound(rank),
        group=group,
    )


def _tenants(measure: Measure) -> list[GroupReport]:
    endings: dict[tuple[str, str], list[FinishedRequest]] = {}
    refusals: dict[tuple[str, str], list[tuple[SimulatedRequest, str]]] = {}
    for ending in measure.endings:
        endings.setdefault((ending.request.tier, ending.request.tenant), []).append(ending)
    for request, code in measure.refusals:
        refusals.setdefault((request.tier, request.tenant), []).append((request, code))
    groups: list[GroupReport] = []
    for tier in measure.tiers:
        names = sorted({name for of, name in (*endings, *refusals) if of == tier.name})
        own = [_group(n, tier, endings.get((tier.name, n), []), refusals.get((tier.name, n), [])) for n in names]
        groups += sorted(own, key=lambda group: -group.requests)
    return groups


def _group(
    name: str, tier: Tier, endings: Sequence[FinishedRequest], refusals: Iterable[tuple[SimulatedRequest, str]]
) -> GroupReport:
    refused = Counter(code for _, code in refusals)
    first = [ending for ending in endings if ending.ttft_s is not None]
    met = sum(_met(tier, ending) for ending in first)
    promised = len(first) + refused["queue_full"]
    prompt, cached = (sum(getattr(e, field) for e in endings) for field in ("prompt_tokens", "cached_tokens"))
    return GroupReport(
        name=name,
        requests=len(endings) + refused.total(),
        refused=dict(sorted(refused.items())),
        aborted=sum(ending.reason == "aborted" for ending in endings),
        failed=sum(ending.reason == "error" for ending in endings),
        ttft_ms=percentiles([1000 * ending.ttft_s for ending in first if ending.ttft_s is not None]),
        ttft_met=met / promised if promised else None,
        queue_ms=percentiles([1000 * ending.queue_s for ending in endings]),
        output_tokens=sum(ending.made for ending in endings),
        prompt_tokens=prompt,
        cached_tokens=cached,
        prefix_hit_rate=cached / prompt if prompt else None,
        preemptions=sum(ending.preemptions for ending in endings),
        recomputed_tokens=_by_cause(endings),
        swapped_tokens=sum(ending.swapped_tokens for ending in endings),
        device_s=sum(ending.device_s for ending in endings),
    )


def _by_cause(endings: Iterable[FinishedRequest]) -> dict[str, int]:
    caused: Counter[str] = Counter()
    for ending in endings:
        caused.update(ending.recomputed_tokens)
    return dict(sorted(caused.items()))


def _met(tier: Tier, ending: FinishedRequest) -> bool:
    target_ms = tier.ttft_base_ms + tier.ttft_per_1k_prompt_tokens_ms * ending.request.prompt_tokens / 1000
    return ending.ttft_s is not None and 1000 * ending.ttft_s <= target_ms


def percentiles(values: Sequence[float] | np.ndarray[Any, Any]) -> Percentiles:
    if not len(values):
        return Percentiles(0, None, None, None, None)
    found = np.percentile(np.asarray(values, dtype=np.float64), (50, 95, 99, 100))
    return Percentiles(len(values), *(round(float(value), 3) for value in found))


# ---- as text


def text(report: SimulationReport, *, by_tenant: bool) -> str:
    lines = [
        f"{report.duration_s:.0f} s of arrivals, all ended after {report.ended_at_s:.0f} s: {report.steps:,} steps of "
        f"{number(report.step_ms_mean, 2)} ms on average, the device busy {percent(report.utilisation)} of the time",
        f"{report.output_tokens:,} tokens, {report.output_tokens_per_s:,.0f} a second; prefix cache hit rate "
        f"{percent(report.prefix_hit_rate)}; {report.preemptions:,} preemptions; {report.overrun_tokens:,} overrun",
        *(_weights_lines(report.weights) if report.weights else ()),
        "",
        *table(TIER_COLUMNS, [_tier_cells(tier) for tier in report.tiers]),
        "",
        *(_verdict(tier) for tier in report.tiers),
    ]
    if by_tenant:
        lines += ["", *table(TENANT_COLUMNS, [_tenant_cells(group) for group in report.tenants])]
    return "\n".join(lines)


TIER_COLUMNS = (
    "tier", "requests", "refused", "aborted", "TTFT p50", "p95", "p99 ms", "met", "gap p50", "p99 ms",
    "queue p50", "p99 ms", "tok/s", "cached", "preempted", "recomputed",
    "swapped", "device s",
)  # fmt: skip
TENANT_COLUMNS = (
    "tenant", "requests", "refused", "TTFT p50", "p95", "p99 ms", "met", "queue p95 ms", "tokens", "cached",
    "preempted",
)  # fmt: skip


def _tier_cells(report: TierReport) -> list[str]:
    group, gaps = report.group, report.inter_token_ms
    return [
        report.tier,
        f"{group.requests:,}",
        f"{sum(group.refused.values()):,}",
        f"{group.aborted:,}",
        *(number(value) for value in (group.ttft_ms.p50, group.ttft_ms.p95, group.ttft_ms.p99)),
        percent(group.ttft_met),
        *(number(value) for value in (gaps.p50, gaps.p99, group.queue_ms.p50, group.queue_ms.p99)),
        f"{report.output_tokens_per_s:,.0f}",
        percent(group.prefix_hit_rate),
        f"{group.preemptions:,}",
        f"{sum(group.recomputed_tokens.values()):,}",
        f"{group.swapped_tokens:,}",
        f"{group.device_s:,.0f}",
    ]


def _tenant_cells(group: GroupReport) -> list[str]:
    return [
        group.name,
        f"{group.requests:,}",
        f"{sum(group.refused.values()):,}",
        *(number(value) for value in (group.ttft_ms.p50, group.ttft_ms.p95, group.ttft_ms.p99)),
        percent(group.ttft_met),
        number(group.queue_ms.p95),
        f"{group.output_tokens:,}",
        percent(group.prefix_hit_rate),
        f"{group.preemptions:,}",
    ]


def _verdict(report: TierReport) -> str:
    group = report.group
    refused = ", ".join(f"{count:,} {code}" for code, count in group.refused.items())
    target = f"{report.ttft_base_ms:g} ms + {report.ttft_per_1k_prompt_tokens_ms:g} ms per 1,000 prompt tokens"
    return (
        f"{report.tier}: first token within {target} {_held(report.ttft_holds)} ({percent(group.ttft_met)} met it); "
        f"between tokens {report.inter_token_target_ms:g} ms {_held(report.inter_token_holds)} "
        f"(p99 {number(report.inter_token_ms.p99)} ms); tenants that waited were served at most "
        f"{report.served_gap:,.0f} apart, the bound is {report.served_gap_bound:,.0f}"
        + (f"; refused: {refused}" if refused else "")
    )


def _weights_lines(weights: WeightsReport) -> list[str]:
    def of(name: str, times: Percentiles) -> str:
        return f"{name} p50 {number(times.p50)}, p95 {number(times.p95)}, p99 {number(times.p99)} ms"

    return [
        f"{percent(weights.hit_rate)} of requests found their model on the device; {weights.loads:,} loads; "
        f"{of('first token', weights.ttft_ms)}; {of('of these', weights.ttft_hit_ms)}; "
        f"{of('of the others', weights.ttft_miss_ms)}"
    ]


def _held(holds: bool | None) -> str:
    return "was not measured" if holds is None else "HOLDS" if holds else "FAILS"


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in (columns, *rows)) for i in range(len(columns))]
    return ["  ".join(_aligned(line, widths)).rstrip() for line in (columns, *rows)]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names aligned to the left, figures to the right."""
    name, *figures = zip(line, widths, strict=True)
    return [name[0].ljust(name[1]), *(cell.rjust(width) for cell, width in figures)]
