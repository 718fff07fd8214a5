"""The effect of 200 readers at a byte a second on other clients: the gateway's inter-token times without and with them.

    python -m benchmarks.slow_readers [--note TEXT]

The other clients are 20 streams that are read as they arrive. In rounds without slow readers the same number of
generations runs in the engine without readers, so that its steps are equally long and differences are due to the
gateway. Rounds alternate and the medians count. Appends rows to benchmarks/results/slow_readers.csv.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

from benchmarks.pinned_stack import Stack, cpu_s, gateway_pid, lacks, load, machine, pinned_stack, rss_bytes
from benchmarks.probes import Probes
from benchmarks.rows import append_rows

from support.gateway.slow_readers import slow_readers  # isort: skip  # pinned_stack puts tests/ on sys.path

READERS, OTHERS, STEP_MS = 200, 20, 20.0
READER_TOKENS = 6000  # more than the engine makes in a round
PROMPT_TOKENS = 30
SECONDS, ROUNDS = 8, 3
START_S = 3
STALL_S = 14  # time until all buffers to slow readers are full
MOVE_MAX = 0.10  # limit of the relative change of the other clients' p99
MIB = 1024 * 1024


async def without(stack: Stack) -> dict[str, float]:
    """The other clients' figures beside READERS generations that no client reads through the gateway."""
    probes = Probes(str(stack.config.socket_path), PROMPT_TOKENS)
    generations = asyncio.create_task(probes.together(READERS, READER_TOKENS))
    await asyncio.sleep(START_S)
    found = await others(stack)
    generations.cancel()
    await asyncio.wait([generations])
    return found


async def beside(stack: Stack) -> dict[str, float]:
    """The other clients' figures beside READERS slow readers."""
    with slow_readers(stack, "initech", READERS, READER_TOKENS):
        await asyncio.sleep(STALL_S)
        return await others(stack)


async def others(stack: Stack) -> dict[str, float]:
    pid = gateway_pid(stack)
    used, began = cpu_s(pid), time.monotonic()
    report = await load(stack, "--concurrency", str(OTHERS), "--duration", str(SECONDS), "--max-tokens", "100")
    gaps = report["total"]["inter_token_ms"]
    return {
        "inter_token_p50_ms": gaps["p50"],
        "inter_token_p99_ms": gaps["p99"],
        "gateway_core_share": (cpu_s(pid) - used) / (time.monotonic() - began),
        "gateway_rss_mb": rss_bytes(pid) / MIB,
    }


def measure() -> dict[str, float]:
    found: dict[str, list[float]] = {}
    with pinned_stack({"step_ms": STEP_MS}) as stack:
        for _ in range(ROUNDS):
            for name, run in (("without", without), ("with", beside)):
                for metric, value in asyncio.run(run(stack)).items():
                    found.setdefault(f"{name}_{metric}", []).append(value)
                while stack.open_holds():  # the readers are disconnected; wait for their generations
                    time.sleep(0.1)
    figures = {metric: statistics.median(values) for metric, values in found.items()}
    figures["p99_moved"] = figures["with_inter_token_p99_ms"] / figures["without_inter_token_p99_ms"] - 1
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--note", default="", help="stands in the rows")
    note = parser.parse_args().note
    if missing := lacks():
        sys.exit(f"this machine lacks {missing}")
    found = measure()
    workload = f"{READERS} readers at 1 byte/s, {OTHERS} others, step {STEP_MS:g} ms, a core for the gateway"
    append_rows("slow_readers", found, machine(), workload, note)
    moved = found["p99_moved"]
    verdict = "kept" if moved < MOVE_MAX else "NOT KEPT"
    print(f"  others' inter-token p99 moved by {moved:+.1%}; it must be less than {MOVE_MAX:.0%}: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
