"""The engine's state at one moment, as numbers for metrics and status reports. It only reads the scheduler."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.memory.adapter_residency import AdapterCounts
from engine.scheduler.scheduler import Scheduler


@dataclass(slots=True, frozen=True)
class ModelCounts:
    """Counts since the start, and residency now."""

    hits: dict[str, int]  # requests by where their model's weights were on arrival: device, host, disk
    resident: dict[str, bool]  # of the served models
    evicted: dict[str, int]  # by model, removed models included
    failures: int  # failed loads


@dataclass(slots=True, frozen=True)
class Gauges:
    running: dict[str, int]  # by model: served, or removed with requests left
    waiting: dict[str, int]  # by tier
    waiting_of_model: dict[str, int]  # by model
    pages_total: int
    pages_free: int
    pages_cached: int
    pages_adapters: int
    # Counts since the engine's start, by model; removed models are included.
    cache_queries: dict[str, int]  # prompt tokens looked up in the prefix cache; cache_hits: of these, found
    cache_hits: dict[str, int]
    preemptions: dict[str, int]
    tokens_overrun: int  # in no answer: made after their request had ended, or by a probe
    overrun_s: float  # device seconds for them
    tokens_probed: int  # of tokens_overrun; probes_failed: probes that made none
    probes_failed: int
    tokens_swapped: int
    faults: int  # requests whose scheduling raised
    adapters_resident: int
    adapters: AdapterCounts
    models: ModelCounts


def read_gauges(scheduler: Scheduler, adapters_resident: int) -> Gauges:
    """`adapters_resident`: their number, from the runner."""
    residency = scheduler.weight_residency
    running = Counter(dict.fromkeys(scheduler.served.live, 0))
    running.update(entry.sequence.model for entries in scheduler.running_entries() for entry in entries)
    return Gauges(
        running=dict(running),
        waiting=scheduler.waiting(),
        waiting_of_model={model: sum(live) - running[model] for model, live in scheduler.served.live.items()},
        pages_total=scheduler.arena.pages,
        pages_free=scheduler.arena.free_pages(),
        pages_cached=scheduler.prefix.idle_pages(),
        pages_adapters=scheduler.arena.adapter_pages(),
        cache_queries=dict(scheduler.prefix.queries_of_model),
        cache_hits=dict(scheduler.prefix.hits_of_model),
        preemptions=dict(scheduler.preempted.by_model),
        tokens_overrun=scheduler.results.tokens_overrun,
        overrun_s=scheduler.results.overrun_s,
        tokens_probed=scheduler.probes.tokens,
        probes_failed=scheduler.probes.failures,
        tokens_swapped=scheduler.swap.tokens,
        faults=scheduler.faults.count,
        adapters_resident=adapters_resident,
        adapters=scheduler.residency.counts(),
        models=ModelCounts(
            hits=dict(residency.hits),
            resident={name: weights.on_device for name, weights in residency.models.items()},
            evicted=dict(residency.evictions),
            failures=residency.failures,
        ),
    )
