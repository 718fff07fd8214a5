"""Decode attention of one layer of Llama-3.1-8B, by the bytes of K and V it must read: python -m
benchmarks.kernels.bench_decode_attention

The launches of a graph go through the layers of one arena, whose pages lie in random order; the plan is made once a
graph, as once a step. Torch's fused attention over contiguous K and V beside it, where all lengths are equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from benchmarks.kernels.timing import COLD_BYTES, COPY_BYTES_PER_S, LAUNCHES, graph_us
from kernels.decode_attention import allocate_decode_plan, decode_attention, plan_decode

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
TOKEN_BYTES = 2 * KV_HEADS * HEAD_DIM * 2
ARENA_BYTES_MAX = 24 << 30
CASES: dict[str, list[int]] = {
    "256 × 192": [192] * 256,
    "256 × 128…256": [128 + i // 2 for i in range(256)],
    "64 × 1k": [1024] * 64,
    "32 × 8k": [8192] * 32,
    "1 × 192": [192],
    "1 × 8k": [8192],
    "1 × 64k": [65536],
    "255 × 128 and 1 × 32k": [*[128] * 255, 32768],
    "128…4k, 100 of them": [128 + 40 * i for i in range(100)],
}


def bench(name: str, kv_lens: list[int], tokens_per_page: int, dtype: torch.dtype) -> float:
    """Microseconds a launch; prints a row."""
    layer_bytes = sum(kv_lens) * TOKEN_BYTES
    layers = max(1, min(LAUNCHES, 1 + COLD_BYTES // layer_bytes, ARENA_BYTES_MAX // layer_bytes))
    counts = [-(-keys // tokens_per_page) for keys in kv_lens]
    page_count = sum(counts)
    kv = torch.empty(page_count, layers * tokens_per_page * TOKEN_BYTES // 2, device="cuda", dtype=dtype).normal_()
    pages = torch.randperm(page_count, device="cuda", dtype=torch.int32)
    starts = [sum(counts[:s]) for s in range(len(counts))]
    rows, lens, page_starts = (
        torch.tensor(numbers, device="cuda", dtype=torch.int32)
        for numbers in (list(range(len(kv_lens))), kv_lens, starts)
    )
    q = torch.randn(len(kv_lens), HEADS * HEAD_DIM, device="cuda", dtype=dtype)
    out = torch.empty_like(q)
    plan = allocate_decode_plan(max(256, len(kv_lens)), HEADS, KV_HEADS, HEAD_DIM, torch.device("cuda"))

    def launch(layer: int) -> None:
        if layer == 0:
            plan_decode(plan, rows, lens, page_starts)
        decode_attention(q, out, kv, pages, plan, layer=layer, tokens_per_page=tokens_per_page, scale=HEAD_DIM**-0.5)

    us = graph_us([lambda i=i: launch(i) for i in range(layers)])  # type: ignore[misc]
    bound_us = layer_bytes / COPY_BYTES_PER_S * 1e6
    torchs = f"{torch_us(kv_lens, dtype):9.1f}" if len(set(kv_lens)) == 1 else ""
    print(f"{name:24}{tokens_per_page:4} {us:9.1f} {bound_us:9.1f} {100 * bound_us / us:5.0f} {torchs}", flush=True)
    return us


def torch_us(kv_lens: Sequence[int], dtype: torch.dtype) -> float:
    """Torch's attention of the same batch over contiguous K and V [sequences, kv_heads, keys, head_dim]."""
    sequences, keys = len(kv_lens), kv_lens[0]
    sets = 1 + COLD_BYTES // (sequences * keys * TOKEN_BYTES)
    q = torch.randn(sequences, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM, device="cuda", dtype=dtype)
    kv = torch.empty(min(sets, LAUNCHES), 2, sequences, KV_HEADS, keys, HEAD_DIM, device="cuda", dtype=dtype).normal_()
    return graph_us([lambda k=k, v=v: F.scaled_dot_product_attention(q, k, v) for k, v in kv])  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens-per-page", type=int, nargs="*", default=[16])
    arguments = parser.parse_args()
    print(f"{'sequences × keys':24}{'page':>4} {'µs':>9} {'bound µs':>9} {'%':>5} {'torch µs':>9}")
    for tokens_per_page in arguments.tokens_per_page:
        for name, kv_lens in CASES.items():
            bench(name, kv_lens, tokens_per_page, torch.bfloat16)


if __name__ == "__main__":
    main()
