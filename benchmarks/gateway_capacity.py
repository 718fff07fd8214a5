"""The requests that one core of the gateway serves with everything on, beside the aims: a fake engine, real HTTP.

    python -m benchmarks.gateway_capacity [--services] [--note TEXT] [--only PHASE …] [--rate R] [--long]
        [--quota SHARE] [--repeat N] [--litellm VENV/bin/litellm]

On SQLite, with limits in the process; with --services on this machine's PostgreSQL and Redis, whose CPU stands beside.

The gateway has a separate core; engine, load tool and this program share another. A request is 200 prompt tokens in
and 32 streamed out. CPU-seconds are the gateway process's: all threads, user and system. Latency is *added* latency:
probes of the same shape are sent directly to the engine's socket during the same run, and their latencies are
subtracted, percentile by percentile. Appends rows to benchmarks/results/gateway_capacity.csv. It ends within 4 minutes
without --long, which sends 100,000 requests and watches the memory. `--quota 0.5` leaves the gateway half of its core
while the phases run; `--only many --quota 0.5 --repeat 10` is a burst on a slower machine, in which no request may be
refused.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np

from benchmarks import litellm_proxy
from benchmarks.cpu_quota import quota
from benchmarks.pinned_stack import (
    Stack,
    cpu_s,
    gateway_pid,
    lacks,
    load,
    machine,
    pinned_stack,
    restart_engine,
    rss_bytes,
    services_cpu_s,
)
from benchmarks.probes import Probes
from benchmarks.rows import append_rows

PROMPT_TOKENS, MAX_TOKENS = 200, 32
SHAPE = ("--prompt-tokens", str(PROMPT_TOKENS), "--max-tokens", str(MAX_TOKENS))
STEP_MS = 10.0
CLOSED = {"at_once": 64, "seconds": 12}
LONG_STREAMS = {"at_once": 64, "tokens": 600}
OPEN = {"share": 0.7, "seconds": 20, "probes_per_s": 15, "failed_share_max": 0.01}
MANY = {"streams": 1000, "step_ms": 100, "tokens": 150, "probes": 8, "probes_after_s": 4}
SOAK = {"requests": 100_000, "settled": 20_000}  # memory is compared from `settled` requests on
# The aims: (metric, at least or at most, value).
AIMS = {
    "requests_per_gateway_cpu_s": (">=", 300.0),
    "tokens_per_gateway_cpu_s": (">=", 20_000.0),
    "open_added_ttft_p50_ms": ("<=", 3.0),
    "open_added_ttft_p99_ms": ("<=", 10.0),
    "many_refused_requests": ("<=", 0.0),
    "many_added_inter_token_p50_ms": ("<=", 1.0),
    "many_added_inter_token_p99_ms": ("<=", 20.0),
    "soak_rss_growth_mb": ("<=", 5.0),
}
MIB = 1024 * 1024

Figures = dict[str, float]


def percentile_ms(seconds: Iterable[float], percent: float) -> float:
    return float(np.percentile(np.fromiter(seconds, float), percent)) * 1000


def tool_figures(prefix: str, report: dict[str, Any]) -> Figures:
    """The load tool's CPU share and lateness. Above 85 % of a core its own delays distort the figures."""
    return {
        f"{prefix}_tool_cpu_share": report["tool"]["cpu_share"],
        f"{prefix}_sent_late_p99_ms": report["tool"]["send_lateness_ms"]["p99"],
    }


def ledger_seconds(stack: Stack) -> dict[str, tuple[float, float]]:
    """From the gateway's metrics: the number of holds and settlements so far, and their seconds."""
    sums = dict(re.findall(r"^laneway_(\w+_seconds_(?:sum|count)) (\S+)$", stack.metrics(), re.M))
    return {
        name: (float(sums[f"{name}_seconds_count"]), float(sums[f"{name}_seconds_sum"])) for name in ("hold", "settle")
    }


# ---- the phases


async def warm(stack: Stack) -> None:
    await load(stack, "--concurrency", "32", "--requests", "300", *SHAPE)


async def closed(stack: Stack, _: Figures) -> Figures:
    """A closed loop: 64 requests in flight, as many as the gateway serves."""
    pid = gateway_pid(stack)
    cpu, services_cpu, began = cpu_s(pid), services_cpu_s(), time.monotonic()
    at_once, seconds = CLOSED["at_once"], CLOSED["seconds"]
    report = await load(stack, "--concurrency", str(at_once), "--duration", str(seconds), *SHAPE)
    used, wall, total = cpu_s(pid) - cpu, time.monotonic() - began, report["total"]
    return {
        "requests_per_gateway_cpu_s": total["requests"] / used,
        "closed_requests_per_s": total["requests_per_s"],
        "closed_services_cpu_ms_a_request": (services_cpu_s() - services_cpu) * 1000 / total["requests"],
        "closed_gateway_core_share": used / wall,
        "closed_ttft_p50_ms": total["ttft_ms"]["p50"],
        "closed_ttft_p99_ms": total["ttft_ms"]["p99"],
    }


