"""SwiGLU: out = silu(gate) · up, with the LoRA delta of gate and up added on the way. It knows rows, no layers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import await_previous, launch_options, let_next_start
from kernels.quantize import (
    QuantizedRows,
    check_quantized_rows,
    magnitude_bits,
    row_blocks,
    row_numbers,
    row_scale,
    write_row,
)

BLOCK = 1024
WARPS = 4


@triton.jit
def _activated(gate_up_ptr, delta_ptr, adapted_ptr, row, delta_stride, columns, width, dtype: tl.constexpr):
    """silu(gate) · up of some columns of a row, in float32. `gate_up_ptr` is the row's."""
    within = columns < width
    gate = tl.load(gate_up_ptr + columns, mask=within, other=0.0)
    up = tl.load(gate_up_ptr + width + columns, mask=within, other=0.0)
    if delta_ptr is not None:
        wanted = columns < tl.where(tl.load(adapted_ptr + row) != 0, width, 0)
        delta = delta_ptr + row * delta_stride + columns
        gate_delta = tl.load(delta, mask=wanted, other=0.0)
        up_delta = tl.load(delta + width, mask=wanted, other=0.0)
        gate = (gate.to(tl.float32) + gate_delta.to(tl.float32)).to(dtype)
        up = (up.to(tl.float32) + up_delta.to(tl.float32)).to(dtype)
    gate = gate.to(tl.float32)
    exponential = tl.exp(-tl.maximum(gate, -87.0))  # finite in float32
    silu = (gate / (1.0 + exponential)).to(dtype).to(tl.float32)
    return silu * up.to(tl.float32)


@triton.jit
def _swiglu_kernel(
    gate_up_ptr,
    delta_ptr,  # None: nothing is added
    adapted_ptr,
    out_ptr,
    gate_up_stride,
    delta_stride,
    out_stride,
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    activated = _activated(
        gate_up_ptr + row * gate_up_stride, delta_ptr, adapted_ptr, row, delta_stride, columns, width, dtype
    )
    tl.store(out_ptr + row * out_stride + columns, activated, mask=columns < width)


@triton.jit
def _quantizing_kernel(
    gate_up_ptr,
    delta_ptr,  # None: nothing is added
    adapted_ptr,
    out_ptr,
    numbers_ptr,
    scales_ptr,
    gate_up_stride,
    delta_stride,
    out_stride,
    width,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row, whose scale needs the largest of all its elements."""
    row = tl.program_id(0).to(tl.int64)
    gate_up_ptr += row * gate_up_stride
    out_ptr += row * out_stride
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    let_next_start(PDL)  # a product, which fetches weights meanwhile
    await_previous(PDL)
    if WHOLE:
        columns = tl.arange(0, BLOCK)
        within = columns < width
        rounded = _activated(gate_up_ptr, delta_ptr, adapted_ptr, row, delta_stride, columns, width, dtype).to(dtype)
        tl.store(out_ptr + columns, rounded, mask=within)
        wide = rounded.to(tl.float32)
        scale = row_scale(tl.max(tl.where(within, magnitude_bits(wide), 0), 0))
        tl.store(scales_ptr + row, scale)
        tl.store(numbers_ptr + row * width + columns, row_numbers(wide, scale, INTERPRETED), mask=within)
    else:
        largest = tl.zeros([BLOCK], tl.int32)
        for first in range(0, width, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            rounded = _activated(gate_up_ptr, delta_ptr, adapted_ptr, row, delta_stride, columns, width, dtype).to(
                dtype
            )
            tl.store(out_ptr + columns, rounded, mask=columns < width)
            bits = tl.where(columns < width, magnitude_bits(rounded.to(tl.float32)), 0)
            largest = tl.maximum(largest, bits)
        tl.debug_barrier()  # every thread has written before any thread reads
        write_row(out_ptr, numbers_ptr, scales_ptr, row, width, tl.max(largest, 0), BLOCK, INTERPRETED)


def swiglu(
    gate_up: torch.Tensor,
    out: torch.Tensor,
    *,
    delta: torch.Tensor | None = None,
    adapted: torch.Tensor | None = None,
    quantized: QuantizedRows | None = None,
) -> None:
    """out[r] = silu(gate) · up, where gate, up = the halves of gate_up[r] + delta[r], the delta only where
    `adapted[r]` ≠ 0.

    `gate_up`, `delta` [rows, 2 · width] and `out` [rows, width] in one dtype, contiguous within a row; `adapted` [rows]
    int32, given exactly when `delta` is. Deltas of other rows are not read. Float32 within; gate_up + delta is rounded,
    so is silu(gate), as torch's ops one by one do. `quantized` [rows, width] receives the rounded rows of `out` in
    fp8."""
    rows, width = out.shape
    assert (delta is None) == (adapted is None)
    for operand in (gate_up, delta):
        assert operand is None or (operand.shape == (rows, 2 * width) and operand.dtype == out.dtype)
        assert operand is None or operand.stride(1) == 1
    assert out.stride(1) == 1
    if quantized is not None:
        check_quantized_rows(quantized, out.shape)
    if rows == 0:
        return
    strides = gate_up.stride(0), 0 if delta is None else delta.stride(0), out.stride(0)
    if quantized is None:
        _swiglu_kernel[(triton.cdiv(width, BLOCK), rows)](
            gate_up, delta, adapted, out, *strides, width, BLOCK=BLOCK, num_warps=WARPS
        )
        return
    _quantizing_kernel[(rows,)](
        gate_up,
        delta,
        adapted,
        out,
        quantized.numbers.view(torch.uint8),
        quantized.scales,
        *strides,
        width,
        **row_blocks(rows, width),
        **launch_options(out.device),
    )
