"""The attention kernels against their references, one launch at a time: the lengths, and the comparisons."""

from __future__ import annotations

import random
from typing import Any

import torch

from kernels import reference_attention as reference
from kernels.decode_attention import FP8_TUNING, TUNING, allocate_decode_plan, decode_attention, plan_decode
from kernels.prefill_attention import allocate_prefill_partials, prefill_attention
from kernels.prefill_blocks import FIELDS, prefill_blocks
from support.kernels.paged_kv import DEVICE, Shape, assert_same, int32, paged

ON_GPU = torch.cuda.is_available()
LENGTHS = {
    "one": [1],
    "a page": [16, 17, 15],
    "a tile": [64, 63, 65, 128, 129],
    "ragged": [3, 200, 0, 77, 1, 0, 413],
    "skewed": [*([5] * 12), 1500],
    "long": [2000],
    "nobody": [0, 0],
}
GPU_LENGTHS = {"many": [(37 * i) % 700 for i in range(256)], "very long": [50_000, 20], "spread": [8192] * 9}
# (new tokens, keys) of each chunk
CHUNKS = {
    "one token": [(1, 1)],
    "one token late": [(1, 130), (1, 64), (1, 65)],
    "a whole prompt": [(200, 200)],
    "tiles": [(64, 64), (63, 63), (65, 65), (128, 128)],
    "over a prefix": [(50, 163), (33, 300)],
    "nothing among others": [(0, 40), (17, 17), (0, 0), (5, 90)],
    "nothing": [(0, 7)],
}
GPU_CHUNKS = {
    "long": [(3000, 3000), (1000, 5000), (1, 9000), (17, 33)],
    "many": [(i % 140, i % 140 + 61 * (i % 5)) for i in range(64)],
}


def check_decode(
    shape: Shape,
    kv_lens: list[int],
    dtype: torch.dtype,
    *,
    programs: int | None = None,
    shared: int = 0,
    fp8: bool = False,
) -> torch.Tensor:
    """One launch for two layers' worth of K and V, into NaN-filled rows, some of which no kernel may write."""
    torch.manual_seed(len(kv_lens))
    dice = random.Random(sum(kv_lens))
    total_rows = len(kv_lens) + 2
    rows = dice.sample(range(total_rows), len(kv_lens))
    # A sequence that is not there may name any row, a live one too.
    rows = [row if keys else rows[dice.randrange(len(rows))] for row, keys in zip(rows, kv_lens, strict=True)]
    # q is a view into a row of q, K and V, as a projection makes it.
    qkv = torch.randn(total_rows, shape.q_size + 2 * shape.kv_heads * shape.head_dim, dtype=torch.float32)
    q = qkv.to(dtype).to(DEVICE)[:, : shape.q_size]
    plan = allocate_decode_plan(
        len(kv_lens) + 3, shape.heads, shape.kv_heads, shape.head_dim, DEVICE,
        programs=programs or (None if ON_GPU else 12), tuning=FP8_TUNING if fp8 else TUNING,
    )  # fmt: skip
    plan.partials.fill_(torch.nan)
    plan.weights.fill_(torch.nan)
    out = torch.empty(0)
    planned = False
    for layer in range(shape.layers):  # a second layer finds the plan as the first left it
        arena = paged(shape, kv_lens, dtype, layer=layer, dice=random.Random(7), shared=shared, fp8=fp8)
        if not planned:
            plan_decode(plan, int32(rows), int32(kv_lens), int32(arena.page_starts))
            planned = True
        out = torch.full((total_rows, shape.q_size), torch.nan, dtype=dtype, device=DEVICE)
        wanted = out.clone()
        places: dict[str, Any] = {"layer": layer, "tokens_per_page": shape.tokens_per_page, "scale": shape.scale}
        decode_attention(q, out, arena.kv, arena.pages, plan, **places)
        reference.decode_attention(
            q, wanted, arena.kv, rows, kv_lens, arena.page_starts, arena.pages, heads=shape.heads,
            kv_heads=shape.kv_heads, **places,
        )  # fmt: skip
        assert wanted.isfinite().any() == any(kv_lens)
        assert_same(out, wanted)
        if ON_GPU:  # the program that finishes last differs between launches
            again = torch.full_like(out, torch.nan)
            decode_attention(q, again, arena.kv, arena.pages, plan, **places)
            assert torch.equal(out.nan_to_num(), again.nan_to_num()), "the same batch gave other bits"
    assert not plan.arrivals.any()
    return out


def check_prefill(
    shape: Shape,
    chunks: list[tuple[int, int]],
    dtype: torch.dtype,
    *,
    shared: int = 0,
    programs: int | None = None,
    fp8: bool = False,
) -> bool:
    """Whether any block's keys were split. `programs`: None where none shall be."""
    q_lens, kv_lens = [new for new, _ in chunks], [keys for _, keys in chunks]
    torch.manual_seed(len(chunks))
    layer = shape.layers - 1
    arena = paged(shape, kv_lens, dtype, layer=layer, dice=random.Random(sum(kv_lens)), shared=shared, fp8=fp8)
    # Chunks lie in the rows in another order than in the lists, with unused rows between them.
    order = random.Random(5).sample(range(len(chunks)), len(chunks))
    row_starts, total_rows = [0] * len(chunks), 2
    for s in order:
        row_starts[s] = total_rows
        total_rows += q_lens[s] + s % 2
    # q is a view into a row of q, K and V, as a projection makes it.
    qkv = torch.randn(total_rows, shape.q_size + 2 * shape.kv_heads * shape.head_dim)
    q = qkv.to(dtype).to(DEVICE)[:, : shape.q_size]
    out = torch.full((total_rows, shape.q_size), torch.nan, dtype=dtype, device=DEVICE)
    wanted = out.clone()
    partials = None
    if programs is not None:
        partials = allocate_prefill_partials(shape.kv_heads, shape.head_dim, DEVICE, programs=programs)
        partials.partials.fill_(torch.nan)
        partials.weights.fill_(torch.nan)
    blocks = prefill_blocks(q_lens, kv_lens, shape.heads, shape.kv_heads, programs=programs or 0)
    padding = torch.full((2, FIELDS), -1, dtype=torch.int32)
    padded = torch.cat((torch.from_numpy(blocks), padding)).to(DEVICE)
    places: dict[str, Any] = {
        "layer": layer, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "tokens_per_page": shape.tokens_per_page, "scale": shape.scale,
    }  # fmt: skip
    prefill_attention(
        q, out, arena.kv, int32(row_starts), int32(q_lens), int32(kv_lens), int32(arena.page_starts), arena.pages,
        padded, partials, **places,
    )  # fmt: skip
    reference.prefill_attention(
        q, wanted, arena.kv, row_starts, q_lens, kv_lens, arena.page_starts, arena.pages, **places
    )
    assert wanted.isfinite().any(1).sum() == sum(q_lens)
    assert_same(out, wanted)
    return bool((blocks[:, 6] > 1).any())
