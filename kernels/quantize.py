"""Rows of activations in fp8 (e4m3fn) with one scale a row: scale = max |x| / 448, number = x / scale.

The device functions are shared by every kernel that writes such rows, so that all of them write the same bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.launch import await_previous, launch_options, let_next_start

FP8_MAX = 448.0  # the largest finite number of e4m3fn
# Elements of a row that its program holds in registers. Of few rows each is read once, by many warps; of many, each
# program needs fewer registers, so that a multiprocessor works at ten rows at once.
FEW_ROWS_BLOCK = 16384
MANY_ROWS_BLOCK = 2048
MANY_ROWS = 264
ELEMENTS_PER_WARP = 512


class QuantizedRows(NamedTuple):
    """Rows of activations in fp8: x[r] ≈ numbers[r] · scales[r].

    `numbers` [rows, width] torch.float8_e4m3fn, contiguous; `scales` [rows] float32. The scale of a row is
    max |x[r]| / 448, or 1 where the row is all zeros; a number is x / scale rounded to the nearest even, −0 made 0. The
    scale and all numbers of a row with NaN or an infinity are NaN."""

    numbers: torch.Tensor
    scales: torch.Tensor


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels. It has neither PTX nor right conversions to 8 and 16 bits."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
def magnitude_bits(x):
    """The bits of |x| as int32, for float32 `x`: integers in the order of the magnitudes, with NaN the largest."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def row_scale(largest_bits):
    """The scale of a row whose largest magnitude has these bits."""
    scale = tl.div_rn(largest_bits.to(tl.float32, bitcast=True), 448.0)
    scale = tl.where(scale == 0.0, 1.0, scale)
    return tl.where(largest_bits < 0x7F800000, scale, float("nan"))


@triton.jit
def row_numbers(x, scale, INTERPRETED: tl.constexpr):
    """The e4m3fn bits (uint8) of x / scale, float32 both."""
    if INTERPRETED:
        return _rounded_to_fp8(tl.div_rn(x, scale) + 0.0)
    else:
        # Markstein's division without a branch: right to the last bit where the reciprocal is and nothing underflows.
        lift = tl.where(scale < 8.7e-19, 1.8446744073709552e19, 1.0)  # below 2^-60: 2^64
        x *= lift
        scale *= lift
        reciprocal = tl.div_rn(1.0, scale)
        quotient = x * reciprocal
        quotient = tl.fma(tl.fma(-quotient, scale, x), reciprocal, quotient) + 0.0  # never −0
        return quotient.to(tl.float8e4nv).to(tl.uint8, bitcast=True)  # saturates


@triton.jit
def _rounded_to_fp8(x):
    """Round like the conversion of a GPU: to the nearest even, saturated. The interpreter's own loses carries."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)  # 448
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 numbers are multiples of 2^-9, the distance of float32 numbers above 2^14.
    shifted = magnitude.to(tl.float32, bitcast=True) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    coded = tl.where(magnitude < 0x3C800000, subnormal, normal) | ((bits >> 24) & 0x80)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7F, coded).to(tl.uint8)


@triton.jit
def _quantize_kernel(
    x_ptr,
    numbers_ptr,
    scales_ptr,
    x_stride,
    width,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x_ptr += row * x_stride
    let_next_start(PDL)
    await_previous(PDL)
    if WHOLE:
        within = columns < width
        x = tl.load(x_ptr + columns, mask=within, other=0.0).to(tl.float32)
        scale = row_scale(tl.max(magnitude_bits(x), 0))
        tl.store(numbers_ptr + row * width + columns, row_numbers(x, scale, INTERPRETED), mask=within)
        tl.store(scales_ptr + row, scale)
    else:
        largest = tl.zeros([BLOCK], tl.int32)
        for first in range(0, width, BLOCK):
            x = tl.load(x_ptr + first + columns, mask=first + columns < width, other=0.0)
            largest = tl.maximum(largest, magnitude_bits(x.to(tl.float32)))
        write_row(x_ptr, numbers_ptr, scales_ptr, row, width, tl.max(largest, 0), BLOCK, INTERPRETED)


@triton.jit
def write_row(
    x_row_ptr, numbers_ptr, scales_ptr, row, width, largest_bits, BLOCK: tl.constexpr, INTERPRETED: tl.constexpr
):
    """Numbers and scale of a row of more than BLOCK elements whose largest magnitude is known."""
    scale = row_scale(largest_bits)
    tl.store(scales_ptr + row, scale)
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + columns, mask=columns < width, other=0.0).to(tl.float32)
        tl.store(numbers_ptr + row * width + columns, row_numbers(x, scale, INTERPRETED), mask=columns < width)


def check_quantized_rows(rows: QuantizedRows, shape: torch.Size) -> None:
    assert rows.numbers.shape == shape
    assert rows.numbers.dtype == torch.float8_e4m3fn
    assert rows.numbers.is_contiguous()
    assert rows.scales.shape == shape[:1]
    assert rows.scales.dtype == torch.float32
    assert rows.scales.is_contiguous()


def row_blocks(rows: int, width: int) -> dict[str, Any]:
    """Arguments for a kernel with one program a row."""
    block = min(triton.next_power_of_2(width), FEW_ROWS_BLOCK if rows < MANY_ROWS else MANY_ROWS_BLOCK)
    return {
        "BLOCK": block,
        "WHOLE": block >= width,
        "INTERPRETED": is_interpreted(),
        "num_warps": max(block // ELEMENTS_PER_WARP, 1),
    }


def quantize_rows(x: torch.Tensor, out: QuantizedRows) -> None:
    """Quantise every row of `x` [rows, width], contiguous within a row, to `out` of the same shape.

    The norms and SwiGLU write the same bits beside their own rows; this is for rows that no such kernel writes."""
    check_quantized_rows(out, x.shape)
    rows, width = x.shape
    assert x.stride(1) == 1
    if rows == 0:
        return
    _quantize_kernel[(rows,)](
        x,
        out.numbers.view(torch.uint8),
        out.scales,
        x.stride(0),
        width,
        **row_blocks(rows, width),
        **launch_options(x.device),
    )
