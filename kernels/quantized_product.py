"""y = x · Wᵀ for few rows and a quantised W, which is read once and converted in registers.

Split over the inner size so that any W fills the GPU; the last program to finish a tile of y sums its parts.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.launch import await_previous, launch_options, let_next_start
from kernels.quantize import QuantizedRows, check_quantized_rows, is_interpreted
from kernels.quantized_elements import byte_numbers, check_quantized_matrix, half_byte_numbers

INTERPRETED_PROGRAMS = 6  # where each program is a loop of Python
ROWS_MAX = 64  # of a tile; more rows are several tiles, each of which reads W


class ProductTile(NamedTuple):
    """How a launch is divided. A program computes `rows` × `outs` outputs over a part of the inner size, `ins` columns
    of W an iteration (powers of two; fewer where groups are smaller).

    `programs_per_sm`: how many programs there are at least, by splitting the inner size. `swapped`: W is the left
    factor, as Hopper's warp-group instructions require: then outs ≥ 64, and 4 or 8 warps. `prefetch`: each program
    fetches its part of W into the second-level cache while the kernel before it runs."""

    rows: int
    outs: int
    ins: int
    programs_per_sm: int
    warps: int
    stages: int
    swapped: bool = False
    prefetch: bool = True


# By element ("fp8 rows": fp8 with x in fp8 too) and rows of a tile.
PRODUCT_TILES = {
    ("fp8", 16): ProductTile(16, 128, 128, 3, 4, 4),
    ("fp8", 32): ProductTile(32, 128, 128, 3, 4, 3),
    ("fp8", 64): ProductTile(64, 128, 128, 2, 4, 3),
    ("fp8 rows", 16): ProductTile(16, 64, 256, 3, 4, 4, swapped=True),
    ("fp8 rows", 32): ProductTile(32, 128, 128, 3, 4, 4, swapped=True),
    ("fp8 rows", 64): ProductTile(64, 128, 128, 2, 4, 4, swapped=True),
    ("int8", 16): ProductTile(16, 128, 128, 3, 4, 4),
    ("int8", 32): ProductTile(32, 128, 128, 3, 4, 3),
    ("int8", 64): ProductTile(64, 128, 128, 2, 4, 3),
    ("int4", 16): ProductTile(16, 128, 128, 4, 4, 4),
    ("int4", 32): ProductTile(32, 128, 128, 2, 4, 4),
    ("int4", 64): ProductTile(64, 128, 128, 2, 4, 3),
}
# Columns of y for each row that a scratch holds parts of. Where these are too few, W is split into fewer parts.
PARTIAL_COLUMNS = 65536


class ProductScratch(NamedTuple):
    """Parts of outputs, shared by all products of a step: no two launches may use it at once.

    `arrivals` int32 [tiles], zero before a launch and after it: where other kernels use the memory in between, it is
    zeroed before the first product of a step. `partials` float32 [elements]."""

    arrivals: torch.Tensor
    partials: torch.Tensor


def allocate_product_scratch(rows_max: int, outs_max: int, device: torch.device) -> ProductScratch:
    """A scratch for products of up to `rows_max` rows and `outs_max` outputs: 17 MB for 64 rows."""
    rows = triton.cdiv(rows_max, 16) * 16
    return ProductScratch(
        arrivals=torch.zeros(rows // 16 * triton.cdiv(outs_max, 16), dtype=torch.int32, device=device),
        partials=torch.empty(rows * max(PARTIAL_COLUMNS, 2 * outs_max), dtype=torch.float32, device=device),
    )


@triton.jit
def _multiplied(x, w, acc, SWAPPED: tl.constexpr):
    """acc + x · wᵀ, or its transpose."""
    if SWAPPED:
        return tl.dot(w, x.trans(), acc, input_precision="ieee")
    else:
        return tl.dot(x, w.trans(), acc, input_precision="ieee")


@triton.jit
def _block_products(
    x, w, zero, acc, dtype: tl.constexpr, ELEMENT: tl.constexpr, SWAPPED: tl.constexpr, INTERPRETED: tl.constexpr
):
    """acc + x · wᵀ, or its transpose, for columns as loaded: x is uint8 if in fp8, pairs in int32 for int4."""
    if ELEMENT == "int4":
        even = x.to(tl.int16).to(dtype, bitcast=True)
        odd = (x >> 16).to(tl.int16).to(dtype, bitcast=True)
        if INTERPRETED:
            even = even.to(tl.float32)
            odd = odd.to(tl.float32)
        low, high = half_byte_numbers(w, zero[:, None], dtype, INTERPRETED)
        return _multiplied(odd, high, _multiplied(even, low, acc, SWAPPED), SWAPPED)
    elif x.dtype == tl.uint8 and not INTERPRETED:
        return _multiplied(x.to(tl.float8e4nv, bitcast=True), w.to(tl.float8e4nv, bitcast=True), acc, SWAPPED)
    else:
        if x.dtype == tl.uint8:
            x = byte_numbers(x, "fp8", dtype, INTERPRETED)
        elif INTERPRETED:
            x = x.to(tl.float32)
        return _multiplied(x, byte_numbers(w, ELEMENT, dtype, INTERPRETED), acc, SWAPPED)


@triton.jit
def _by_column(numbers, SWAPPED: tl.constexpr):
    """One number an output, to be multiplied with a tile of products."""
    if SWAPPED:
        return numbers[:, None]
    else:
        return numbers[None, :]


@triton.jit
def _prefetch(data, outs_left, stride, first, last, OUTS: tl.constexpr, STEP: tl.constexpr, THREADS: tl.constexpr):
    """Prefetch columns [first, last) × STEP of OUTS rows of data into the second-level cache."""
    PIECES: tl.constexpr = max(THREADS // OUTS, 1)
    thread = tl.arange(0, OUTS * PIECES)
    row = thread // PIECES
    size = tl.minimum(last * STEP, stride) - first * STEP
    piece = tl.cdiv(size, PIECES * 16) * 16
    begin = thread % PIECES * piece
    count = tl.where(row < outs_left, tl.minimum(piece, size - begin), 0)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r", [data + row * stride + first * STEP + begin, count],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _finish(acc, partials, arrivals, splits, counter, live, ROWS: tl.constexpr, OUTS: tl.constexpr):
    """(whether this program is the last of the tile's, the sum of all parts), always added in the same order."""
    place = tl.arange(0, ROWS)[:, None] * OUTS + tl.arange(0, OUTS)[None, :]
    parts = partials + counter.to(tl.int64) * splits * (ROWS * OUTS) + place
    tl.store(parts + tl.program_id(0) * (ROWS * OUTS), acc, mask=live)
    tl.debug_barrier()  # every thread has written before one of them signals it
    is_last = tl.atomic_add(arrivals + counter, 1, sem="acq_rel", scope="gpu") == splits - 1
    if is_last:
        tl.store(arrivals + counter, 0)  # for the next launch
        acc = tl.zeros([ROWS, OUTS], tl.float32)
        for part in tl.range(0, splits, loop_unroll_factor=4):
            # .cg: from the L2 cache, which all programs share.
            acc += tl.load(parts + part * (ROWS * OUTS), mask=live, other=0.0, cache_modifier=".cg")
    return is_last, acc


@triton.jit(do_not_specialize=["rows", "outs", "blocks_per_split"])
def _product_kernel(
    x, x_scales, data, scales, zeros, out, partials, arrivals, rows, outs, blocks_per_split,
    x_stride, data_stride, out_stride, scales_row, scales_group, zeros_row, zeros_group,
    ELEMENT: tl.constexpr, BLOCKS_PER_GROUP: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr,
    SPLIT: tl.constexpr, SWAPPED: tl.constexpr, EVEN_OUTS: tl.constexpr, EVEN_INS: tl.constexpr,
    PREFETCH: tl.constexpr, THREADS: tl.constexpr, STAGES: tl.constexpr, INTERPRETED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (part, tile of outputs, tile of rows). STEP: columns of data an iteration, as stored, and of x: int4 and
    its x are stored as pairs. BLOCKS_PER_GROUP 0: one scale a row of W."""
    part = tl.program_id(0)
    tile = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tile * OUTS + tl.arange(0, OUTS)
    row_live = row < rows
    live = column < outs
    within = tl.arange(0, STEP)
    first = part * blocks_per_split
    last = tl.minimum(first + blocks_per_split, tl.cdiv(data_stride, STEP))
    data += (tile * OUTS).to(tl.int64) * data_stride
    let_next_start(PDL)
    if PREFETCH:  # nothing that another kernel writes
        _prefetch(data, outs - tile * OUTS, data_stride, first, last, OUTS, STEP, THREADS)
    w_own = data + tl.arange(0, OUTS)[:, None] * data_stride + within[None, :]
    x_own = x + row.to(tl.int64)[:, None] * x_stride + within[None, :]
    scales_own = scales + column.to(tl.int64) * scales_row
    PER_GROUP: tl.constexpr = max(BLOCKS_PER_GROUP, 1)
    if BLOCKS_PER_GROUP > 0:
        scale = tl.load(scales_own + first // PER_GROUP * scales_group, mask=live, other=0.0)
    if zeros is not None:
        zeros_own = zeros + column.to(tl.int64) * zeros_row
    await_previous(PDL)
    acc = tl.zeros([OUTS, ROWS] if SWAPPED else [ROWS, OUTS], tl.float32)
    none = tl.zeros([OUTS, ROWS] if SWAPPED else [ROWS, OUTS], tl.float32)
    for block in tl.range(first, last, num_stages=STAGES):
        x_mask = row_live[:, None]
        if not EVEN_INS:
            x_mask = x_mask & (block * STEP + within < data_stride)[None, :]
        if EVEN_INS and EVEN_OUTS:
            w = tl.load(w_own + block * STEP)
        else:
            w_mask = live[:, None] & (block * STEP + within < data_stride)[None, :]
            w = tl.load(w_own + block * STEP, mask=w_mask, other=0)
        x_part = tl.load(x_own + block * STEP, mask=x_mask, other=0)
        if zeros is not None:
            group = block // PER_GROUP if BLOCKS_PER_GROUP > 0 else 0
            zero = tl.load(zeros_own + group * zeros_group, mask=live, other=0)
        else:
            zero = tl.full([OUTS], 8, tl.uint8)
        wide_zero = zero.to(tl.float32)
        if BLOCKS_PER_GROUP > 0:
            products = _block_products(x_part, w, wide_zero, none, out.dtype.element_ty, ELEMENT, SWAPPED, INTERPRETED)
            acc += products * _by_column(scale.to(tl.float32), SWAPPED)
            # The next iteration's, so that it does not wait for the load.
            group = tl.minimum(block + 1, last - 1) // PER_GROUP
            scale = tl.load(scales_own + group * scales_group, mask=live, other=0.0)
        elif x_scales is not None:
            # Added in float32: within a sum of many products in fp8 a Hopper loses digits.
            acc += _block_products(x_part, w, wide_zero, none, out.dtype.element_ty, ELEMENT, SWAPPED, INTERPRETED)
        else:
            acc = _block_products(x_part, w, wide_zero, acc, out.dtype.element_ty, ELEMENT, SWAPPED, INTERPRETED)
    if SWAPPED:
        acc = acc.trans()
    all_live = row_live[:, None] & live[None, :]
    is_last = True
    if SPLIT:
        counter = tl.program_id(2) * tl.num_programs(1) + tile
        is_last, acc = _finish(acc, partials, arrivals, tl.num_programs(0), counter, all_live, ROWS, OUTS)
    if is_last:
        if BLOCKS_PER_GROUP == 0:
            acc *= tl.load(scales_own, mask=live, other=0.0).to(tl.float32)[None, :]
        if x_scales is not None:
            acc *= tl.load(x_scales + row, mask=row_live, other=0.0)[:, None]
        out_own = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
        tl.store(out_own, acc.to(out.dtype.element_ty), mask=all_live)


def columns_per_block(group: int, ins: int, most: int) -> int:
    """How many columns of W [out, ins] an iteration takes: a power of two, at most `most`, that no group cuts."""
    return most if group >= ins else min(most, group & -group)


def quantized_product(
    x: torch.Tensor | QuantizedRows,
    data: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    out: torch.Tensor,
    scratch: ProductScratch,
    *,
    element: str,
    group: int,
    tile: ProductTile | None = None,
) -> None:
    """out = x · Wᵀ where W[n, k] = (q[n, k] − zero[n, k // group]) · scale[n, k // group]; made for up to 64 rows.

    `x` [rows, in], `out` [rows, outs] bfloat16 or float16 in one dtype, contiguous within a row; or with "fp8" `x` as
    QuantizedRows. `data` uint8 contiguous: "fp8" e4m3fn bits [outs, in], "int8" two's complement [outs, in], "int4"
    [outs, in / 2] with column 2j in the low half of byte j; fp8 and int8 have no zeros. `scales` [outs, groups] in
    float32, float16 or bfloat16 and `zeros` uint8 [outs, groups] below 128 (None: 8), with any strides. `group`: a
    multiple of 32, or `in`. With "int4", rows of x begin at multiples of 4 bytes.

    Numbers of W are multiplied as they are and scaled as sums of groups, all in float32, but that Hopper adds up to
    `tile.ins` products of fp8 rows with fewer digits. The same bits each time, for one scratch and tile.

    Split over the inner size as in Stream-K (Osama et al. 2023), with equal parts.
    """
    numbers, x_scales = (x.numbers.view(torch.uint8), x.scales) if isinstance(x, QuantizedRows) else (x, None)
    rows, ins = numbers.shape
    outs = data.shape[0]
    packed = 2 if element == "int4" else 1
    _check(x, data, scales, zeros, out, element, group)
    if rows == 0:
        return
    if tile is None:
        tile = PRODUCT_TILES[
            element if x_scales is None else "fp8 rows", min(max(triton.next_power_of_2(rows), 16), ROWS_MAX)
        ]
    block = columns_per_block(group, ins, tile.ins)
    blocks = triton.cdiv(ins, block)
    tiles = triton.cdiv(outs, tile.outs), triton.cdiv(rows, tile.rows)
    splits = _splits(tiles[0] * tiles[1], blocks, tile, scratch, out.device)
    blocks_per_split = triton.cdiv(blocks, splits)
    splits = triton.cdiv(blocks, blocks_per_split)
    if packed == 2:
        numbers = numbers.view(torch.int32)
    options = launch_options(out.device)
    _product_kernel[(splits, *tiles)](
        numbers, x_scales, data, scales, zeros, out, scratch.partials, scratch.arrivals, rows, outs, blocks_per_split,
        numbers.stride(0), data.stride(0), out.stride(0), *scales.stride(),
        *(zeros.stride() if zeros is not None else (0, 0)),
        ELEMENT=element, BLOCKS_PER_GROUP=0 if group >= ins else group // block, ROWS=tile.rows, OUTS=tile.outs,
        STEP=block // packed, SPLIT=splits > 1, SWAPPED=tile.swapped, EVEN_OUTS=outs % tile.outs == 0,
        EVEN_INS=ins % block == 0,
        PREFETCH=tile.prefetch and options["PDL"] and data.stride(0) % 16 == 0 and data.data_ptr() % 16 == 0,
        THREADS=tile.warps * 32, STAGES=tile.stages, INTERPRETED=is_interpreted(), num_warps=tile.warps, **options,
    )  # fmt: skip


def _splits(tiles: int, blocks: int, tile: ProductTile, scratch: ProductScratch, device: torch.device) -> int:
    """The number of parts of the inner size: as many as all multiprocessors run at once, as far as the scratch
    suffices. A few more programs would run after the others, and double the time."""
    wanted = _multiprocessors(device) * tile.programs_per_sm // tiles
    space = scratch.partials.numel() // (tiles * tile.rows * tile.outs) if tiles <= scratch.arrivals.numel() else 1
    return int(max(1, min(wanted, space, blocks)))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _check(
    x: torch.Tensor | QuantizedRows,
    data: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    out: torch.Tensor,
    element: str,
    group: int,
) -> None:
    if isinstance(x, QuantizedRows):
        assert element == "fp8"
        rows, ins = x.numbers.shape
        check_quantized_rows(x, x.numbers.shape)
    else:
        rows, ins = x.shape
        assert x.dtype == out.dtype
        assert x.stride(1) == 1
    assert out.dtype in (torch.bfloat16, torch.float16)
    assert out.shape == (rows, data.shape[0])
    assert out.stride(1) == 1
    check_quantized_matrix(data, scales, zeros, ins, element, group)
    if element == "int4" and isinstance(x, torch.Tensor):
        assert x.stride(0) % 2 == x.storage_offset() % 2 == 0, "int4 reads x as pairs"
