"""y[rows of a] += scale_a · (x[rows of a] · A_aᵀ) · B_aᵀ for the rows of many adapters of different ranks, in one
launch: programs draw tickets, first for parts of the shrink (h = x · Aᵀ), then of the expand (y from h and B).

The grid is fixed and the work is data, so that one captured graph serves any mix; the programs that the device can run
at once share all of the work. It knows tiles and rows, no adapters.
"""

# Triton's language has no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.lora_work import (
    DECODE_BLOCK_ROWS,
    FIELDS,
    PREFILL_BLOCK_ROWS,
    SPLITS_MAX,
    TILE_ALIGN_BYTES,
    TILE_RANK,
    LoraScratch,
    LoraWork,
    Stack,
    TileTable,
)

MODULES_STACKED_MAX = 3
# The tiles of an adapter with at most TILES_AT_ONCE tiles are multiplied at once, FEW_COLUMNS columns at a time, which
# divides every block_n.
TILES_AT_ONCE = 4
FEW_COLUMNS = 64


class Tuning(NamedTuple):
    """How a launch is divided. `block_k`: elements of the inner size per shrink iteration; `block_n`: columns per
    expand iteration; `*_stages`: software pipeline stages; `*_quarters`: target number of work units, in quarters of
    the number of programs: many small units end sooner, a few large ones waste less."""

    block_k: int
    block_n: int
    shrink_stages: int
    expand_stages: int
    shrink_quarters: int
    expand_quarters: int
    warps: int
    programs_per_sm: int
    registers_max: int


# By (rows a block, modules stacked). The decode ones were measured on an H200 with Llama-3.1-8B's shapes at rank 16, 1
# to 256 adapters, beside the base products: docs/LOG.md.
TUNING = {
    (DECODE_BLOCK_ROWS, 1): Tuning(128, 256, 4, 4, 4, 4, warps=4, programs_per_sm=4, registers_max=128),
    (DECODE_BLOCK_ROWS, 2): Tuning(128, 256, 4, 4, 4, 8, warps=4, programs_per_sm=4, registers_max=128),
    (DECODE_BLOCK_ROWS, 3): Tuning(128, 256, 4, 4, 2, 4, warps=4, programs_per_sm=2, registers_max=255),
    (PREFILL_BLOCK_ROWS, 1): Tuning(128, 128, 3, 3, 4, 8, warps=4, programs_per_sm=2, registers_max=255),
    (PREFILL_BLOCK_ROWS, 2): Tuning(128, 128, 3, 3, 4, 8, warps=4, programs_per_sm=2, registers_max=255),
    (PREFILL_BLOCK_ROWS, 3): Tuning(128, 128, 3, 3, 4, 8, warps=4, programs_per_sm=2, registers_max=255),
}