async def long_streams(stack: Stack, _: Figures) -> Figures:
    """Few requests, many tokens."""
    pid = gateway_pid(stack)
    cpu = cpu_s(pid)
    at_once, tokens = LONG_STREAMS["at_once"], LONG_STREAMS["tokens"]
    report = await load(
        stack, "--concurrency", str(at_once), "--requests", str(2 * at_once), "--max-tokens", str(tokens)
    )
    used, total = cpu_s(pid) - cpu, report["total"]
    # Tokens that arrived together in one event are fewer events. Their share is printed too, because it improves the
    # figures.
    return {
        "tokens_per_gateway_cpu_s": total["completion_tokens"] / used,
        "long_tokens_per_event": total["completion_tokens"] / max(1, report["tool"]["events"] - 3 * 2 * at_once),
        "long_tokens_per_s": total["output_tokens_per_s"],
    }


async def open_loop(stack: Stack, found: Figures) -> Figures:
    """Poisson arrivals, at a share of the closed loop's rate per core or at the given rate."""
    rate = found.get("open_requests_per_s") or OPEN["share"] * found["requests_per_gateway_cpu_s"]
    pid, probes = gateway_pid(stack), Probes(str(stack.config.socket_path), PROMPT_TOKENS)
    cpu, began, ledger = cpu_s(pid), time.monotonic(), ledger_seconds(stack)
    report, _ = await asyncio.gather(
        load(
            stack,
            *("--rate", f"{rate:.1f}", "--duration", str(OPEN["seconds"]), *SHAPE),
            failed_max=int(rate * OPEN["seconds"] * OPEN["failed_share_max"]),
        ),
        probes.arrive(OPEN["probes_per_s"], OPEN["seconds"], MAX_TOKENS),
    )
    used, wall, total = cpu_s(pid) - cpu, time.monotonic() - began, report["total"]
    figures = {
        "open_requests_per_s": rate,
        "open_failed_requests": total["failed"],
        "open_gateway_core_share": used / wall,
    }
    for name, direct in (("ttft", probes.ttft_s), ("e2e", probes.e2e_s)):
        for percent in (50, 99):
            seen, alone = total[f"{name}_ms"][f"p{percent}"], percentile_ms(direct, percent)
            figures[f"open_added_{name}_p{percent}_ms"] = seen - alone
            figures[f"open_direct_{name}_p{percent}_ms"] = alone
    for name, (count, seconds) in ledger_seconds(stack).items():
        figures[f"open_{name}_mean_ms"] = (seconds - ledger[name][1]) / (count - ledger[name][0]) * 1000
    return figures | tool_figures("open", report)


