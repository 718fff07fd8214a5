"""The LoRA kernels in a decode step of Llama-3.1-8B's shape: alone, and beside the base products, each by its bound.

    python benchmarks/kernels/bench_lora.py [--alone] [--layers N]

All modules of all layers run in one CUDA graph, over adapters that are all different, so that no cache flatters. The
bound of LoRA alone is every distinct adapter, every input and every output once through memory at 4.2 TB/s. Then
prefill steps, LoRA alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from kernels.lora import lora
from kernels.lora_work import (
    DECODE_BLOCK_ROWS,
    PREFILL_BLOCK_ROWS,
    TILE_ALIGN_BYTES,
    TILE_RANK,
    LoraScratch,
    LoraWork,
    Range,
    Stack,
    TileTable,
    WorkLayout,
    pack_entry,
)

HIDDEN, KV, INTER = 4096, 1024, 14336
STACKS = (
    Stack(0, HIDDEN, (HIDDEN, KV, KV)),
    Stack(3, HIDDEN, (HIDDEN,)),
    Stack(4, HIDDEN, (INTER, INTER)),
    Stack(6, INTER, (HIDDEN,)),
)
BYTES_PER_S = 4.2e12
DTYPE = torch.bfloat16


class Case(NamedTuple):
    rows: int
    adapters: int
    ranks: tuple[int, ...] = (16,)  # dealt to the adapters in turn

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.adapters} adapters, rank {'/'.join(map(str, self.ranks))}"


CASES = [
    Case(256, 1),
    Case(256, 8),
    Case(256, 64),
    Case(256, 256),
    Case(64, 64),
    Case(16, 16),
    Case(256, 64, (8, 16, 32, 64)),
    Case(256, 0),
]
PREFILL_CASES = [Case(8192, 1), Case(8192, 64), Case(2048, 16), Case(512, 4)]


class Adapters:
    """Random tiles, an adapter's after another's, and the table that finds them."""

    def __init__(self, count: int, ranks: tuple[int, ...], layers: int, arena: torch.Tensor | None = None) -> None:
        """`arena` of another set, if it is large enough, may be used again."""
        self.ranks = [ranks[index % len(ranks)] for index in range(count)]
        tiles_max = -(-max(ranks) // TILE_RANK)
        unit = TILE_ALIGN_BYTES // DTYPE.itemsize
        numbers = np.zeros((count, layers, 7, 1 + tiles_max), dtype=np.int64)
        position = 0
        for adapter, rank in enumerate(self.ranks):
            for layer in range(layers):
                for stack in STACKS:
                    for module, out in enumerate(stack.outs, stack.first):
                        own = numbers[adapter, layer, module]
                        own[0] = pack_entry(rank, 2.0)
                        for tile, first in enumerate(range(0, rank, TILE_RANK)):
                            own[1 + tile] = position
                            elements = min(TILE_RANK, rank - first) * (stack.in_features + out)
                            position += -(-elements // unit)
        if arena is None or arena.numel() < position * unit:
            arena = torch.empty(position * unit, dtype=DTYPE, device="cuda").normal_(std=0.02)
        self.bytes = position * TILE_ALIGN_BYTES
        self.table = TileTable(arena, torch.from_numpy(numbers).cuda())

    def work(self, case: Case, block_rows: int = DECODE_BLOCK_ROWS) -> LoraWork:
        """Rows dealt evenly, an adapter's together."""
        ranges, first = [], 0
        for index in range(case.adapters):
            rows = case.rows // case.adapters + (index < case.rows % case.adapters)
            ranges.append(Range(index, first, rows, -(-self.ranks[index] // TILE_RANK)))
            first += rows
        layout = WorkLayout.of(case.rows, max(1, case.adapters), self.table.tiles_max, block_rows)
        numbers = np.zeros(layout.size, dtype=np.int32)
        layout.plan(ranges, numbers)
        return layout.view(torch.from_numpy(numbers).cuda())


class Step:
    """The buffers of a decode step: x and y of each stack of modules. A small op makes each x, as a step's norms and
    activations do, so that base products do not follow each other directly."""

    def __init__(self, rows: int, layers: int, table: TileTable) -> None:
        self.rows = rows
        self.layers = layers
        self.x = [torch.randn(rows, stack.in_features, device="cuda").to(DTYPE) for stack in STACKS]
        self.y = [torch.randn(rows, sum(stack.outs), device="cuda").to(DTYPE) for stack in STACKS]
        self.delta = [torch.empty_like(y) for y in self.y]
        self.scratch = LoraScratch.empty(rows, 3, table)
        self.side = torch.cuda.Stream(priority=0)

    def lora(self, adapters: Adapters, work: LoraWork, layer: int, index: int, *, add: bool = False) -> None:
        y = self.y[index] if add else self.delta[index]
        lora(self.x[index], y, adapters.table, work, self.scratch, layer, STACKS[index], add=add)

    def alone(self, adapters: Adapters, work: LoraWork) -> None:
        self.scratch.begin_step()
        for layer in range(self.layers):
            for index in range(len(STACKS)):
                self.lora(adapters, work, layer, index)

    def base(self, weights: list[list[torch.Tensor]]) -> None:
        for own in weights:
            for x, weight, y in zip(self.x, own, self.y, strict=True):
                x.mul_(1)
                torch.mm(x, weight, out=y)

    def serial(self, weights: list[list[torch.Tensor]], adapters: Adapters, work: LoraWork) -> None:
        """LoRA after each base product on the same stream, added to the product's output."""
        self.scratch.begin_step()
        for layer, own in enumerate(weights):
            for index, weight in enumerate(own):
                self.x[index].mul_(1)
                torch.mm(self.x[index], weight, out=self.y[index])
                self.lora(adapters, work, layer, index, add=True)

    def beside(self, weights: list[list[torch.Tensor]], adapters: Adapters, work: LoraWork) -> None:
        """LoRA on a side stream of lower priority, on the multiprocessors that each base product leaves free. The
        consumer of y adds the delta."""
        main = torch.cuda.current_stream()
        self.scratch.begin_step()
        for layer, own in enumerate(weights):
            for index, weight in enumerate(own):
                self.x[index].mul_(1)
                self.side.wait_stream(main)
                torch.mm(self.x[index], weight, out=self.y[index])
                with torch.cuda.stream(self.side):
                    self.lora(adapters, work, layer, index)
                main.wait_stream(self.side)


def graph_ms(body: Callable[..., None], *arguments: object, replays: int = 15) -> float:
    """Milliseconds of `body(*arguments)` as a graph, the median of its replays."""
    stream = torch.cuda.Stream(priority=-1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        body(*arguments)
    times = []
    for _ in range(replays + 2):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times[2:])


def bound_ms(case: Case, adapters: Adapters, layers: int) -> float:
    """Distinct adapters once, the adapted rows' inputs read and their outputs written once."""
    if not case.adapters:
        return 0.0
    used = adapters.bytes * case.adapters / len(adapters.ranks)
    columns = sum(stack.in_features + sum(stack.outs) for stack in STACKS)
    return (used + case.rows * layers * columns * DTYPE.itemsize) / BYTES_PER_S * 1e3


def sets(cases: list[Case], layers: int) -> dict[tuple[int, ...], Adapters]:
    """The adapters of all cases by their ranks, in one arena."""
    most: dict[tuple[int, ...], int] = {}
    for case in cases:
        most[case.ranks] = max(most.get(case.ranks, 1), case.adapters)
    found: dict[tuple[int, ...], Adapters] = {}
    arena = None
    for ranks, count in sorted(most.items(), key=lambda item: -sum(item[0]) / len(item[0]) * item[1]):
        found[ranks] = Adapters(count, ranks, layers, arena)
        arena = found[ranks].table.arena
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="without the base products")
    parser.add_argument("--layers", type=int, default=32)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layers = arguments.layers
    by_ranks = sets(CASES, layers)
    weights: list[list[torch.Tensor]] = []
    if not arguments.alone:
        shapes = [(sum(stack.outs), stack.in_features) for stack in STACKS]
        weights = [
            [torch.empty(*s, dtype=DTYPE, device="cuda").normal_(std=0.02).t() for s in shapes] for _ in range(layers)
        ]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {layers} layers, ms a step")
    print(f"{'case':40} {'alone':>7} {'bound':>7} {'%':>4} {'base':>7} {'serial':>7} {'beside':>7} {'added':>7}")
    bases: dict[int, float] = {}
    for case in CASES:
        adapters = by_ranks[case.ranks]
        step, work = Step(case.rows, layers, adapters.table), adapters.work(case)
        alone, bound = graph_ms(step.alone, adapters, work), bound_ms(case, adapters, layers)
        line = f"{case!s:40} {alone:7.3f} {bound:7.3f} {100 * bound / alone:4.0f}"
        if weights:
            if case.rows not in bases:
                bases[case.rows] = graph_ms(step.base, weights)
            base, serial = bases[case.rows], graph_ms(step.serial, weights, adapters, work)
            beside = graph_ms(step.beside, weights, adapters, work)
            line += f" {base:7.3f} {serial:7.3f} {beside:7.3f} {beside - base:7.3f}"
        print(line, flush=True)
    for case in PREFILL_CASES:
        adapters = by_ranks[case.ranks]
        step, work = Step(case.rows, layers, adapters.table), adapters.work(case, PREFILL_BLOCK_ROWS)
        alone, bound = graph_ms(step.alone, adapters, work, replays=5), bound_ms(case, adapters, layers)
        print(f"{case!s:40} {alone:7.3f} {bound:7.3f} {100 * bound / alone:4.0f}", flush=True)


if __name__ == "__main__":
    main()
