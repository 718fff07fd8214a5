"""How a kernel is timed: many launches over rotating buffers in one CUDA graph, as a decode step launches it.

It must never know the operation of a launch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

# The copy rate of an H200's memory, bytes read and written: the bound of memory-bound kernels.
COPY_BYTES_PER_S = 4.2e12
# Twice an H200's L2: rotating through as much, no launch finds its operands there.
COLD_BYTES = 120 << 20
LAUNCHES = 64


def rotation(bytes_each: int) -> int:
    """How many sets of operands make launches cold."""
    return max(2, min(LAUNCHES, -(-COLD_BYTES // bytes_each)))


def graph_us(launches: Sequence[Callable[[], object]], replays: int = 20) -> float:
    """Microseconds a launch: median over replays of a graph that cycles through `launches`."""
    rounds = max(1, LAUNCHES // len(launches))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for launch in launches:
                launch()
    times = []
    for _ in range(replays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times) * 1000 / (rounds * len(launches))


def print_header() -> None:
    print(f"{'':44} {'µs':>8} {'bound':>8} {'%':>5} {'torch':>8}")


def print_row(name: str, us: float, bytes_moved: int, torch_us: float | None = None) -> None:
    """One line: the time, the bound that the bytes set, the share of it, and torch's own op in the same run."""
    bound = bytes_moved / COPY_BYTES_PER_S * 1e6
    beside = "" if torch_us is None else f"{torch_us:8.2f}"
    print(f"{name:44} {us:8.2f} {bound:8.2f} {100 * bound / us:5.0f} {beside}", flush=True)
