"""Causal attention of chunks of new tokens over paged K and V, cached prefixes included: one launch for all chunks.

Inputs are row numbers, page numbers and lengths.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.fp8_attention import converts_in_pairs, find_runs, fp8_numbers, fp8_queries, query_exponents
from kernels.launch import await_previous, launch_options, let_next_start
from kernels.prefill_blocks import BLOCK_KEYS, BLOCK_ROWS, FIELDS, blocks_split_max, parts_max, queries_per_block
from kernels.split_attention import combined_parts

STAGES = 3
WARPS = 4
FP8_BLOCK_KEYS = 64
FP8_STAGES = 3
FP8_WARPS = 8
PROGRAMS_PER_SM = 2  # resident at once
COMBINED_ROWS = 16
COMBINED_PARTS = 4


@dataclass(frozen=True, slots=True)
class PrefillPartials:
    """Space for partial results of blocks with split keys, shared by all layers. No two launches may use it at once."""

    programs: int  # to keep busy
    blocks_max: int  # blocks of queries that may be split
    partials: torch.Tensor  # float32 [parts, kv_heads × BLOCK_ROWS, head_dim]
    weights: torch.Tensor  # float32 [parts, kv_heads × BLOCK_ROWS]

    @property
    def parts_max(self) -> int:
        return self.weights.shape[0]

    @property
    def nbytes(self) -> int:
        return self.partials.nbytes + self.weights.nbytes


def allocate_prefill_partials(
    kv_heads: int, head_dim: int, device: torch.device, *, programs: int | None = None
) -> PrefillPartials:
    """`programs`: by default as many as the device can run at once. Llama-3.1-8B on 132 multiprocessors takes 23 MB."""
    if programs is None:
        programs = torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_PER_SM
    parts, rows = parts_max(programs, kv_heads), kv_heads * BLOCK_ROWS
    return PrefillPartials(
        programs=programs,
        blocks_max=blocks_split_max(programs, kv_heads),
        partials=torch.empty(parts, rows, head_dim, dtype=torch.float32, device=device),
        weights=torch.empty(parts, rows, dtype=torch.float32, device=device),
    )


@triton.jit
def _attend_keys(
    summed, highest, total, queries, kv, pages, seen, begin, end, page_stride, scale,
    MASKED: tl.constexpr, KV_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take the keys [begin, end) into the running softmax, in base 2. MASKED: row r sees keys below seen[r] only, and
    keys beyond `end` are not read; else every row sees every key, and the range is whole tiles."""
    dim = tl.arange(0, BLOCK_DIM)
    page = tl.load(
        pages + (begin + tl.arange(0, BLOCK_KEYS)) // TOKENS_PER_PAGE, begin + tl.arange(0, BLOCK_KEYS) < end, 0
    )
    for start in tl.range(begin, end, BLOCK_KEYS, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK_KEYS)
        token = page.to(tl.int64) * page_stride + (key % TOKENS_PER_PAGE) * (2 * KV_SIZE)
        # A tile ahead: K and V then wait for no other load, and use all stages of the pipeline.
        page = tl.load(pages + (key + BLOCK_KEYS) // TOKENS_PER_PAGE, mask=key + BLOCK_KEYS < end, other=0)
        # The loads are masked, not the products: another request's NaN may lie beyond the end, and 0 · NaN is NaN.
        at = kv + token[:, None] + dim[None, :]
        if MASKED:
            there = (key[:, None] < end) & (dim[None, :] < HEAD_DIM)
            keys = tl.load(at, mask=there, other=0.0)
            values = tl.load(at + KV_SIZE, mask=there, other=0.0)
        elif HEAD_DIM == BLOCK_DIM:
            keys = tl.load(at)
            values = tl.load(at + KV_SIZE)
        else:
            keys = tl.load(at, mask=dim[None, :] < HEAD_DIM, other=0.0)
            values = tl.load(at + KV_SIZE, mask=dim[None, :] < HEAD_DIM, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if MASKED:
            scores = tl.where(key[None, :] < seen[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * scale)
        kept = tl.exp2(highest - higher)
        p = tl.exp2(scores * scale - higher[:, None])
        total = total * kept + tl.sum(p, 1)
        summed = tl.dot(p.to(values.dtype), values, summed * kept[:, None], input_precision="ieee")
        highest = higher
    return summed, highest, total


@triton.jit
def _attend_fp8_keys(
    summed, highest, total, queries, factor, kv, scales, pages, seen, begin, end, page_stride, scales_stride,
    MASKED: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr, STAGES: tl.constexpr, IN_PAIRS: tl.constexpr,
):  # fmt: skip
    """`_attend_keys` of K and V in fp8; `scales` are the scales of the head's keys; `factor` [rows] is the factor that
    the scores of `fp8_queries` lack.

    A tile is multiplied by its scales before the products: it has fewer numbers than they have scores."""
    KV_SIZE: tl.constexpr = KV_HEADS * HEAD_DIM
    dim = tl.arange(0, BLOCK_DIM)
    of_tile = tl.arange(0, BLOCK_KEYS)
    key = begin + of_tile
    page = tl.load(pages + key // TOKENS_PER_PAGE, mask=key < end, other=0)
    token = page.to(tl.int64) * page_stride + (key % TOKENS_PER_PAGE) * (2 * KV_SIZE)
    at = scales + page.to(tl.int64) * scales_stride + key % TOKENS_PER_PAGE
    key_scales = tl.load(at, mask=key < end, other=0.0)
    value_scales = tl.load(at + KV_HEADS * TOKENS_PER_PAGE, mask=key < end, other=0.0)
    key += BLOCK_KEYS
    next_page = tl.load(pages + key // TOKENS_PER_PAGE, mask=key < end, other=0)
    for start in tl.range(begin, end, BLOCK_KEYS, num_stages=STAGES):
        key = start + of_tile
        # The loads are masked, not the products: another request's NaN may lie beyond the end, and 0 · NaN is NaN.
        at = kv + token[:, None] + dim[None, :]
        if MASKED:
            there = (key[:, None] < end) & (dim[None, :] < HEAD_DIM)
            keys = tl.load(at, mask=there, other=0)
            values = tl.load(at + KV_SIZE, mask=there, other=0)
        elif HEAD_DIM == BLOCK_DIM:
            keys = tl.load(at)
            values = tl.load(at + KV_SIZE)
        else:
            keys = tl.load(at, mask=dim[None, :] < HEAD_DIM, other=0)
            values = tl.load(at + KV_SIZE, mask=dim[None, :] < HEAD_DIM, other=0)
        # Scales are too small for the pipeline's copies, so they are loaded one tile ahead, and page numbers two. Each
        # iteration computes the values that it hands to the next: Triton does not pipeline a loop that passes a value
        # on unchanged.
        following = key + BLOCK_KEYS
        at = scales + next_page.to(tl.int64) * scales_stride + following % TOKENS_PER_PAGE
        next_key_scales = tl.load(at, mask=following < end, other=0.0)
        next_value_scales = tl.load(at + KV_HEADS * TOKENS_PER_PAGE, mask=following < end, other=0.0)
        token = next_page.to(tl.int64) * page_stride + (following % TOKENS_PER_PAGE) * (2 * KV_SIZE)
        following += BLOCK_KEYS
        next_page = tl.load(pages + following // TOKENS_PER_PAGE, mask=following < end, other=0)
        keys = fp8_numbers(keys, queries.dtype, IN_PAIRS) * key_scales.to(queries.dtype)[:, None]
        values = fp8_numbers(values, queries.dtype, IN_PAIRS) * value_scales.to(queries.dtype)[:, None]
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * factor[:, None]
        if MASKED:
            scores = tl.where(key[None, :] < seen[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        kept = tl.exp2(highest - higher)
        p = tl.exp2(scores - higher[:, None])
        total = total * kept + tl.sum(p, 1)
        summed = tl.dot(p.to(values.dtype), values, summed * kept[:, None], input_precision="ieee")
        highest = higher
        key_scales = next_key_scales
        value_scales = next_value_scales
    return summed, highest, total


@triton.jit
def _prefill_kernel(
    q, out, kv, scales, row_starts, q_lens, kv_lens, page_starts, pages, blocks, partials, weights,
    q_stride, out_stride, page_stride, layer_start, scales_stride, scales_start, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    FIELDS: tl.constexpr, QUERIES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, STAGES: tl.constexpr, IN_PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    KV_SIZE: tl.constexpr = KV_HEADS * HEAD_DIM
    let_next_start(PDL)
    await_previous(PDL)
    block = blocks + FIELDS * (tl.program_id(0) // KV_HEADS)
    head = tl.program_id(0) % KV_HEADS
    sequence = tl.load(block)
    if sequence >= 0:
        first = tl.load(block + 1)
        begin = tl.load(block + 2)
        end = tl.load(block + 3)
        new = tl.load(q_lens + sequence)
        before = tl.load(kv_lens + sequence) - new
        line = tl.arange(0, BLOCK_ROWS)
        dim = tl.arange(0, BLOCK_DIM)
        query = first + line // GROUP
        mine = (line[:, None] < QUERIES * GROUP) & (query[:, None] < new) & (dim[None, :] < HEAD_DIM)
        row = (tl.load(row_starts + sequence) + query).to(tl.int64)
        column = (head * GROUP + line % GROUP)[:, None] * HEAD_DIM + dim[None, :]
        queries = tl.load(q + row[:, None] * q_stride + column, mask=mine, other=0.0)
        highest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_ROWS], tl.float32)
        summed = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
        pages += tl.load(page_starts + sequence)
        kv += layer_start + head * HEAD_DIM
        if scales is not None:
            scales += scales_start + head * TOKENS_PER_PAGE
            if queries.dtype == tl.bfloat16:
                exponent = query_exponents(queries.to(tl.float32))
            else:
                exponent = tl.zeros([BLOCK_ROWS], tl.float32)
            queries = fp8_queries(queries, exponent)
            factor = tl.exp2(exponent) * scale
            # Tiles that every row sees whole. The last tile may reach beyond the end of a split block's part.
            seen_by_all = begin + tl.maximum(tl.minimum(before + first + 1, end) - begin, 0) // BLOCK_KEYS * BLOCK_KEYS
            summed, highest, total = _attend_fp8_keys(
                summed, highest, total, queries, factor, kv, scales, pages, query, begin, seen_by_all, page_stride,
                scales_stride, False, KV_HEADS, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_DIM, BLOCK_KEYS, STAGES, IN_PAIRS,
            )  # fmt: skip
            summed, highest, total = _attend_fp8_keys(
                summed, highest, total, queries, factor, kv, scales, pages, tl.minimum(before + query + 1, end),
                seen_by_all, end, page_stride, scales_stride, True, KV_HEADS, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_DIM,
                BLOCK_KEYS, STAGES, IN_PAIRS,
            )  # fmt: skip
        else:
            seen_by_all = tl.minimum((before + first + 1) // BLOCK_KEYS * BLOCK_KEYS, end)
            summed, highest, total = _attend_keys(
                summed, highest, total, queries, kv, pages, query, begin, seen_by_all, page_stride, scale,
                False, KV_SIZE, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_DIM, BLOCK_KEYS, STAGES,
            )  # fmt: skip
            summed, highest, total = _attend_keys(
                summed, highest, total, queries, kv, pages, before + query + 1, seen_by_all, end, page_stride, scale,
                True, KV_SIZE, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_DIM, BLOCK_KEYS, STAGES,
            )  # fmt: skip
        summed = summed / total[:, None]
        at_out = out + row[:, None] * out_stride + column
        if partials is None:
            tl.store(at_out, summed.to(out.dtype.element_ty), mask=mine)
        else:
            if tl.load(block + 6) == 1:
                tl.store(at_out, summed.to(out.dtype.element_ty), mask=mine)
            else:
                at = (tl.load(block + 4) * KV_HEADS + head) * BLOCK_ROWS + line
                tl.store(partials + at.to(tl.int64)[:, None] * HEAD_DIM + dim[None, :], summed, mask=mine)
                tl.store(weights + at, highest + tl.log2(total), mask=(line < QUERIES * GROUP) & (query < new))


@triton.jit
def _combine_kernel(
    out, row_starts, q_lens, blocks, partials, weights, out_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, FIELDS: tl.constexpr, QUERIES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, COMBINED_ROWS: tl.constexpr, COMBINED_PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """COMBINED_ROWS rows of one of the first blocks, if it is the first part of a split one."""
    let_next_start(PDL)
    await_previous(PDL)
    block = blocks + FIELDS * (tl.program_id(0) // KV_HEADS)
    head = tl.program_id(0) % KV_HEADS
    sequence = tl.load(block)
    first_partial = tl.load(block + 5)
    parts = tl.load(block + 6)
    if (sequence >= 0) & (parts > 1) & (tl.load(block + 4) == first_partial):
        line = tl.program_id(1) * COMBINED_ROWS + tl.arange(0, COMBINED_ROWS)
        dim = tl.arange(0, BLOCK_DIM)
        query = tl.load(block + 1) + line // GROUP
        mine = (line < QUERIES * GROUP) & (query < tl.load(q_lens + sequence))
        combined = combined_parts(
            partials, weights, first_partial, parts, head * BLOCK_ROWS + line, mine, KV_HEADS * BLOCK_ROWS,
            HEAD_DIM, COMBINED_ROWS, BLOCK_DIM, COMBINED_PARTS,
        )  # fmt: skip
        row = (tl.load(row_starts + sequence) + query).to(tl.int64)
        column = (head * GROUP + line % GROUP)[:, None] * HEAD_DIM + dim[None, :]
        mask = mine[:, None] & (dim[None, :] < HEAD_DIM)
        tl.store(out + row[:, None] * out_stride + column, combined.to(out.dtype.element_ty), mask=mask)


def prefill_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    kv: torch.Tensor,
    row_starts: torch.Tensor,
    q_lens: torch.Tensor,
    kv_lens: torch.Tensor,
    page_starts: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    partials: PrefillPartials | None = None,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    tokens_per_page: int,
    scale: float,
) -> None:
    """out[row] = softmax(scale · q[row] · Kᵀ) · V, a head at a time; query i of sequence s sees its keys below
    kv_lens[s] − q_lens[s] + i + 1, in `layer`.

    q, out [rows, heads × head_dim], contiguous within a row: the new tokens of s are the q_lens[s] rows from
    row_starts[s] on; other rows are not touched. kv [pages, page elements] is the arena in q's dtype, whose page holds
    [layers, tokens_per_page, K then V, kv_heads, head_dim] and perhaps waste. Of an arena uint8 [pages,
    page_bytes] K and V are fp8, laid out as `kv_layout` says: then products are of float16 for q of 16 bits. The new
    tokens' K and V are there.
    `row_starts`, `q_lens`, `kv_lens`, `page_starts` int32 [sequences]; `pages` int32 is the page tables one after
    another, that of s from page_starts[s]. `blocks` int32 [blocks, FIELDS] is `prefill_blocks` on the device; a block
    of sequence −1 is padding. `partials` must be given if `prefill_blocks` split keys, for as many programs; with it,
    the grids depend on nothing but the number of blocks. Numbers beyond a sequence's keys may be NaN. `scale` > 0.
    Float32 softmax and sums; the result is the same bits each time.

    After FlashAttention-2 (Dao 2023); the query heads of one K/V head share a block, so that K and V are read once for
    them, and a chunk of a few tokens still fills it.
    """
    head_dim = q.shape[1] // heads
    layer_start, scales, scales_stride, scales_start = find_runs(kv, layer, tokens_per_page, kv_heads, head_dim)
    assert q.shape == out.shape
    assert q.dtype == out.dtype
    assert kv.dtype in (q.dtype, torch.uint8)
    assert heads % kv_heads == 0
    assert q.stride(1) == out.stride(1) == kv.stride(1) == 1
    for tensor in (row_starts, q_lens, kv_lens, page_starts, pages, blocks):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
    assert blocks.shape[1:] == (FIELDS,)
    if not blocks.shape[0]:
        return
    shape: dict[str, Any] = {
        "KV_HEADS": kv_heads, "GROUP": heads // kv_heads, "HEAD_DIM": head_dim, "FIELDS": FIELDS,
        "QUERIES": queries_per_block(heads, kv_heads), "BLOCK_ROWS": BLOCK_ROWS,
        "BLOCK_DIM": max(16, triton.next_power_of_2(head_dim)), **launch_options(q.device),
    }  # fmt: skip
    tuning = {"BLOCK_KEYS": BLOCK_KEYS, "STAGES": STAGES, "num_warps": WARPS}
    if scales is not None:
        tuning = {"BLOCK_KEYS": FP8_BLOCK_KEYS, "STAGES": FP8_STAGES, "num_warps": FP8_WARPS}
    parts, weights = (None, None) if partials is None else (partials.partials, partials.weights)
    _prefill_kernel[(blocks.shape[0] * kv_heads,)](
        q, out, kv, scales, row_starts, q_lens, kv_lens, page_starts, pages, blocks, parts, weights,
        q.stride(0), out.stride(0), kv.stride(0), layer_start, scales_stride, scales_start, scale * math.log2(math.e),
        TOKENS_PER_PAGE=tokens_per_page, IN_PAIRS=converts_in_pairs(q.device), **tuning, **shape,
    )  # fmt: skip
    if partials is not None:
        assert partials.weights.shape[1] == kv_heads * BLOCK_ROWS
        grid = (min(partials.blocks_max, blocks.shape[0]) * kv_heads, BLOCK_ROWS // COMBINED_ROWS)
        if grid[0]:
            _combine_kernel[grid](
                out, row_starts, q_lens, blocks, parts, weights, out.stride(0),
                COMBINED_ROWS=COMBINED_ROWS, COMBINED_PARTS=COMBINED_PARTS, num_warps=WARPS, **shape,
            )  # fmt: skip
