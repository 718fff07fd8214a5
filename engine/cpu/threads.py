"""Number of threads that multiply a few rows on a CPU: measured at the engine's start.

More threads are not always faster: a product of few rows waits for the memory or for the other threads. Threads that do
not increase the speed are left to the gateways. Products of many rows, as of prompts, use all cores.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable

import torch

from adapters.device.layer import cpu_threads
from engine.models.linear import PACKED_ROWS, Linear

# The matrix [out, in] that is multiplied, larger than a core's cache; by one row, and by as many as a step of few has.
MEASURED_SHAPE = (3072, 576)
MEASURED_ROWS = (1, PACKED_ROWS)
# Of each number of threads, in turn with the others; the fastest counts. No turn begins after MEASURED_S.
TURNS = 8
MEASURED_S = 0.15
# A smaller number of threads is chosen if it takes at most so much longer than the fastest.
SLOWER_MAX = 1.1

_log = logging.getLogger(__name__)


@functools.cache
def measured_threads() -> int:
    """The number of threads for few rows in this process, measured at the first call: it takes less than 0.3 s."""
    return choose_threads(available_cores(), _measure_products())


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(
    cores: int, measure: Callable[[int], tuple[float, ...]], clock: Callable[[], float] = time.perf_counter
) -> int:
    """The fewest of 1, half and all cores whose products take at most SLOWER_MAX times as long as the fastest.
    `measure(threads)`: the seconds of each product. Every product counts the same, however long it takes."""
    counts = sorted({1, max(1, cores // 2), cores})
    if len(counts) == 1:
        return 1
    found: dict[int, tuple[float, ...]] = {}
    began = clock()
    for turn in range(TURNS):
        if turn and clock() - began >= MEASURED_S:
            break
        for count in counts:
            taken = measure(count)
            found[count] = tuple(map(min, found.get(count, taken), taken))
    fastest = tuple(map(min, *found.values()))
    scores = {count: sum(map(_ratio, seconds, fastest)) for count, seconds in found.items()}
    chosen = next(count for count in counts if scores[count] <= SLOWER_MAX * min(scores.values()))
    microseconds = {str(count): [round(s * 1e6) for s in seconds] for count, seconds in found.items()}
    _log.info("cpu.threads", extra={"fields": {"threads": chosen, "cores": cores, "us_by_threads": microseconds}})
    return chosen


def _ratio(seconds: float, fastest: float) -> float:
    return seconds / max(fastest, 1e-9)


def _measure_products() -> Callable[[int], tuple[float, ...]]:
    """Functions that measure a product of each of MEASURED_ROWS, after a product that is not counted: it starts the
    threads."""
    linear = Linear(torch.rand(MEASURED_SHAPE), packed=True)
    batches = [(torch.rand(rows, MEASURED_SHAPE[1]), torch.empty(rows, MEASURED_SHAPE[0])) for rows in MEASURED_ROWS]

    @torch.inference_mode()
    def measure(threads: int) -> tuple[float, ...]:
        with cpu_threads(threads):
            linear(*batches[0])
            taken = []
            for x, out in batches:
                began = time.perf_counter()
                linear(x, out)
                taken.append(time.perf_counter() - began)
            return tuple(taken)

    return measure
