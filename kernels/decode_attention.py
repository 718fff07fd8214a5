"""Attention of one new token per sequence over its paged K and V, split over the keys so that any batch fills the GPU.

Inputs are row numbers, page numbers and lengths.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.fp8_attention import converts_in_pairs, find_runs, fp8_queries, fp8_words, query_exponents
from kernels.launch import await_previous, launch_options, let_next_start
from kernels.split_attention import combined_parts


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """`programs_per_sm`: resident programs of a multiprocessor, each with `stages` tiles of K and V."""

    block_keys: int  # of one tile
    warps: int
    stages: int
    programs_per_sm: int


TUNING = DecodeTuning(block_keys=32, warps=2, stages=3, programs_per_sm=4)
FP8_TUNING = DecodeTuning(block_keys=32, warps=1, stages=1, programs_per_sm=8)
# With K and V in fp8, each product has a quarter of the dimensions, and a product has at least 16.
FP8_DIM_MIN = 64
ITEMS_PER_PROGRAM = 4  # work items per program at most, so that uneven items are balanced
TILES_MIN = 8  # tiles of an item, unless the sequence is shorter: smaller items cost more to combine than they gain
# int32 of an item in the plan: row, first key, end, page start, sequence, the sequence's first item, its items, unused
RECORD = 8
COMBINED_ELEMENTS = 8192  # partial outputs that the last program of a sequence holds in registers at once


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The distribution of one step's keys over programs, and the space for partial results; shared by all layers and by
    every batch of up to `capacity` sequences. Addresses are fixed, so captured graphs may hold them.

    An item is a range of one sequence's keys, to be read for each K/V head. No two launches may use a plan at once.
    """

    capacity: int  # sequences
    heads: int
    kv_heads: int
    head_dim: int
    tuning: DecodeTuning
    programs: int  # grid of the attention kernel
    items_max: int
    items: torch.Tensor  # int32 [1 + items_max, RECORD]; the count of items at [0, 0]
    arrivals: torch.Tensor  # int32 [capacity × kv_heads], zero between launches
    partials: torch.Tensor  # float32 [items_max, heads, head_dim], each normalised by its own items' sum
    weights: torch.Tensor  # float32 [items_max, heads], base-2 logarithm of that sum

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.items, self.arrivals, self.partials, self.weights))


def allocate_decode_plan(
    capacity: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    device: torch.device,
    *,
    programs: int | None = None,
    tuning: DecodeTuning = TUNING,
) -> DecodePlan:
    """Space of `nbytes` bytes for up to `capacity` sequences. `programs` is the grid: by default as many as the
    device can run at once. `tuning`: FP8_TUNING for K and V in fp8. 256 sequences of Llama-3.1-8B on 132
    multiprocessors take 9 MB."""
    assert capacity > 0
    assert heads % kv_heads == 0
    if programs is None:
        programs = torch.cuda.get_device_properties(device).multi_processor_count * tuning.programs_per_sm
    items_max = capacity + programs * ITEMS_PER_PROGRAM // kv_heads + 1
    return DecodePlan(
        capacity=capacity,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tuning=tuning,
        programs=programs,
        items_max=items_max,
        items=torch.zeros(1 + items_max, RECORD, dtype=torch.int32, device=device),
        arrivals=torch.zeros(capacity * kv_heads, dtype=torch.int32, device=device),
        partials=torch.empty(items_max, heads, head_dim, dtype=torch.float32, device=device),
        weights=torch.empty(items_max, heads, dtype=torch.float32, device=device),
    )


