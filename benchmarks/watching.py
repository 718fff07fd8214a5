"""The cost of one snapshot for a watcher: in the engine's loop, which takes it, and in the gateway, which sends it.

    python -m benchmarks.watching [--pages N] [--requests N] [--note TEXT]

A full arena that has been used for long, so that neighbours belong to different owners, with 300 adapters and 300
requests that wait. Times are the thread's own, so that nothing else on the machine counts. Appends rows to
benchmarks/results/watching.csv.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable

import msgspec

from benchmarks.rows import append_rows
from engine.fake.runner import FakeAdapters
from engine.loop import snapshot
from engine.memory.arena import Arena
from engine.protocol.codec import encode
from engine.protocol.frames import Sampling, Snapshot
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Sequence, StepResult
from gateway.upkeep.live_feed import encode_event
from gateway.views.live import engine_event

PAGE_TOKENS, ADAPTERS, ADAPTER_PAGES, WAITING, LOOKS = 16, 300, 8, 300, 500


def full(pages: int, requests: int) -> Scheduler:
    """`requests` decode in nine tenths of the arena."""
    draw = random.Random(1)
    table = FakeAdapters(ADAPTER_PAGES)
    table.models = {f"{number:064x}": "m" for number in range(ADAPTERS)}
    arena = Arena(pages, 2 << 20)
    draw.shuffle(arena._free)  # free pages in random order, as after days of traffic
    tiers = [msgspec.structs.replace(tier, queue_target_ms=None, queue_max=10_000) for tier in SHIPPED_TIERS]
    limits = {"m": ModelLimits(1_000_000, PAGE_TOKENS, "", 50_000)}
    scheduler = Scheduler(
        tiers, limits, arena, table, time.monotonic, step_tokens_max=16_384, sequences_max=requests, namespace_quota=1.0
    )
    own = (int(0.9 * pages) - ADAPTERS * ADAPTER_PAGES) // requests - 2

    def submit(handle: int, tokens: int) -> None:
        prompt = [draw.randrange(50_000) for _ in range(tokens)]
        adapter = f"{draw.randrange(ADAPTERS):064x}" if handle % 2 else None
        tier, request_id = tiers[handle % 3].name, f"req_{handle:020d}"
        refusal = scheduler.submit(
            Sequence(
                handle, 1, request_id, "m", adapter, "ns", tier, f"share{handle % 20}", prompt, 5000, Sampling(),
                frozenset(), time.monotonic(),
            )
        )  # fmt: skip
        assert refusal is None, refusal

    for handle in range(requests):
        submit(handle, own * PAGE_TOKENS)
    while scheduler.running < requests or any(
        one.remaining() > 1 for run in scheduler.running_entries() for one in run
    ):
        step = scheduler.schedule()
        assert step is not None
        scheduler.complete(step, StepResult([1000 if chunk.sample else None for chunk in step.chunks]), 0.01)
    for handle in range(requests, requests + WAITING):
        submit(handle, 100)
    return scheduler


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Median and 99th percentile, in microseconds."""
    took = []
    for _ in range(LOOKS):
        began = time.thread_time()
        function()
        took.append(time.thread_time() - began)
    return statistics.median(took) * 1e6, statistics.quantiles(took, n=100)[98] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=30_000)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    scheduler = full(arguments.pages, arguments.requests)

    def look() -> Snapshot:
        return snapshot.take_snapshot(scheduler, "epoch", 1, time.monotonic(), 0)

    shot = look()
    engine, engine_p99 = timed(lambda: encode(look()))
    gateway, gateway_p99 = timed(lambda: encode_event("engine", engine_event("local", shot, time.time(), {}, {})))
    found = {
        "engine_us": engine,
        "engine_p99_us": engine_p99,
        "gateway_us": gateway,
        "gateway_p99_us": gateway_p99,
        "frame_bytes": float(len(encode(shot))),
        "event_bytes": float(len(encode_event("engine", engine_event("local", shot, time.time(), {}, {})))),
        "runs": len(shot.runs) / 8,
    }
    machine = f"{platform.machine()} {os.cpu_count()} cores, Python {platform.python_version()}"
    workload = (
        f"{arguments.pages} pages, {scheduler.arena.free_pages()} of them free, {scheduler.running} decoding, "
        f"{ADAPTERS} adapters, {WAITING} waiting, {len(shot.owners)} owners"
    )
    append_rows("watching", found, machine, workload, arguments.note)


if __name__ == "__main__":
    main()
