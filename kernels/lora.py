"""y[rows of a] += scale_a · (x[rows of a] · A_aᵀ) · B_aᵀ for the rows of many adapters, each of its own rank, in two
launches: shrink (h = x · Aᵀ, cut over the inner size into planes) and expand (y from the planes' sum and B).

Grids are fixed and the work is data, so that one captured graph serves any mix. It knows tiles and rows, no adapters.
"""

# Kernels are in Triton's language, where Python's types say nothing.
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
    LoraWork,
    Stack,
    TileTable,
)

MODULES_STACKED_MAX = 3


class Tuning(NamedTuple):
    """How one launch is cut. `per_sm`: programs a multiprocessor; `block`: elements of the inner size (shrink) or
    columns (expand) that a program takes at once."""

    block: int
    warps: int
    stages: int
    per_sm: int


# By (rows a block, modules stacked); measured on an H200, Llama-3.1-8B's shapes, rank 16.
SHRINK_TUNING = {
    (DECODE_BLOCK_ROWS, 1): Tuning(256, 4, 4, 4),
    (DECODE_BLOCK_ROWS, 2): Tuning(256, 4, 3, 2),
    (DECODE_BLOCK_ROWS, 3): Tuning(128, 4, 4, 2),
    (PREFILL_BLOCK_ROWS, 1): Tuning(128, 4, 3, 2),
    (PREFILL_BLOCK_ROWS, 2): Tuning(128, 4, 3, 2),
    (PREFILL_BLOCK_ROWS, 3): Tuning(128, 4, 3, 2),
}
EXPAND_TUNING = {
    (DECODE_BLOCK_ROWS, 1): Tuning(512, 4, 1, 4),
    (DECODE_BLOCK_ROWS, 2): Tuning(512, 4, 1, 4),
    (DECODE_BLOCK_ROWS, 3): Tuning(512, 4, 1, 4),
    (PREFILL_BLOCK_ROWS, 1): Tuning(128, 4, 1, 4),
    (PREFILL_BLOCK_ROWS, 2): Tuning(128, 4, 1, 4),
    (PREFILL_BLOCK_ROWS, 3): Tuning(128, 4, 1, 4),
}


@triton.jit
def _split_count(pieces, in_features, programs, BLOCK_K: tl.constexpr, SPLITS_MAX: tl.constexpr):
    """Into how many parts the inner size is cut: as many as give every program of the shrink about one part."""
    wanted = tl.minimum(tl.cdiv(programs, tl.maximum(pieces, 1)), SPLITS_MAX)
    return tl.minimum(wanted, tl.cdiv(in_features, BLOCK_K))


