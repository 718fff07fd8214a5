"""The engine's state at one moment, as numbers that metrics and a gateway's status show.

It reads the scheduler, and must never change it.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.residency import AdapterCounts
from engine.scheduler import Scheduler


@dataclass(slots=True, frozen=True)
class ModelCounts:
    """Of the models that are served. Since the start, or since each was added."""

    hits: dict[str, int]  # requests that came, by where their model's weights were: device, host, disk
    resident: dict[str, bool]
    evicted: dict[str, int]
    failures: int  # loads that failed, of all there ever were


@dataclass(slots=True, frozen=True)
class Gauges:
    """Of one moment."""

    running: int
    waiting: dict[str, int]  # by tier
    pages_total: int
    pages_free: int
    pages_cached: int
    pages_adapters: int
    cache_queries: int  # prompt tokens looked up in the prefix cache, and of them found
    cache_hits: int
    preemptions: int
    tokens_overrun: int  # made after the ending of their request, and the device's seconds for them
    overrun_s: float
    tokens_swapped: int
    faults: int  # requests whose scheduling raised
    adapters_resident: list[str]
    adapters: AdapterCounts
    models: ModelCounts


def read_gauges(scheduler: Scheduler, adapters_resident: list[str]) -> Gauges:
    """`adapters_resident`: digests, as the runner knows them."""
    hosting = scheduler.hosting
    return Gauges(
        running=scheduler.running,
        waiting=scheduler.waiting(),
        pages_total=scheduler.arena.pages,
        pages_free=scheduler.arena.free(),
        pages_cached=scheduler.prefix.idle_pages(),
        pages_adapters=scheduler.arena.adapter_pages(),
        cache_queries=scheduler.prefix.queries,
        cache_hits=scheduler.prefix.hits,
        preemptions=scheduler.preemptions,
        tokens_overrun=scheduler.tokens_overrun,
        overrun_s=scheduler.overrun_s,
        tokens_swapped=scheduler.swap.tokens,
        faults=scheduler.faults.count,
        adapters_resident=adapters_resident,
        adapters=scheduler.residency.counts(),
        models=ModelCounts(
            hits=dict(hosting.hits),
            resident={name: hosted.on_device for name, hosted in hosting.models.items()},
            evicted={name: hosted.evictions for name, hosted in hosting.models.items()},
            failures=hosting.failures,
        ),
    )
