"""Prefill attention of one layer of Llama-3.1-8B, by the causal products it must make: python -m
benchmarks.kernels.bench_prefill_attention

K and V lie in pages in random order. Beside it torch's fused attention over contiguous K and V by each backend that
takes the case.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from benchmarks.kernels.timing import graph_us
from kernels.prefill_attention import allocate_prefill_partials, prefill_attention
from kernels.prefill_blocks import prefill_blocks

HEADS, KV_HEADS, HEAD_DIM, TOKENS_PER_PAGE = 32, 8, 128, 16
PRODUCT_FLOPS = 750e12  # what an H200 makes of a large bf16 product
REPLAYS = 3
# (new tokens, keys) of each chunk
CASES: dict[str, list[tuple[int, int]]] = {
    "8k": [(8192, 8192)],
    "2k over 6k": [(2048, 8192)],
    "512 over 8k": [(512, 8704)],
    "64 over 8k": [(64, 8256)],
    "4 × 2k": [(2048, 2048)] * 4,
    "64 × 128": [(128, 128)] * 64,
    "255 × 1 over 192, 1k": [*[(1, 192)] * 255, (1024, 1024)],
    "31 × 1 over 8k, 512": [*[(1, 8192)] * 31, (512, 512)],
    "16k": [(16384, 16384)],
}


def causal_flops(chunks: list[tuple[int, int]]) -> int:
    """Multiplications and additions of q·Kᵀ and p·V over the keys that each query sees."""
    seen = sum(new * (keys - new) + new * (new + 1) // 2 for new, keys in chunks)
    return 4 * HEADS * HEAD_DIM * seen


def ours_us(chunks: list[tuple[int, int]], dtype: torch.dtype) -> float:
    q_lens, kv_lens = [new for new, _ in chunks], [keys for _, keys in chunks]
    counts = [-(-keys // TOKENS_PER_PAGE) for keys in kv_lens]
    page_elements = TOKENS_PER_PAGE * 2 * KV_HEADS * HEAD_DIM
    layers = 2
    kv = torch.empty(sum(counts), layers * page_elements, device="cuda", dtype=dtype).normal_()
    pages = torch.randperm(sum(counts), device="cuda", dtype=torch.int32)
    q = torch.randn(sum(q_lens), HEADS * HEAD_DIM, device="cuda", dtype=dtype)
    out = torch.empty_like(q)
    starts = [sum(counts[:s]) for s in range(len(counts))]
    row_starts = [sum(q_lens[:s]) for s in range(len(q_lens))]
    row_starts_, q_lens_, kv_lens_, starts_ = (
        torch.tensor(numbers, device="cuda", dtype=torch.int32) for numbers in (row_starts, q_lens, kv_lens, starts)
    )
    partials = allocate_prefill_partials(KV_HEADS, HEAD_DIM, torch.device("cuda"))
    blocks = torch.from_numpy(prefill_blocks(q_lens, kv_lens, HEADS, KV_HEADS, programs=partials.programs)).cuda()

    def launch(layer: int) -> None:
        prefill_attention(
            q, out, kv, row_starts_, q_lens_, kv_lens_, starts_, pages, blocks, partials, layer=layer, heads=HEADS,
            kv_heads=KV_HEADS, tokens_per_page=TOKENS_PER_PAGE, scale=HEAD_DIM**-0.5,
        )  # fmt: skip

    return graph_us([lambda i=i: launch(i) for i in range(layers)], REPLAYS)  # type: ignore[misc]


def torch_us(chunks: list[tuple[int, int]], dtype: torch.dtype, backend: SDPBackend) -> float | None:
    """Chunks alike as one batch. Over a prefix only flash attention has the mask."""
    new, keys = chunks[0]
    q = torch.randn(len(chunks), HEADS, new, HEAD_DIM, device="cuda", dtype=dtype)
    k, v = torch.randn(2, len(chunks), KV_HEADS, keys, HEAD_DIM, device="cuda", dtype=dtype)
    square = new == keys

    def attend() -> torch.Tensor:
        if square:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        mask = causal_lower_right(new, keys)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)  # type: ignore[arg-type]

    try:
        with sdpa_kernel(backend):
            return graph_us([attend, attend], REPLAYS)
    except RuntimeError:
        return None


def main() -> None:
    print(f"{'new over cached':22} {'µs':>9} {'TFLOP/s':>8} {'%':>4} {'flash':>9} {'cuDNN':>9} µs")
    dtype = torch.bfloat16
    for name, chunks in CASES.items():
        us, flops = ours_us(chunks, dtype), causal_flops(chunks)
        beside: list[float | None] = [None, None]
        if len(set(chunks)) == 1:
            backends = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
            beside = [torch_us(chunks, dtype, backend) for backend in backends]
        others = " ".join(f"{'-':>9}" if other is None else f"{other:9.1f}" for other in beside)
        share = flops / us * 1e6 / PRODUCT_FLOPS
        print(f"{name:22} {us:9.1f} {flops / us / 1e6:8.0f} {100 * share:4.0f} {others}", flush=True)


if __name__ == "__main__":
    main()