async def many_streams(stack: Stack, _: Figures) -> Figures:
    """A thousand streams at ten tokens a second each."""
    restart_engine(stack, step_ms=MANY["step_ms"])
    pid, probes = gateway_pid(stack), Probes(str(stack.config.socket_path), PROMPT_TOKENS)
    cpu, began = cpu_s(pid), time.monotonic()
    streams, tokens = MANY["streams"], MANY["tokens"]

    async def delayed() -> None:
        await asyncio.sleep(MANY["probes_after_s"])
        await probes.together(MANY["probes"], tokens // 2)

    report, _ = await asyncio.gather(
        load(
            stack,
            *("--concurrency", str(streams), "--requests", str(streams), "--max-tokens", str(tokens)),
            failed_max=streams,
        ),
        delayed(),
    )
    used, wall, total = cpu_s(pid) - cpu, time.monotonic() - began, report["total"]
    restart_engine(stack, step_ms=STEP_MS)
    figures = {
        "many_refused_requests": total["failed"],
        "many_ttft_p50_ms": total["ttft_ms"]["p50"],
        "many_ttft_p99_ms": total["ttft_ms"]["p99"],
        "many_gateway_core_share": used / wall,
        "many_gateway_rss_mb": rss_bytes(pid) / MIB,
    }
    if total["failed"]:
        print(f"  refused: {report['errors']}", flush=True)
    for percent in (50, 99):
        seen, alone = total["inter_token_ms"][f"p{percent}"], percentile_ms(probes.gaps_s, percent)
        figures[f"many_added_inter_token_p{percent}_ms"] = seen - alone
        figures[f"many_direct_inter_token_p{percent}_ms"] = alone
    return figures | tool_figures("many", report)


async def soak(stack: Stack, _: Figures) -> Figures:
    """Memory over 100,000 requests: from the 20,000th on, when every cache has its size, it should not grow."""
    pid, part = gateway_pid(stack), SOAK["requests"] // 10
    sizes, failed = [rss_bytes(pid)], 0
    for number in range(10):
        # On a machine that others use too, a gateway that is kept waiting for a second refuses; that is no leak.
        report = await load(
            stack, "--concurrency", "64", "--requests", str(part), "--seed", str(number), *SHAPE, failed_max=part // 50
        )
        failed += report["total"]["failed"]
        sizes.append(rss_bytes(pid))
        print(f"  after {(number + 1) * part:7,} requests: {sizes[-1] / MIB:.1f} MiB", flush=True)
    return {
        "soak_failed_requests": failed,
        "soak_rss_first_mb": sizes[0] / MIB,
        "soak_rss_settled_mb": sizes[SOAK["settled"] // part] / MIB,
        "soak_rss_last_mb": sizes[-1] / MIB,
        "soak_rss_growth_mb": (sizes[-1] - sizes[SOAK["settled"] // part]) / MIB,
    }


PHASES: dict[str, Callable[[Stack, Figures], Awaitable[Figures]]] = {
    "closed": closed,
    "long_streams": long_streams,
    "open": open_loop,
    "many": many_streams,
    "soak": soak,
}


async def measure(phases: list[str], rate: float | None, services: bool, share: float, repeat: int) -> Figures:
    """Run the phases. Of repetitions take the worst figure of refusals, and the median of the others."""
    found: Figures = {} if rate is None else {"open_requests_per_s": rate}
    with pinned_stack({"step_ms": STEP_MS}, services=services) as stack:
        await warm(stack)
        with quota(gateway_pid(stack), share) as means:
            if share < 1:
                print(f"the gateway has {share:g} of its core, by {means}", flush=True)
            for name in phases:
                print(f"{name}: {PHASES[name].__doc__}", flush=True)
                runs: list[Figures] = []
                for _ in range(repeat):
                    runs.append(await PHASES[name](stack, found))
                    show(runs[-1])
                found |= {metric: typical(metric, [run[metric] for run in runs]) for metric in runs[0]}
        found["gateway_rss_mb"] = rss_bytes(gateway_pid(stack)) / MIB
    return found


def typical(metric: str, values: list[float]) -> float:
    return max(values) if metric.endswith("_refused_requests") else statistics.median(values)


def show(found: Figures) -> None:
    for metric, value in found.items():
        line = f"  {metric:36} {value:12.2f}"
        if metric in AIMS:
            sign, aim = AIMS[metric]
            met = value >= aim if sign == ">=" else value <= aim
            line += f"   aim {sign} {aim:<8g} {'met' if met else 'NOT MET'}"
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", action="store_true", help="on PostgreSQL and Redis of this machine")
    parser.add_argument("--note", default="", help="stands in the rows")
    parser.add_argument("--only", nargs="+", choices=list(PHASES), help="these phases; open needs closed before it")
    parser.add_argument("--long", action="store_true", help="also the memory over 100,000 requests")
    parser.add_argument("--litellm", metavar="PROGRAM", help="also LiteLLM's proxy, with all its governance off")
    parser.add_argument("--rate", type=float, help="of the open loop: to compare two versions at the same load")
    parser.add_argument("--quota", type=float, default=1.0, help="the share of its core that the gateway has")
    parser.add_argument("--repeat", type=int, default=1, help="how often each phase runs")
    arguments = parser.parse_args()
    if not 0 < arguments.quota <= 1 or arguments.repeat < 1:
        parser.error("--quota is a share above 0 and up to 1, --repeat at least 1")
    if missing := lacks():
        sys.exit(f"this machine lacks {missing}")
    phases = arguments.only or [name for name in PHASES if name != "soak" or arguments.long]
    if "open" in phases and "closed" not in phases and arguments.rate is None:
        parser.error("open is a share of what closed finds: name both, or a --rate")
    found = asyncio.run(measure(phases, arguments.rate, arguments.services, arguments.quota, arguments.repeat))
    if arguments.litellm:
        print("litellm: the same load through LiteLLM's proxy, no keys, no limits, no database")
        theirs = litellm_proxy.measure(arguments.litellm, SHAPE, CLOSED["at_once"], STEP_MS)
        show(theirs)
        found |= theirs
    else:
        print("  LiteLLM's proxy was not run; elsewhere, all governance off: 50 streams of 16 a CPU-second")
    where = "PostgreSQL and Redis" if arguments.services else "SQLite"
    workload = (
        f"{PROMPT_TOKENS} in, {MAX_TOKENS} streamed, step {STEP_MS:g} ms, {where}, all on, a core for the gateway"
    )
    if arguments.quota < 1:
        workload += f", of which it has {arguments.quota:g}"
    if arguments.repeat > 1:
        workload += f", {arguments.repeat} runs"
    append_rows("gateway_capacity", found, machine(), workload, arguments.note)
    return 1 if found.get("many_refused_requests") else 0


if __name__ == "__main__":
    sys.exit(main())
