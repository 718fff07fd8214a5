"""RMSNorm, alone or with the sum before it: residual += x (+ delta), out = residual / rms(residual) · weight.

One program a row, so a row is read once. It knows rows, no layers.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.launch import await_previous, launch_options, let_next_start
from kernels.quantize import QuantizedRows, check_quantized_rows, is_interpreted, magnitude_bits, row_numbers, row_scale

# A row lies in the registers of one program.
HIDDEN_MAX = 32768
ELEMENTS_PER_WARP = 256


class OutputScales(NamedTuple):
    """Apply the scales that a product of fp8 numbers lacks: y[r, n] = product[r, n] · rows[r] · columns[n].

    `rows` [rows] and `columns` [columns] float32, contiguous."""

    rows: torch.Tensor
    columns: torch.Tensor


@triton.jit
def _norm_kernel(
    x_ptr,
    residual_ptr,  # None: x itself is normed
    delta_ptr,  # None: nothing is added to x
    adapted_ptr,
    row_scales_ptr,  # None: x has its scales
    column_scales_ptr,
    weight_ptr,
    out_ptr,
    numbers_ptr,  # None: the row is not quantised
    scales_ptr,
    x_stride,
    residual_stride,
    delta_stride,
    out_stride,
    hidden,
    eps,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    within = columns < hidden
    if numbers_ptr is not None:
        let_next_start(PDL)  # a product, which fetches weights meanwhile
    weight = tl.load(weight_ptr + columns, mask=within, other=0.0).to(tl.float32)
    if row_scales_ptr is not None:
        column_scales = tl.load(column_scales_ptr + columns, mask=within, other=0.0)
    await_previous(PDL)
    x = tl.load(x_ptr + row * x_stride + columns, mask=within, other=0.0)
    if row_scales_ptr is not None:
        x = x.to(tl.float32) * (tl.load(row_scales_ptr + row) * column_scales)
        if delta_ptr is None:
            x = x.to(x_ptr.dtype.element_ty)
    if delta_ptr is not None:
        wanted = columns < tl.where(tl.load(adapted_ptr + row) != 0, hidden, 0)
        delta = tl.load(delta_ptr + row * delta_stride + columns, mask=wanted, other=0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x_ptr.dtype.element_ty)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + row * residual_stride + columns, mask=within, other=0.0)
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * residual_stride + columns, x, mask=within)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / hidden + eps)
    normed = (x * scale).to(x_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * out_stride + columns, normed * weight, mask=within)
    if numbers_ptr is not None:
        rounded = (normed * weight).to(out_ptr.dtype.element_ty).to(tl.float32)
        quantum = row_scale(tl.max(tl.where(within, magnitude_bits(rounded), 0), 0))
        tl.store(numbers_ptr + row * hidden + columns, row_numbers(rounded, quantum, INTERPRETED), mask=within)
        tl.store(scales_ptr + row, quantum)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, *, quantized: QuantizedRows | None = None
) -> None:
    """out[r] = x[r] / sqrt(mean(x[r]²) + eps) · weight.

    `x`, `out` [rows, hidden] and `weight` [hidden] in one dtype, contiguous within a row; `out` may be `x`. Float32
    within; rounded before the weight is applied and after, as Hugging Face's models have it. `quantized` [rows, hidden]
    receives the rounded rows in fp8."""
    _launch(x, None, None, None, None, weight, eps, out, quantized)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    delta: torch.Tensor | None = None,
    adapted: torch.Tensor | None = None,
    scales: OutputScales | None = None,
    quantized: QuantizedRows | None = None,
) -> None:
    """residual[r] += x[r] + delta[r] in place, the delta only where `adapted[r]` ≠ 0; out[r] = rms_norm(residual[r]).

    `x`, `residual`, `delta`, `out` [rows, hidden] and `weight` [hidden] in one dtype, contiguous within a row;
    `adapted` [rows] int32, given exactly when `delta` is. Deltas of other rows are not read. x + delta is rounded, and
    so is the new residual, whose rounded value is normed: bit for bit the result of adding the delta to x beforehand.
    With `scales`, x is a product of fp8 numbers: x[r] · scales.rows[r] · scales.columns replaces x[r], in float32, and
    is rounded after the delta was added.
    `quantized` [rows, hidden] receives the rounded rows of `out` in fp8."""
    assert residual.shape == x.shape
    _launch(x, residual, delta, adapted, scales, weight, eps, out, quantized)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    delta: torch.Tensor | None,
    adapted: torch.Tensor | None,
    scales: OutputScales | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    quantized: QuantizedRows | None,
) -> None:
    rows, hidden = x.shape
    assert out.shape == x.shape
    assert weight.shape == (hidden,)
    assert weight.is_contiguous()
    assert hidden <= HIDDEN_MAX
    assert (delta is None) == (adapted is None)
    for operand in (x, residual, delta, out):
        assert operand is None or (operand.shape == x.shape and operand.dtype == x.dtype and operand.stride(1) == 1)
    if quantized is not None:
        check_quantized_rows(quantized, x.shape)
    if scales is not None:
        assert (scales.rows.shape, scales.columns.shape) == ((rows,), (hidden,))
        assert scales.rows.dtype == scales.columns.dtype == torch.float32
        assert scales.rows.is_contiguous()
        assert scales.columns.is_contiguous()
    if rows == 0:
        return
    block = triton.next_power_of_2(hidden)
    _norm_kernel[(rows,)](
        x,
        residual,
        delta,
        adapted,
        None if scales is None else scales.rows,
        None if scales is None else scales.columns,
        weight,
        out,
        None if quantized is None else quantized.numbers.view(torch.uint8),
        None if quantized is None else quantized.scales,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        0 if delta is None else delta.stride(0),
        out.stride(0),
        hidden,
        eps,
        BLOCK=block,
        INTERPRETED=is_interpreted(),
        num_warps=min(max(block // ELEMENTS_PER_WARP, 1), 16),
        **launch_options(x.device),
    )