@triton.jit
def _shrink_unit(
    piece, split, splits, x, planes, arena, entries, x_row, planes_row, planes_split, entry_row, entry_module,
    in_features,
    MODULES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr, UNIT: tl.constexpr, RANK: tl.constexpr,
    STAGES: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """planes[split, rows of a piece, rank rows of its tile of every module] = x · Aᵀ over a part of the inner size."""
    table_row = tl.load(piece)
    first = tl.load(piece + 1)
    rows = tl.load(piece + 2)
    tile = tl.load(piece + 3)
    # Rank rows of the stacked modules side by side: column c is rank row c % RANK of module c // RANK.
    COLUMNS: tl.constexpr = triton.next_power_of_2(MODULES) * RANK
    column = tl.arange(0, COLUMNS)
    stacked = column // RANK
    rank_row = column % RANK
    known = stacked < MODULES
    own = entries + table_row.to(tl.int64) * entry_row + stacked * entry_module
    rank = (tl.load(own, mask=known, other=0) & 0xFFFFFFFF).to(tl.int32)
    place = tl.load(own + 1 + tile, mask=known, other=0)  # an absent tile's place is not used
    live = known & (tile * RANK + rank_row < rank)
    a = arena + place * UNIT + rank_row * in_features
    row = tl.arange(0, BLOCK_ROWS)
    row_live = row < rows
    x_own = x + (first + row).to(tl.int64) * x_row
    blocks = tl.cdiv(in_features, BLOCK_K)
    acc = tl.zeros((BLOCK_ROWS, COLUMNS), dtype=tl.float32)
    for block in tl.range(split * blocks // splits, (split + 1) * blocks // splits, num_stages=STAGES):
        at = block * BLOCK_K + tl.arange(0, BLOCK_K)
        x_mask = row_live[:, None]
        a_mask = live[:, None]
        if not EVEN_K:
            x_mask = x_mask & (at < in_features)[None, :]
            a_mask = a_mask & (at < in_features)[None, :]
        x_part = tl.load(x_own[:, None] + at[None, :], mask=x_mask, other=0.0)
        a_part = tl.load(a[:, None] + at[None, :], mask=a_mask, other=0.0)
        acc = tl.dot(x_part, a_part.trans(), acc, input_precision="ieee")
    out = planes + split * planes_split + (first + row).to(tl.int64)[:, None] * planes_row
    tl.store(out + (tile * MODULES * RANK + column)[None, :], acc, mask=row_live[:, None] & known[None, :])


@triton.jit
def _h(
    planes, columns, rows, splits, planes_row, planes_split,
    BLOCK_ROWS: tl.constexpr, SPLITS_MAX: tl.constexpr,
):  # fmt: skip
    """h [rows, columns] of some rank rows: the sum of their planes, always in the same order."""
    row = tl.arange(0, BLOCK_ROWS)
    at = planes + row[:, None] * planes_row + columns[None, :]
    h = tl.zeros(at.shape, dtype=tl.float32)
    for split in tl.static_range(SPLITS_MAX):
        live = row < tl.where(split < splits, rows, 0)
        # Not from the first-level cache: other multiprocessors have just written it.
        h += tl.load(at + split * planes_split, mask=live[:, None], other=0.0, cache_modifier=".cg")
    return h


@triton.jit
def _walk(
    h, b_rows, b_live, y, y_live, scale, begin, stop, width,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, EVEN_N: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """y[:, begin ≤ column < stop] = (ADD: +=) scale · h · B: h remains in registers, and B is streamed."""
    for first in tl.range(begin, stop, BLOCK, num_stages=STAGES):
        at = (first + tl.arange(0, BLOCK))[None, :]
        b_mask = b_live[:, None]
        y_mask = y_live[:, None]
        if not EVEN_N:
            b_mask = b_mask & (at < width)
            y_mask = y_mask & (at < width)
        b = tl.load(b_rows[:, None] + at, mask=b_mask, other=0.0)
        out = tl.dot(h, b, input_precision="ieee") * scale
        if ADD:
            out += tl.load(y + at, mask=y_mask, other=0.0).to(tl.float32)
        tl.store(y + at, out.to(y.dtype.element_ty), mask=y_mask)


@triton.jit
def _prefetch(pointers, count):
    """Prefetch `count` bytes (a multiple of 16) at each pointer into the second-level cache."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r", [pointers, count],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _expand_one_tile(
    h_own, b, rank_row, rank, height, rows, splits, planes_row, planes_split, y_own, y_live, scale, from_column,
    to_column, width,
    BLOCK_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, RANK: tl.constexpr, SPLITS_MAX: tl.constexpr,
    STAGES: tl.constexpr, EVEN_N: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Columns from_column ≤ c < to_column of y, for a module of one tile; without a tile (rank 0), zeros."""
    h = _h(h_own, rank_row, rows, splits, planes_row, planes_split, BLOCK_ROWS, SPLITS_MAX)
    h = tl.where((rank_row < rank)[None, :], h, 0.0).to(b.dtype.element_ty)
    _walk(
        h, b + rank_row * width, rank_row < height, y_own, y_live, scale, from_column, to_column, width,
        BLOCK_N, STAGES, EVEN_N, ADD,
    )  # fmt: skip


@triton.jit
def _expand_few_tiles(
    h_own, arena, own, rank, in_features, rows, splits, planes_row, planes_split, y_own, y_live, scale, from_column,
    to_column, width,
    MODULES: tl.constexpr, BLOCK_ROWS: tl.constexpr, UNIT: tl.constexpr, RANK: tl.constexpr, SPLITS_MAX: tl.constexpr,
    STAGES: tl.constexpr, EVEN_N: tl.constexpr, ADD: tl.constexpr, GROUP: tl.constexpr, FEW_N: tl.constexpr,
):  # fmt: skip
    """As `_expand_one_tile`, for at most GROUP tiles: all their rank rows at once, FEW_N columns at a time."""
    many = tl.arange(0, GROUP * RANK)
    tile = many // RANK
    live = many < rank
    place = tl.load(own + 1 + tile, mask=live, other=0)
    heights = tl.minimum(rank - tile * RANK, RANK)
    columns = tile * (MODULES * RANK) + many % RANK
    h = _h(h_own, columns, rows, splits, planes_row, planes_split, BLOCK_ROWS, SPLITS_MAX)
    h = tl.where(live[None, :], h, 0.0).to(arena.dtype.element_ty)
    b_rows = arena + place * UNIT + (heights * in_features + (many % RANK) * width)
    _walk(
        h, b_rows, live, y_own, y_live, scale, from_column, to_column, width,
        FEW_N, STAGES, EVEN_N, ADD,
    )  # fmt: skip


@triton.jit
def _expand_many_tiles(
    h_own, arena, own, rank_row, rank, tiles, in_features, rows, splits, planes_row, planes_split, y_own, y_live, scale,
    begin, stop, width,
    MODULES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, UNIT: tl.constexpr, RANK: tl.constexpr,
    SPLITS_MAX: tl.constexpr, STAGES: tl.constexpr, EVEN_N: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Blocks begin ≤ block < stop of y's columns, for any number of tiles: one tile after another in each block."""
    acc = tl.zeros((BLOCK_ROWS, BLOCK_N), dtype=tl.float32)
    for step in tl.range(begin * tiles, stop * tiles, num_stages=STAGES):
        tile = step % tiles
        at = (step // tiles * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
        height = tl.minimum(rank - tile * RANK, RANK)
        b_rows = arena + tl.load(own + 1 + tile) * UNIT + (height * in_features + rank_row[:, None] * width)
        b_mask = (rank_row < height)[:, None]
        y_mask = y_live[:, None]
        if not EVEN_N:
            b_mask = b_mask & (at < width)
            y_mask = y_mask & (at < width)
        b_part = tl.load(b_rows + at, mask=b_mask, other=0.0)
        columns = tile * (MODULES * RANK) + rank_row
        h = _h(h_own, columns, rows, splits, planes_row, planes_split, BLOCK_ROWS, SPLITS_MAX)
        acc = tl.dot(h.to(b_part.dtype), b_part, acc, input_precision="ieee")
        if tile == tiles - 1:
            out = acc * scale
            if ADD:
                out += tl.load(y_own + at, mask=y_mask, other=0.0).to(tl.float32)
            tl.store(y_own + at, out.to(y_own.dtype.element_ty), mask=y_mask)
            acc = tl.zeros((BLOCK_ROWS, BLOCK_N), dtype=tl.float32)


@triton.jit
def _expand_unit(
    segment, part, span, splits, shrinks, arrived, arrivals, planes, y, arena, entries, planes_row, planes_split, y_row,
    entry_row, entry_module, in_features, out0, out1, out2,
    MODULES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, UNIT: tl.constexpr, RANK: tl.constexpr,
    SPLITS_MAX: tl.constexpr, STAGES: tl.constexpr, EVEN_N: tl.constexpr, ADD: tl.constexpr, PREFETCH: tl.constexpr,
    GROUP: tl.constexpr, FEW_N: tl.constexpr,
):  # fmt: skip
    """y[rows of a segment, `span` blocks of columns of a module] = (ADD: +=) scale · h · B, over all of its tiles."""
    table_row = tl.load(segment)
    first = tl.load(segment + 1)
    rows = tl.load(segment + 2)
    stacked = 0
    begin = part * span
    offset = 0  # of the module's columns in y
    width = out0
    parts0 = tl.cdiv(tl.cdiv(out0, BLOCK_N), span)
    parts1 = parts0 + tl.cdiv(tl.cdiv(out1, BLOCK_N), span)
    if MODULES > 1 and part >= parts0:
        stacked = 1
        begin = (part - parts0) * span
        offset = out0
        width = out1
    if MODULES > 2 and part >= parts1:
        stacked = 2
        begin = (part - parts1) * span
        offset = out0 + out1
        width = out2
    stop = tl.minimum(begin + span, tl.cdiv(width, BLOCK_N))
    own = entries + table_row.to(tl.int64) * entry_row + stacked * entry_module
    entry = tl.load(own)
    rank = (entry & 0xFFFFFFFF).to(tl.int32)
    scale = (entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    rank_row = tl.arange(0, RANK)
    height = tl.minimum(rank, RANK)
    b = arena + tl.load(own + 1) * UNIT + height * in_features  # an absent module's value is not used
    if PREFETCH:  # hide the latency of B behind the end of the shrink
        thread = tl.arange(0, RANK * 8)
        count = (stop - begin) * (BLOCK_N // 8)
        lines = b + (thread // 8) * width + begin * BLOCK_N + (thread % 8) * count
        lines = tl.where(thread // 8 < height, lines, arena)
        _prefetch(lines, count * (arena.dtype.element_ty.primitive_bitwidth // 8))
    while arrived < shrinks:
        arrived = tl.atomic_add(arrivals, 0, sem="acquire")
    row = tl.arange(0, BLOCK_ROWS)
    y_live = row < rows
    y_own = y + (first + row).to(tl.int64)[:, None] * y_row + offset
    h_own = planes + first.to(tl.int64) * planes_row + stacked * RANK
    tiles = tl.cdiv(rank, RANK)
    from_column = begin * BLOCK_N
    to_column = tl.minimum(stop * BLOCK_N, width)
    if tiles < 2:  # one tile, or none
        _expand_one_tile(
            h_own, b, rank_row, rank, height, rows, splits, planes_row, planes_split, y_own, y_live, scale, from_column,
            to_column, width, BLOCK_ROWS, BLOCK_N, RANK, SPLITS_MAX, STAGES, EVEN_N, ADD,
        )  # fmt: skip
    elif tiles <= GROUP:
        _expand_few_tiles(
            h_own, arena, own, rank, in_features, rows, splits, planes_row, planes_split, y_own, y_live, scale,
            from_column, to_column, width, MODULES, BLOCK_ROWS, UNIT, RANK, SPLITS_MAX, STAGES, EVEN_N, ADD, GROUP,
            FEW_N,
        )  # fmt: skip
    else:
        _expand_many_tiles(
            h_own, arena, own, rank_row, rank, tiles, in_features, rows, splits, planes_row, planes_split, y_own,
            y_live, scale, begin, stop, width, MODULES, BLOCK_ROWS, BLOCK_N, UNIT, RANK, SPLITS_MAX, STAGES, EVEN_N,
            ADD,
        )  # fmt: skip
    return arrived


@triton.jit(do_not_specialize=["layer", "module"])
def _lora_kernel(
    x, y, planes, sync, arena, entries, header, segment_list, piece_list, x_row, y_row, planes_row, planes_split,
    entry_row, entry_layer, entry_module, layer, module, in_features, out0, out1, out2,
    MODULES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, UNIT: tl.constexpr,
    RANK: tl.constexpr, FIELDS: tl.constexpr, SPLITS_MAX: tl.constexpr, SHRINK_STAGES: tl.constexpr,
    EXPAND_STAGES: tl.constexpr, EVEN_K: tl.constexpr, EVEN_N: tl.constexpr, ADD: tl.constexpr,
    PREFETCH: tl.constexpr, SHRINK_QUARTERS: tl.constexpr, EXPAND_QUARTERS: tl.constexpr,
    GROUP: tl.constexpr, FEW_N: tl.constexpr,
):  # fmt: skip
    """Tickets below the number of shrink units are shrink units, the following ones are expand units. An expand unit
    spins until every shrink unit has arrived. Shrink units have lower tickets and never wait, so the spin ends."""
    ticket = tl.atomic_add(sync, 1, sem="relaxed")
    segments = tl.load(header)
    pieces = tl.load(header + 1)
    programs = tl.num_programs(0)
    # Parts of the inner size of a piece, and how many blocks of columns an expand unit has: computed from the step's
    # work, so that the number of units is about the wanted one. Segments of several tiles take longer, and are cut
    # smaller.
    splits = tl.minimum(tl.cdiv(programs * SHRINK_QUARTERS // 4, tl.maximum(pieces, 1)), SPLITS_MAX)
    splits = tl.minimum(splits, tl.cdiv(in_features, BLOCK_K))
    shrinks = pieces * splits
    blocks0 = tl.cdiv(out0, BLOCK_N)
    blocks1 = tl.cdiv(out1, BLOCK_N)
    blocks2 = tl.cdiv(out2, BLOCK_N)
    wanted = programs * EXPAND_QUARTERS // 4 * tl.cdiv(tl.maximum(pieces, 1), tl.maximum(segments, 1))
    span = tl.maximum(tl.cdiv((blocks0 + blocks1 + blocks2) * segments, wanted), 1)
    parts = tl.cdiv(blocks0, span) + tl.cdiv(blocks1, span) + tl.cdiv(blocks2, span)
    entries += layer * entry_layer + module * entry_module
    arrived = 0
    while ticket < shrinks + segments * parts:
        if ticket < shrinks:
            _shrink_unit(
                piece_list + (ticket // splits) * FIELDS, ticket % splits, splits, x, planes, arena, entries, x_row,
                planes_row, planes_split, entry_row, entry_module, in_features, MODULES, BLOCK_ROWS, BLOCK_K, UNIT,
                RANK, SHRINK_STAGES, EVEN_K,
            )  # fmt: skip
            tl.debug_barrier()
            tl.atomic_add(sync + 1, 1, sem="release")
        else:
            unit = ticket - shrinks
            arrived = _expand_unit(
                segment_list + (unit // parts) * FIELDS, unit % parts, span, splits, shrinks, arrived, sync + 1, planes,
                y, arena, entries, planes_row, planes_split, y_row, entry_row, entry_module, in_features, out0, out1,
                out2, MODULES, BLOCK_ROWS, BLOCK_N, UNIT, RANK, SPLITS_MAX, EXPAND_STAGES, EVEN_N, ADD, PREFETCH,
                GROUP, FEW_N,
            )  # fmt: skip
        ticket = tl.atomic_add(sync, 1, sem="relaxed")


def lora(
    x: torch.Tensor, y: torch.Tensor, table: TileTable, work: LoraWork, scratch: LoraScratch, layer: int, stack: Stack,
    *, add: bool,
) -> None:  # fmt: skip
    """y[rows of a] = scale_a · (x[rows of a] · A_aᵀ) · B_aᵀ, or with `add` that added to y, for every adapter a of
    `work` and every module of `stack`.

    x [rows, in] and y [rows, outputs of the modules side by side] in the table's dtype, contiguous within a row. The
    product is summed in float32; h is rounded to the dtype. Without `add` all columns of the work's rows are written,
    zeros where an adapter lacks the module; other rows are neither read nor written. `scratch` is for this many rows or
    more, and its `sync` of this layer and stack is zero: one launch of each a step, then `scratch.begin_step()`.
    """
    outs = stack.outs
    tuning = TUNING[work.block_rows, len(outs)]
    _check(x, y, table, scratch, stack)
    entries, planes = table.entries, scratch.planes
    unit = TILE_ALIGN_BYTES // x.element_size()
    even_n = all(out % tuning.block_n == 0 for out in outs)
    _lora_kernel[(_programs(x.device, tuning.programs_per_sm),)](
        x, y, planes, scratch.sync[layer, stack.first], table.arena, entries, work.header, work.segments, work.pieces,
        x.stride(0), y.stride(0), planes.stride(1), planes.stride(0), *entries.stride()[:3], layer, stack.first,
        stack.in_features, *(*outs, 0, 0)[:MODULES_STACKED_MAX],
        MODULES=len(outs), BLOCK_ROWS=work.block_rows, BLOCK_K=tuning.block_k, BLOCK_N=tuning.block_n, UNIT=unit,
        RANK=TILE_RANK, FIELDS=FIELDS, SPLITS_MAX=SPLITS_MAX, SHRINK_STAGES=tuning.shrink_stages,
        EXPAND_STAGES=tuning.expand_stages, EVEN_K=stack.in_features % tuning.block_k == 0, EVEN_N=even_n, ADD=add,
        PREFETCH=even_n and _can_prefetch(x.device), SHRINK_QUARTERS=tuning.shrink_quarters,
        EXPAND_QUARTERS=tuning.expand_quarters, GROUP=TILES_AT_ONCE, FEW_N=FEW_COLUMNS,
        num_warps=tuning.warps, maxnreg=tuning.registers_max,
    )  # fmt: skip


def _programs(device: torch.device, per_sm: int) -> int:
    """The grid: fixed for a device. Six programs stand for one in the interpreter, where each is a loop of Python."""
    if device.type != "cuda":
        return 6
    return int(torch.cuda.get_device_properties(device).multi_processor_count) * per_sm


def _can_prefetch(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _check(x: torch.Tensor, y: torch.Tensor, table: TileTable, scratch: LoraScratch, stack: Stack) -> None:
    for rows, width in ((x, stack.in_features), (y, sum(stack.outs))):
        assert rows.shape == (x.shape[0], width)
        assert rows.stride(1) == 1
        assert rows.dtype == table.arena.dtype
    planes = scratch.planes
    assert planes.shape[1] >= x.shape[0]
    assert planes.shape[2] >= len(stack.outs) * table.tiles_max * TILE_RANK
