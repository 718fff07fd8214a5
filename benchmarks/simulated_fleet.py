"""A simulated fleet: how routing preserves hits of prefixes and adapters, and how routing and roster scale.

    python -m benchmarks.simulated_fleet [--only policies|scale] [--seconds N] [--engines 1000] [--note TEXT]

`policies`: four engines with the real scheduler, on the same multi-tenant conversations under every routing policy, and
one big engine. `scale`: many simple engines (a queueing model, engine/simulate/simple_engine.py) on a virtual clock,
with real page names, heartbeats and page news. Wall times are the thread's own: of a decision, of a heartbeat, of a
page of news, of an engine that leaves; and the bytes of one gateway's page index. Appends rows to
benchmarks/results/simulated_fleet.csv.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Container
from typing import ClassVar

import msgspec

from benchmarks.rows import append_rows
from engine.protocol.frames import PAGE_HEAD_BYTES, PagesChanged
from engine.protocol.snapshot_parts import EngineLoad
from engine.protocol.tiers import SHIPPED_TIERS
from engine.simulate.conversations import ConversationRate, FleetText
from engine.simulate.devices import DEVICES
from engine.simulate.fleet import ONE_ENGINE, FleetSettings, FleetWorld
from engine.simulate.fleet_report import fleet_report
from engine.simulate.routing_policies import POLICIES, PredictedPolicy
from engine.simulate.traffic import Population, Traffic

# Of the conversations, by tier.
PARTS = {"premium": 0.3, "standard": 0.5, "batch": 0.2}
TURNS, PROMPT_TOKENS, NEW_TOKENS, THINK_S, SYSTEM_TOKENS = 5.0, 200, 150, 4.0, 1024


class TimedPolicy(PredictedPolicy):
    """The product's router, and how long it takes."""

    decisions_s: ClassVar[list[float]] = []
    heartbeats_s: ClassVar[list[float]] = []
    news_s = 0.0
    news_pages = 0

    def choose_engine(self, text: FleetText, now: float, exclude: Container[str]) -> str | None:
        began = time.thread_time()
        name = super().choose_engine(text, now, exclude)
        self.decisions_s.append(time.thread_time() - began)
        return name

    def note_load(self, name: str, load: EngineLoad, unfinished: int, now: float) -> None:
        began = time.thread_time()
        super().note_load(name, load, unfinished, now)
        self.heartbeats_s.append(time.thread_time() - began)

    def note_pages(self, name: str, frame: PagesChanged) -> None:
        began = time.thread_time()
        super().note_pages(name, frame)
        TimedPolicy.news_s += time.thread_time() - began
        TimedPolicy.news_pages += (len(frame.added) + len(frame.removed)) // PAGE_HEAD_BYTES


def conversations(per_s: float) -> tuple[ConversationRate, ...]:
    lengths = TURNS, PROMPT_TOKENS, NEW_TOKENS, THINK_S
    return tuple(ConversationRate(tier, part * per_s, *lengths) for tier, part in PARTS.items())


def settings(engines: int, per_s: float, seconds: float, tenants: int, pages: int, *, simple: bool) -> FleetSettings:
    population = Population(dict.fromkeys(PARTS, 1.0), tenants=tenants, adapters=4)
    device = msgspec.structs.replace(DEVICES["h200-8b"], pages=pages, adapter_load_s=0.03)
    traffic = Traffic(population, seconds)
    return FleetSettings(SHIPPED_TIERS, device, traffic, conversations(per_s), engines, 2, SYSTEM_TOKENS, simple=simple)


def compare_policies(seconds: float) -> dict[str, float]:
    given = settings(4, 6.0, seconds, tenants=10, pages=6144, simple=False)
    worlds = []
    for policy in (*POLICIES, ONE_ENGINE):
        worlds.append(FleetWorld(given, policy))
        worlds[-1].run()
    found = {}
    for run in fleet_report(worlds, {}).runs:
        name = run.routing.replace("-", "_")
        found[f"{name}_hit_rate"] = run.prefix_hit_rate or 0.0
        found[f"{name}_of_one"] = run.hit_rate_to_one_engine or 0.0
        found[f"{name}_tokens_s"] = run.output_tokens_per_s
        found[f"{name}_adapter_loads"] = run.adapter_loads
        found[f"{name}_imbalance"] = run.imbalance or 0.0
        for tier in run.tiers:
            found[f"{name}_{tier.tier}_ttft_p50_ms"] = tier.ttft_ms.p50 or 0.0
            found[f"{name}_{tier.tier}_ttft_p99_ms"] = tier.ttft_ms.p99 or 0.0
    return found


def scale(engines: int, seconds: float) -> dict[str, float]:
    POLICIES["timed"] = TimedPolicy
    began = time.thread_time()
    world = FleetWorld(settings(engines, engines / 5, seconds, tenants=200, pages=49_152, simple=True), "timed")
    world.run()
    whole_s = time.thread_time() - began
    (run,) = fleet_report([world], {}).runs
    gateway = world.gateways[0]
    assert isinstance(gateway, TimedPolicy)
    heads, index_bytes = gateway.router.pages.heads(), gateway.router.pages.memory_bytes()
    began = time.thread_time()
    for name in list(gateway.engines):
        gateway.remove_engine(name)
    left_s = time.thread_time() - began
    decisions, beats = TimedPolicy.decisions_s, TimedPolicy.heartbeats_s
    return {
        "requests": run.requests,
        "hit_rate": run.prefix_hit_rate or 0.0,
        "imbalance": run.imbalance or 0.0,
        "premium_ttft_p99_ms": run.tiers[0].ttft_ms.p99 or 0.0,
        "decision_us": statistics.median(decisions) * 1e6,
        "decision_p99_us": statistics.quantiles(decisions, n=100)[98] * 1e6,
        "heartbeat_us": statistics.median(beats) * 1e6,
        "news_page_us": TimedPolicy.news_s / max(1, TimedPolicy.news_pages) * 1e6,
        "engine_leaves_us": left_s / engines * 1e6,
        "index_heads": heads,
        "index_bytes": index_bytes,
        "whole_s": whole_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("policies", "scale"))
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals, in `policies`; a sixth in `scale`")
    parser.add_argument("--engines", type=int, default=1000, help="in `scale`")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    machine = f"{platform.machine()} {os.cpu_count()} cores, Python {platform.python_version()}"
    gc.disable()
    turns = f"{TURNS:g} turns of {PROMPT_TOKENS} + {NEW_TOKENS} tokens after {SYSTEM_TOKENS} of the tenant"
    if arguments.only != "scale":
        workload = f"4 engines h200-8b of 6,144 pages, 6 conversations/s of {turns}, 30 tenants with 4 adapters"
        append_rows("simulated_fleet", compare_policies(arguments.seconds), machine, workload, arguments.note)
    if arguments.only != "policies":
        count = arguments.engines
        workload = f"{count} simple engines, 2 gateways, {count / 5:g} conversations/s of {turns}, 600 tenants"
        append_rows("simulated_fleet", scale(count, arguments.seconds / 6), machine, workload, arguments.note)


if __name__ == "__main__":
    main()