@triton.jit(do_not_specialize=["sequences"])
def _plan_kernel(
    rows, kv_lens, page_starts, items, arrivals, sequences,
    PROGRAMS: tl.constexpr, ITEMS_PER_PROGRAM: tl.constexpr, KV_HEADS: tl.constexpr, TILES_MIN: tl.constexpr,
    RECORD: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_SEQUENCES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: ranges of whole tiles, about equally long, at most PROGRAMS × ITEMS_PER_PROGRAM over all heads, and
    no sequence in more ranges than programs can work on at once."""
    let_next_start(PDL)
    await_previous(PDL)
    sequence = tl.arange(0, BLOCK_SEQUENCES)
    live = sequence < sequences
    length = tl.load(kv_lens + sequence, mask=live, other=0)
    row = tl.load(rows + sequence, mask=live, other=0)
    page_start = tl.load(page_starts + sequence, mask=live, other=0)
    tiles = tl.cdiv(length, BLOCK_KEYS)
    even = tl.cdiv(tl.sum(tiles) * KV_HEADS, PROGRAMS * ITEMS_PER_PROGRAM)
    alone = tl.cdiv(tiles * KV_HEADS, PROGRAMS)
    size = tl.maximum(tl.maximum(alone, even), TILES_MIN)
    count = tl.cdiv(tiles, size)
    size = tl.cdiv(tiles, tl.maximum(count, 1))  # of equal length rather than all but the last full
    count = tl.cdiv(tiles, tl.maximum(size, 1))
    first = tl.cumsum(count, 0) - count
    tl.store(items, tl.sum(count))
    for head in range(KV_HEADS):
        tl.store(arrivals + sequence * KV_HEADS + head, 0, mask=live)
    for part in range(tl.max(count)):
        mine = part < count
        record = items + (1 + first + part) * RECORD
        start = part * size * BLOCK_KEYS
        tl.store(record, row, mask=mine)
        tl.store(record + 1, start, mask=mine)
        tl.store(record + 2, tl.minimum(start + size * BLOCK_KEYS, length), mask=mine)
        tl.store(record + 3, page_start, mask=mine)
        tl.store(record + 4, sequence, mask=mine)
        tl.store(record + 5, first, mask=mine)
        tl.store(record + 6, count, mask=mine)


def plan_decode(plan: DecodePlan, rows: torch.Tensor, kv_lens: torch.Tensor, page_starts: torch.Tensor) -> None:
    """Distribute one step's keys over programs: once a step, before its first `decode_attention`, on the same stream.

    All int32 [sequences ≤ capacity]: `rows`, the row of q and out of each sequence; `kv_lens`, the keys it sees, its
    new token's included, or 0: a sequence that is not there, of which nothing is read or written; `page_starts`, where
    its page numbers begin in `pages`. The host reads nothing, and the grid is fixed.
    """
    sequences = rows.shape[0]
    assert sequences <= plan.capacity
    for tensor in (rows, kv_lens, page_starts):
        assert tensor.dtype == torch.int32
        assert tensor.shape == (sequences,)
        assert tensor.is_contiguous()
    _plan_kernel[(1,)](
        rows, kv_lens, page_starts, plan.items, plan.arrivals, sequences,
        PROGRAMS=plan.programs, ITEMS_PER_PROGRAM=ITEMS_PER_PROGRAM, KV_HEADS=plan.kv_heads, TILES_MIN=TILES_MIN,
        RECORD=RECORD, BLOCK_KEYS=plan.tuning.block_keys, BLOCK_SEQUENCES=triton.next_power_of_2(plan.capacity),
        num_warps=8, **launch_options(rows.device),
    )  # fmt: skip


@triton.jit
def _attend_item(
    queries, kv, pages, page, begin, end, page_stride, scale,
    KV_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Softmax over the keys [begin, end) by its running maximum, in base 2: the sum of p·V [BLOCK_ROWS, BLOCK_DIM], the
    maximum and the sum [BLOCK_ROWS], float32. `page` [BLOCK_KEYS] is the page of each key of the first tile."""
    dim = tl.arange(0, BLOCK_DIM)
    highest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    summed = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    for start in tl.range(begin, end, BLOCK_KEYS, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK_KEYS)
        token = page.to(tl.int64) * page_stride + (key % TOKENS_PER_PAGE) * (2 * KV_SIZE)
        # A tile ahead: K and V then wait for no other load, and use all stages of the pipeline.
        page = tl.load(pages + (key + BLOCK_KEYS) // TOKENS_PER_PAGE, mask=key + BLOCK_KEYS < end, other=0)
        # The loads are masked, not the products: another request's NaN may lie beyond the end, and 0 · NaN is NaN.
        there = (key[:, None] < end) & (dim[None, :] < HEAD_DIM)
        keys = tl.load(kv + token[:, None] + dim[None, :], mask=there, other=0.0)
        values = tl.load(kv + KV_SIZE + token[:, None] + dim[None, :], mask=there, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(key[None, :] < end, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        kept = tl.exp2(highest - higher)
        p = tl.exp2(scores - higher[:, None])
        total = total * kept + tl.sum(p, 1)
        summed = tl.dot(p.to(values.dtype), values, summed * kept[:, None], input_precision="ieee")
        highest = higher
    return summed, highest, total


@triton.jit
def _load_fp8_tile(
    words, scales, page, key, end, page_stride, scales_stride,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """K and V int32 [keys, WORDS] of a tile, four numbers in a word, and their scales float16 [keys]. `page` [keys] is
    the page of each key.

    The loads are masked, not the products: beyond the end another request's NaN may lie, and 0 · NaN is NaN."""
    word = tl.arange(0, WORDS)
    there = (key[:, None] < end) & (word[None, :] < HEAD_DIM // 4)
    of_token = page.to(tl.int64) * (page_stride // 4) + key % TOKENS_PER_PAGE * (KV_HEADS * HEAD_DIM // 2)
    own = words + of_token[:, None] + word[None, :]
    keys = tl.load(own, mask=there, other=0)
    values = tl.load(own + KV_HEADS * HEAD_DIM // 4, mask=there, other=0)
    at = scales + page.to(tl.int64) * scales_stride + key % TOKENS_PER_PAGE
    key_scales = tl.load(at, mask=key < end, other=1.0)
    value_scales = tl.load(at + KV_HEADS * TOKENS_PER_PAGE, mask=key < end, other=1.0)
    return keys, values, key_scales, value_scales


@triton.jit
def _attend_fp8_item(
    q, kv, scales, pages, page, begin, end, page_stride, scales_stride, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr, IN_PAIRS: tl.constexpr,
):  # fmt: skip
    """`_attend_item` of K and V in fp8, for the queries at `q`; `scales` are the scales of the head's keys.

    The scores are multiplied by K's scales. V's scale is part of its key's weight: the running maximum is that of
    weight · scale, so that p · scale, which is rounded for the product with V, is at most 1 and as exact as p is
    without scales. The next tile waits in registers, four numbers in a word, while the current tile is multiplied. The
    four bytes of the words are four products, so that the numbers of a word are never rearranged."""
    WORDS: tl.constexpr = BLOCK_DIM // 4
    word = tl.arange(0, WORDS)
    of_tile = tl.arange(0, BLOCK_KEYS)
    row = tl.arange(0, BLOCK_ROWS)
    is_word = word[None, :] < HEAD_DIM // 4
    at = q + row[:, None] * HEAD_DIM + 4 * word[None, :]
    mine = (row[:, None] < GROUP) & is_word
    q0 = tl.load(at, mask=mine, other=0.0)
    q1 = tl.load(at + 1, mask=mine, other=0.0)
    q2 = tl.load(at + 2, mask=mine, other=0.0)
    q3 = tl.load(at + 3, mask=mine, other=0.0)
    largest = tl.maximum(tl.maximum(tl.abs(q0), tl.abs(q1)), tl.maximum(tl.abs(q2), tl.abs(q3)))
    if q.dtype.element_ty == tl.bfloat16:
        exponent = query_exponents(largest.to(tl.float32))
    else:
        exponent = tl.zeros([BLOCK_ROWS], tl.float32)
    q0 = fp8_queries(q0, exponent)
    q1 = fp8_queries(q1, exponent)
    q2 = fp8_queries(q2, exponent)
    q3 = fp8_queries(q3, exponent)
    factor = tl.exp2(exponent) * scale
    highest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    out0 = tl.zeros([BLOCK_ROWS, WORDS], tl.float32)
    out1 = tl.zeros([BLOCK_ROWS, WORDS], tl.float32)
    out2 = tl.zeros([BLOCK_ROWS, WORDS], tl.float32)
    out3 = tl.zeros([BLOCK_ROWS, WORDS], tl.float32)
    words = kv.to(tl.pointer_type(tl.int32), bitcast=True)
    key = begin + of_tile
    keys, values, key_scales, value_scales = _load_fp8_tile(
        words, scales, page, key, end, page_stride, scales_stride, KV_HEADS, HEAD_DIM, TOKENS_PER_PAGE, WORDS
    )
    key += BLOCK_KEYS
    page = tl.load(pages + key // TOKENS_PER_PAGE, mask=key < end, other=0)
    for start in tl.range(begin, end, BLOCK_KEYS, num_stages=1):
        key = start + BLOCK_KEYS + of_tile  # of the next tile
        next_keys, next_values, next_key_scales, next_value_scales = _load_fp8_tile(
            words, scales, page, key, end, page_stride, scales_stride, KV_HEADS, HEAD_DIM, TOKENS_PER_PAGE, WORDS
        )
        key += BLOCK_KEYS
        page = tl.load(pages + key // TOKENS_PER_PAGE, mask=key < end, other=0)
        k0, k1, k2, k3 = fp8_words(keys, q0.dtype, IN_PAIRS)
        scores = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        scores = tl.dot(q1, tl.trans(k1), scores, input_precision="ieee")
        scores = tl.dot(q2, tl.trans(k2), scores, input_precision="ieee")
        scores = tl.dot(q3, tl.trans(k3), scores, input_precision="ieee") * factor[:, None]
        wide_scales = value_scales.to(tl.float32)
        scores = scores * key_scales.to(tl.float32)[None, :] + tl.log2(wide_scales)[None, :]
        scores = tl.where((start + of_tile)[None, :] < end, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        kept = tl.exp2(highest - higher)
        p = tl.exp2(scores - higher[:, None])
        total = total * kept + tl.sum(p * (1.0 / wide_scales)[None, :], 1)
        p = p.to(q0.dtype)
        v0, v1, v2, v3 = fp8_words(values, q0.dtype, IN_PAIRS)
        out0 = tl.dot(p, v0, out0 * kept[:, None], input_precision="ieee")
        out1 = tl.dot(p, v1, out1 * kept[:, None], input_precision="ieee")
        out2 = tl.dot(p, v2, out2 * kept[:, None], input_precision="ieee")
        out3 = tl.dot(p, v3, out3 * kept[:, None], input_precision="ieee")
        highest = higher
        keys = next_keys
        values = next_values
        key_scales = next_key_scales
        value_scales = next_value_scales
    return tl.interleave(tl.interleave(out0, out2), tl.interleave(out1, out3)), highest, total


@triton.jit
def _decode_kernel(
    q, out, kv, scales, pages, items, arrivals, partials, weights, q_stride, out_stride, page_stride, layer_start,
    scales_stride, scales_start, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TOKENS_PER_PAGE: tl.constexpr,
    RECORD: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_PARTS: tl.constexpr, STAGES: tl.constexpr, IN_PAIRS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program p takes the (item, K/V head) pairs p, p + programs, …; heads of one item are neighbours, as in memory.

    The record and the first page numbers of the next item are fetched while this one is in work."""
    in_group = tl.arange(0, BLOCK_ROWS)
    dim = tl.arange(0, BLOCK_DIM)
    mine = (in_group[:, None] < GROUP) & (dim[None, :] < HEAD_DIM)
    offset = in_group[:, None] * HEAD_DIM + dim[None, :]
    first_keys = tl.arange(0, BLOCK_KEYS)
    let_next_start(PDL)
    await_previous(PDL)
    items += RECORD
    index = tl.program_id(0)
    work = tl.load(items - RECORD) * KV_HEADS
    if index >= work:
        return
    record = items + index // KV_HEADS * RECORD
    row = tl.load(record)
    begin = tl.load(record + 1)
    end = tl.load(record + 2)
    page_start = tl.load(record + 3)
    count = tl.load(record + 6)
    page = tl.load(pages + page_start + (begin + first_keys) // TOKENS_PER_PAGE, mask=begin + first_keys < end, other=0)
    while index < work:
        head = index % KV_HEADS
        item = index // KV_HEADS
        index += tl.num_programs(0)
        next_record = items + tl.minimum(index, work - 1) // KV_HEADS * RECORD
        next_row = tl.load(next_record)
        next_begin = tl.load(next_record + 1)
        next_end = tl.load(next_record + 2)
        next_page_start = tl.load(next_record + 3)
        next_count = tl.load(next_record + 6)
        own_q = q + row.to(tl.int64) * q_stride + head * GROUP * HEAD_DIM
        if scales is not None:
            summed, highest, total = _attend_fp8_item(
                own_q, kv + layer_start + head * HEAD_DIM, scales + scales_start + head * TOKENS_PER_PAGE,
                pages + page_start, page, begin, end, page_stride, scales_stride, scale,
                KV_HEADS, GROUP, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_ROWS, BLOCK_DIM, BLOCK_KEYS, IN_PAIRS,
            )  # fmt: skip
        else:
            queries = tl.load(own_q + offset, mask=mine, other=0.0)
            summed, highest, total = _attend_item(
                queries, kv + layer_start + head * HEAD_DIM, pages + page_start, page, begin, end, page_stride, scale,
                KV_HEADS * HEAD_DIM, HEAD_DIM, TOKENS_PER_PAGE, BLOCK_ROWS, BLOCK_DIM, BLOCK_KEYS, STAGES,
            )  # fmt: skip
        key = next_begin + first_keys
        page = tl.load(pages + next_page_start + key // TOKENS_PER_PAGE, mask=key < next_end, other=0)
        summed = summed / total[:, None]
        if count == 1:
            of_out = row.to(tl.int64) * out_stride + head * GROUP * HEAD_DIM + offset
            tl.store(out + of_out, summed.to(out.dtype.element_ty), mask=mine)
        else:
            at = (item * KV_HEADS + head) * GROUP
            tl.store(partials + at.to(tl.int64) * HEAD_DIM + offset, summed, mask=mine)
            tl.store(weights + at + in_group, highest + tl.log2(total), mask=in_group < GROUP)
            tl.debug_barrier()  # every thread has written before one of them signals it
            arrived = arrivals + tl.load(items + item * RECORD + 4) * KV_HEADS + head
            if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == count - 1:
                tl.store(arrived, 0)  # for the next layer
                head_in_group = tl.arange(0, GROUP_ROWS)
                there = head_in_group < GROUP
                combined = combined_parts(
                    partials, weights, tl.load(items + item * RECORD + 5), count, head * GROUP + head_in_group, there,
                    KV_HEADS * GROUP, HEAD_DIM, GROUP_ROWS, BLOCK_DIM, BLOCK_PARTS,
                )  # fmt: skip
                of_out = (
                    row.to(tl.int64) * out_stride + (head * GROUP + head_in_group[:, None]) * HEAD_DIM + dim[None, :]
                )
                there = there[:, None] & (dim[None, :] < HEAD_DIM)
                tl.store(out + of_out, combined.to(out.dtype.element_ty), mask=there)
        row = next_row
        begin = next_begin
        end = next_end
        page_start = next_page_start
        count = next_count


def decode_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    kv: torch.Tensor,
    pages: torch.Tensor,
    plan: DecodePlan,
    *,
    layer: int,
    tokens_per_page: int,
    scale: float,
) -> None:
    """out[row] = softmax(scale · q[row] · Kᵀ) · V, a head at a time, over the keys of the row's sequence in `layer`.

    q, out [rows, heads × head_dim], contiguous within a row; rows that no planned sequence names are not touched.
    kv [pages, page elements] is the arena in q's dtype, whose page holds [layers, tokens_per_page, K then V, kv_heads,
    head_dim] and perhaps waste. Of an arena uint8 [pages, page_bytes] K and V are fp8, laid out as `kv_layout` says:
    then products are of float16 for q of 16 bits, and the plan's tuning should be FP8_TUNING. `pages` int32 is the page
    tables one after another. `plan` has the rows and ranges: `plan_decode` must have been called for this step.
    Numbers beyond a sequence's keys may be NaN. Float32 softmax and sums; the result is the same bits each time. The
    grid is the plan's, whatever the batch, and the host reads nothing.

    Split over the keys after flash-decoding (Dao et al. 2023); the query heads of one K/V head are the rows of one
    product; the last program to finish a sequence combines its parts.
    """
    heads, kv_heads, head_dim = plan.heads, plan.kv_heads, plan.head_dim
    group = heads // kv_heads
    layer_start, scales, scales_stride, scales_start = find_runs(kv, layer, tokens_per_page, kv_heads, head_dim)
    tuning = plan.tuning
    assert scales is None or kv.stride(0) % 4 == head_dim % 4 == 0, "fp8 numbers are read as words of four"
    assert q.shape == out.shape
    assert q.shape[1] == heads * head_dim
    assert q.dtype == out.dtype
    assert kv.dtype in (q.dtype, torch.uint8)
    assert pages.dtype == torch.int32
    assert q.stride(1) == out.stride(1) == kv.stride(1) == pages.stride(0) == 1
    block_dim = max(16 if scales is None else FP8_DIM_MIN, triton.next_power_of_2(head_dim))
    group_rows = triton.next_power_of_2(group)
    _decode_kernel[(plan.programs,)](
        q, out, kv, scales, pages, plan.items, plan.arrivals, plan.partials, plan.weights,
        q.stride(0), out.stride(0), kv.stride(0), layer_start, scales_stride, scales_start, scale * math.log2(math.e),
        KV_HEADS=kv_heads, GROUP=group, HEAD_DIM=head_dim, TOKENS_PER_PAGE=tokens_per_page, RECORD=RECORD,
        BLOCK_ROWS=max(16, group_rows), GROUP_ROWS=group_rows, BLOCK_DIM=block_dim,
        BLOCK_KEYS=tuning.block_keys, BLOCK_PARTS=max(1, COMBINED_ELEMENTS // (group_rows * block_dim)),
        STAGES=tuning.stages, IN_PAIRS=converts_in_pairs(q.device), num_warps=tuning.warps,
        **launch_options(q.device),
    )  # fmt: skip