@triton.jit(do_not_specialize=["layer", "module", "programs"])
def _shrink_kernel(
    x, planes, arena, entries, header, work, x_row, planes_row, planes_split, entry_row, entry_layer,
    entry_module, layer, module, in_features, programs,
    MODULES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr, UNIT: tl.constexpr,
    RANK: tl.constexpr, FIELDS: tl.constexpr, SPLITS_MAX: tl.constexpr, STAGES: tl.constexpr, EVEN_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """planes[split, rows of a piece, rank rows of its tile of every module] = x · Aᵀ over a part of the inner size."""
    if OVERLAP:  # the expand may start now: it reads B while this runs, and waits before it reads the planes
        tl.extra.cuda.gdc_launch_dependents()
    pieces = tl.load(header + 1)
    splits = _split_count(pieces, in_features, programs, BLOCK_K, SPLITS_MAX)
    blocks = tl.cdiv(in_features, BLOCK_K)
    # Rank rows of the stacked modules side by side: column c is rank row c % RANK of module c // RANK.
    COLUMNS: tl.constexpr = triton.next_power_of_2(MODULES) * RANK
    column = tl.arange(0, COLUMNS)
    stacked = column // RANK
    rank_row = column % RANK
    row = tl.arange(0, BLOCK_ROWS)
    inner = tl.arange(0, BLOCK_K)
    for unit in range(tl.program_id(0), pieces * splits, tl.num_programs(0)):
        piece = work + (unit // splits) * FIELDS
        split = unit % splits
        table_row = tl.load(piece)
        first = tl.load(piece + 1)
        rows = tl.load(piece + 2)
        tile = tl.load(piece + 3)
        entry = entries + table_row.to(tl.int64) * entry_row + layer * entry_layer
        own = entry + (module + stacked) * entry_module
        known = stacked < MODULES
        rank = (tl.load(own, mask=known, other=0) & 0xFFFFFFFF).to(tl.int32)
        place = tl.load(own + 1 + tile, mask=known, other=0)  # of a tile that is not there: not used
        live = known & (tile * RANK + rank_row < rank)
        a = arena + place * UNIT + rank_row * in_features
        row_live = row < rows
        x_own = x + (first + row).to(tl.int64) * x_row
        acc = tl.zeros((BLOCK_ROWS, COLUMNS), dtype=tl.float32)
        begin = (split * blocks // splits) * BLOCK_K
        stop = ((split + 1) * blocks // splits) * BLOCK_K
        for k in tl.range(begin, stop, BLOCK_K, num_stages=STAGES):
            at = k + inner
            x_mask = row_live[:, None]
            a_mask = live[:, None]
            if not EVEN_K:
                x_mask = x_mask & (at < in_features)[None, :]
                a_mask = a_mask & (at < in_features)[None, :]
            x_part = tl.load(x_own[:, None] + at[None, :], mask=x_mask, other=0.0)
            a_part = tl.load(a[:, None] + at[None, :], mask=a_mask, other=0.0)
            acc = tl.dot(x_part, a_part.trans(), acc, input_precision="ieee")
        out = planes + split * planes_split + (first + row).to(tl.int64)[:, None] * planes_row
        out += (tile * MODULES * RANK + column)[None, :]
        tl.store(out, acc, mask=row_live[:, None] & known[None, :])


@triton.jit(do_not_specialize=["layer", "module", "programs"])
def _expand_kernel(
    planes, y, arena, entries, header, work, planes_row, planes_split, y_row, entry_row, entry_layer,
    entry_module, layer, module, in_features, out0, out1, out2, programs,
    MODULES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, UNIT: tl.constexpr,
    RANK: tl.constexpr, FIELDS: tl.constexpr, SPLITS_MAX: tl.constexpr, BLOCK_K: tl.constexpr, ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """y[rows of a segment, columns of a module] = (ADD: +=) scale · (sum of the planes) · B, over all of its tiles."""
    segments = tl.load(header)
    splits = _split_count(tl.load(header + 1), in_features, programs, BLOCK_K, SPLITS_MAX)
    blocks0 = tl.cdiv(out0, BLOCK_N)
    blocks1 = blocks0 + (tl.cdiv(out1, BLOCK_N) if MODULES > 1 else 0)
    blocks = blocks1 + (tl.cdiv(out2, BLOCK_N) if MODULES > 2 else 0)
    row = tl.arange(0, BLOCK_ROWS)
    rank_row = tl.arange(0, RANK)
    part = tl.arange(0, SPLITS_MAX)
    for unit in range(tl.program_id(0), segments * blocks, tl.num_programs(0)):
        segment = work + (unit // blocks) * FIELDS
        block = unit % blocks
        table_row = tl.load(segment)
        first = tl.load(segment + 1)
        rows = tl.load(segment + 2)
        stacked = 0
        column = block * BLOCK_N
        offset = 0  # of the module's columns in y
        width = out0
        if MODULES > 1 and block >= blocks0:
            stacked = 1
            column = (block - blocks0) * BLOCK_N
            offset = out0
            width = out1
        if MODULES > 2 and block >= blocks1:
            stacked = 2
            column = (block - blocks1) * BLOCK_N
            offset = out0 + out1
            width = out2
        own = entries + table_row.to(tl.int64) * entry_row + layer * entry_layer + (module + stacked) * entry_module
        entry = tl.load(own)
        rank = (entry & 0xFFFFFFFF).to(tl.int32)
        scale = (entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        at = column + tl.arange(0, BLOCK_N)
        inside = at < width
        row_live = row < rows
        h_own = planes + (first + row).to(tl.int64)[None, :, None] * planes_row + rank_row[None, None, :]
        h_own += part[:, None, None] * planes_split
        h_mask = (part < splits)[:, None, None] & row_live[None, :, None]
        # The first tile's B comes before the wait for the shrink: all the time there is to hide is in that read.
        height = tl.minimum(rank, RANK)
        b = arena + tl.load(own + 1) * UNIT + height * in_features
        b_mask = (rank_row < height)[:, None] & inside[None, :]
        b_part = tl.load(b + rank_row[:, None] * width + at[None, :], mask=b_mask, other=0.0)
        if OVERLAP:
            tl.extra.cuda.gdc_wait()
        h = tl.sum(tl.load(h_own + stacked * RANK, mask=h_mask & (rank_row < rank)[None, None, :], other=0.0), axis=0)
        acc = tl.dot(h.to(b_part.dtype), b_part, input_precision="ieee")
        for tile in range(1, tl.cdiv(rank, RANK)):
            place = tl.load(own + 1 + tile)
            height = tl.minimum(rank - tile * RANK, RANK)
            b = arena + place * UNIT + height * in_features
            b_mask = (rank_row < height)[:, None] & inside[None, :]
            b_part = tl.load(b + rank_row[:, None] * width + at[None, :], mask=b_mask, other=0.0)
            h = tl.sum(tl.load(h_own + (tile * MODULES + stacked) * RANK, mask=h_mask, other=0.0), axis=0)
            acc = tl.dot(h.to(b_part.dtype), b_part, acc, input_precision="ieee")
        acc *= scale
        out = y + (first + row).to(tl.int64)[:, None] * y_row + (offset + at)[None, :]
        out_mask = row_live[:, None] & inside[None, :]
        if ADD:
            acc += tl.load(out, mask=out_mask, other=0.0).to(tl.float32)
        tl.store(out, acc.to(y.dtype.element_ty), mask=out_mask)


def lora_shrink(
    x: torch.Tensor, planes: torch.Tensor, table: TileTable, work: LoraWork, layer: int, stack: Stack
) -> None:
    """planes[split, rows of a, (tile, module, rank row)] = x[rows of a] · A_aᵀ over one part of the inner size, for
    every adapter a of `work` and every module of `stack`; only rows of `work` are written, and of those the ranks that
    their adapter's largest module has, in tiles.

    x [rows, in] in the table's dtype, contiguous within a row; planes float32 as `planes_shape` says, for these rows or
    more. How many parts there are follows from the work; both launches know.
    """
    _check(x, table, stack.in_features)
    assert planes.shape[2] >= len(stack.outs) * table.tiles_max * TILE_RANK
    assert planes.shape[1] >= x.shape[0]
    _check_planes(planes)
    tuning = SHRINK_TUNING[work.block_rows, len(stack.outs)]
    programs = _programs(x.device, tuning.per_sm)
    entries = table.entries
    _shrink_kernel[(programs,)](
        x, planes, table.arena, entries, work.header, work.pieces, x.stride(0), planes.stride(1), planes.stride(0),
        entries.stride(0), entries.stride(1), entries.stride(2), layer, stack.first, stack.in_features, programs,
        MODULES=len(stack.outs), BLOCK_ROWS=work.block_rows, BLOCK_K=tuning.block,
        UNIT=TILE_ALIGN_BYTES // x.element_size(), RANK=TILE_RANK, FIELDS=FIELDS, SPLITS_MAX=SPLITS_MAX,
        STAGES=tuning.stages, EVEN_K=stack.in_features % tuning.block == 0, OVERLAP=_overlaps(x.device), num_warps=tuning.warps,
    )  # fmt: skip


def lora_expand(
    planes: torch.Tensor, y: torch.Tensor, table: TileTable, work: LoraWork, layer: int, stack: Stack, *, add: bool
) -> None:
    """y[rows of a] = scale_a · (sum of the planes) · B_aᵀ, or with `add` that added to y, for every adapter of `work`.

    y [rows, outputs of the stack's modules side by side] in the table's dtype, contiguous within a row. Without `add`
    all columns of the work's rows are written, zeros where an adapter lacks the module; other rows are not touched.
    `planes` as `lora_shrink` left them for the same table, work, layer and stack.
    """
    _check(y, table, sum(stack.outs))
    _check_planes(planes)
    shrink, tuning = SHRINK_TUNING[work.block_rows, len(stack.outs)], EXPAND_TUNING[work.block_rows, len(stack.outs)]
    entries, overlap = table.entries, _overlaps(y.device)
    outs = (*stack.outs, 0, 0)[:MODULES_STACKED_MAX]
    _expand_kernel[(_programs(y.device, tuning.per_sm),)](
        planes, y, table.arena, entries, work.header, work.segments, planes.stride(1), planes.stride(0), y.stride(0),
        entries.stride(0), entries.stride(1), entries.stride(2), layer, stack.first, stack.in_features, *outs,
        _programs(y.device, shrink.per_sm),
        MODULES=len(stack.outs), BLOCK_ROWS=work.block_rows, BLOCK_N=tuning.block,
        UNIT=TILE_ALIGN_BYTES // y.element_size(), RANK=TILE_RANK, FIELDS=FIELDS, SPLITS_MAX=SPLITS_MAX,
        BLOCK_K=shrink.block, ADD=add, OVERLAP=overlap, num_warps=tuning.warps, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip


def _programs(device: torch.device, per_sm: int) -> int:
    """The grid: fixed for a device. Three programs stand for one in the interpreter, where each is a loop of Python."""
    if device.type != "cuda":
        return 3
    return int(torch.cuda.get_device_properties(device).multi_processor_count) * per_sm


def _overlaps(device: torch.device) -> bool:
    """Whether a launch may start before the one in front of it has ended (programmatic dependent launch)."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= (9, 0)
        and hasattr(tl.extra.cuda, "gdc_wait")
    )


def _check(rows: torch.Tensor, table: TileTable, width: int) -> None:
    assert rows.dim() == 2
    assert rows.shape[1] == width
    assert rows.stride(1) == 1
    assert rows.dtype == table.arena.dtype


def _check_planes(planes: torch.Tensor) -> None:
    assert planes.dtype == torch.float32
    assert planes.dim() == 3
    assert planes.shape[0] == SPLITS_MAX
    assert planes.stride(2) == 1
