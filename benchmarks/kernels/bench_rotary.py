"""Rotary with its write into the arena, Llama-3.1-8B's shape: python -m benchmarks.kernels.bench_rotary

Torch has no such op: beside it stand the ops that do the same one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.kernels.timing import graph_us, print_header, print_row, rotation
from kernels.reference_step import rotary_write as torchs_write
from kernels.rotary import rotary_tables, rotary_write

HEADS, KV_HEADS, HEAD_DIM, TOKENS, ROWS = 32, 8, 128, 16, (1, 256, 8192)
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM


def bench(rows: int, dtype: torch.dtype) -> None:
    row_bytes = WIDTH * dtype.itemsize
    half = HEAD_DIM // 2
    positions = torch.randint(0, 131072, (rows,), device="cuda", dtype=torch.int32)
    frequencies = torch.rand(half, device="cuda")
    cos, sin = (torch.empty(rows, half, device="cuda") for _ in range(2))
    tables = graph_us([partial(rotary_tables, positions, frequencies, cos, sin)] * 2)
    print_row(f"rotary_tables {rows} rows, once a step", tables, 8 * rows * half)
    pages = -(-rows // TOKENS) if rows > 256 else rows  # a decode writes one token a page
    write_pages = (torch.arange(rows, device="cuda", dtype=torch.int32) * pages // rows).int()
    write_slots = torch.arange(rows, device="cuda", dtype=torch.int32) % TOKENS
    adapted = torch.ones(rows, device="cuda", dtype=torch.int32)
    sets = [
        (
            torch.randn(rows, WIDTH, device="cuda", dtype=dtype),
            torch.randn(rows, WIDTH, device="cuda", dtype=dtype),
            torch.empty(rows, HEADS * HEAD_DIM, device="cuda", dtype=dtype),
            torch.empty(pages, TOKENS * 2 * KV_HEADS * HEAD_DIM, device="cuda", dtype=dtype),
        )
        for _ in range(rotation(2 * rows * row_bytes))
    ]

    def launches(write: Callable[..., None], with_delta: bool) -> list[Callable[[], None]]:
        def launch(qkv: torch.Tensor, delta: torch.Tensor, q_out: torch.Tensor, kv: torch.Tensor) -> None:
            options = {"delta": delta, "adapted": adapted} if with_delta else {}
            place = {"layer": 0, "heads": HEADS, "kv_heads": KV_HEADS, "tokens_per_page": TOKENS}
            write(qkv, q_out, kv, cos, sin, write_pages, write_slots, **place, **options)

        return [partial(launch, *operands) for operands in sets]

    def torchs(with_delta: bool) -> float:
        """Eager: which rows are padding is read on the host."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        every = launches(torchs_write, with_delta)
        every[0]()
        start.record()
        for launch in every:
            launch()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1000 / len(every)

    print_row(f"rotary_write {rows} rows", graph_us(launches(rotary_write, False)), 2 * rows * row_bytes, torchs(False))
    with_delta = graph_us(launches(rotary_write, True))
    print_row(f"rotary_write {rows} rows, delta", with_delta, 3 * rows * row_bytes, torchs(True))


def main() -> None:
    print_header()
    for rows in ROWS:
        bench(rows, torch.bfloat16)


if __name__ == "__main__":
    main()
