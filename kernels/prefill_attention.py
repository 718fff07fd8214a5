"""Causal attention of chunks of new tokens over paged K and V, cached prefixes included: one launch for all chunks.

It knows row numbers, page numbers and lengths; it must never know sequences' owners, nor why a row is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

BLOCK_ROWS = 128  # rows of a block: its queries × the query heads of one K/V head
BLOCK_KEYS = 32
STAGES = 4
WARPS = 4


def prefill_blocks(q_lens: Sequence[int], kv_lens: Sequence[int], heads: int, kv_heads: int) -> npt.NDArray[np.int32]:
    """The blocks of one step [blocks, 2]: (sequence, first query), those with most keys first, so that none of them is
    left to the end. The same for all layers. `q_lens` new tokens, `kv_lens` keys of each sequence, the new included."""
    queries = _queries_per_block(heads, kv_heads)
    blocks = [(s, first) for s, new in enumerate(q_lens) for first in range(0, new, queries)]
    keys = [kv_lens[s] - q_lens[s] + min(first + queries, q_lens[s]) for s, first in blocks]
    order = np.argsort(-np.array(keys, dtype=np.int64), kind="stable")
    return np.array(blocks, dtype=np.int32).reshape(-1, 2)[order]


def _queries_per_block(heads: int, kv_heads: int) -> int:
    return BLOCK_ROWS // (heads // kv_heads)


@triton.jit  # type: ignore[untyped-decorator]
def _attend_keys(  # type: ignore[no-untyped-def]
    summed, highest, total, queries, kv, pages, seen, begin, end, page_stride, scale,
    MASKED: tl.constexpr, KV_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take the keys [begin, end) into the running softmax, in base 2. MASKED: row r sees keys below seen[r] only, and
    what lies beyond `end` is not read; else every row sees every key, and the range is whole tiles."""
    dim = tl.arange(0, BLOCK_DIM)
    page = tl.load(
        pages + (begin + tl.arange(0, BLOCK_KEYS)) // TOKENS_PER_PAGE, begin + tl.arange(0, BLOCK_KEYS) < end, 0
    )
    for start in tl.range(begin, end, BLOCK_KEYS, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK_KEYS)
        token = page.to(tl.int64) * page_stride + (key % TOKENS_PER_PAGE) * (2 * KV_SIZE)
        # A tile ahead: K and V then wait for no other load, and all stages of the pipeline are theirs.
        page = tl.load(pages + (key + BLOCK_KEYS) // TOKENS_PER_PAGE, mask=key + BLOCK_KEYS < end, other=0)
        # The loads are masked, not the products: what lies beyond the end may be another's NaN, and 0 · NaN is NaN.
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


@triton.jit  # type: ignore[untyped-decorator]
def _prefill_kernel(  # type: ignore[no-untyped-def]
    q, out, kv, row_starts, q_lens, kv_lens, page_starts, pages, blocks,
    q_stride, out_stride, page_stride, layer_start, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    KV_SIZE: tl.constexpr = KV_HEADS * HEAD_DIM
    block = blocks + 2 * (tl.program_id(0) // KV_HEADS)
    head = tl.program_id(0) % KV_HEADS
    sequence = tl.load(block)
    first = tl.load(block + 1)
    if sequence >= 0:
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
        seen_by_all = (before + first + 1) // BLOCK_KEYS * BLOCK_KEYS
        summed, highest, total = _attend_keys(
            summed, highest, total, queries, kv, pages, query, 0, seen_by_all, page_stride, scale,
            False, KV_SIZE, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_DIM, BLOCK_KEYS, STAGES,
        )  # fmt: skip
        summed, highest, total = _attend_keys(
            summed, highest, total, queries, kv, pages, before + query + 1,
            seen_by_all, before + tl.minimum(first + QUERIES, new), page_stride, scale,
            True, KV_SIZE, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_DIM, BLOCK_KEYS, STAGES,
        )  # fmt: skip
        summed = summed / total[:, None]
        tl.store(out + row[:, None] * out_stride + column, summed.to(out.dtype.element_ty), mask=mine)


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
    [layers, tokens_per_page, K then V, kv_heads, head_dim] and perhaps waste; the new tokens' K and V are there.
    `row_starts`, `q_lens`, `kv_lens`, `page_starts` int32 [sequences]; `pages` int32 is the page tables one after
    another, that of s from page_starts[s]. `blocks` int32 [blocks, 2] is `prefill_blocks` on the device; a block of
    sequence −1 is padding. What lies beyond a sequence's keys may be NaN. `scale` > 0. Float32 softmax and sums.

    After FlashAttention-2 (Dao 2023); the query heads of one K/V head share a block, so that K and V are read once for
    them, and a chunk of a few tokens still fills it.
    """
    head_dim = q.shape[1] // heads
    run = tokens_per_page * 2 * kv_heads * head_dim
    assert q.shape == out.shape
    assert q.dtype == out.dtype == kv.dtype
    assert heads % kv_heads == 0
    assert q.stride(1) == out.stride(1) == kv.stride(1) == 1
    assert (layer + 1) * run <= kv.shape[1]
    for tensor in (row_starts, q_lens, kv_lens, page_starts, pages, blocks):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
    assert blocks.shape[1:] == (2,)
    if not blocks.shape[0]:
        return
    _prefill_kernel[(blocks.shape[0] * kv_heads,)](
        q, out, kv, row_starts, q_lens, kv_lens, page_starts, pages, blocks,
        q.stride(0), out.stride(0), kv.stride(0), layer * run, scale * math.log2(math.e),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, HEAD_DIM=head_dim, TOKENS_PER_PAGE=tokens_per_page,
        QUERIES=_queries_per_block(heads, kv_heads), BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_DIM=max(16, triton.next_power_of_2(head_dim)), BLOCK_KEYS=BLOCK_KEYS, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
