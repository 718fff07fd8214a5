"""Dequantises a whole matrix, for products of many rows, where writing it costs little beside the product."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.quantize import is_interpreted
from kernels.quantized_elements import byte_numbers, check_quantized_matrix, half_byte_numbers
from kernels.quantized_product import columns_per_block

COLUMNS_MAX = 1024
ELEMENTS = 8192  # of a program
WARPS = 8


@triton.jit
def _dequantize_kernel(
    data, scales, zeros, out, outs, data_stride, out_stride, scales_row, scales_group, zeros_row, zeros_group,
    ELEMENT: tl.constexpr, BLOCKS_PER_GROUP: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Program (tile of columns, tile of rows of W). STEP: columns of data as stored. BLOCKS_PER_GROUP 0: one group."""
    row = (tl.program_id(1) * OUTS + tl.arange(0, OUTS)).to(tl.int64)
    live = row < outs
    block = tl.program_id(0)
    within = block * STEP + tl.arange(0, STEP)
    group = block // BLOCKS_PER_GROUP if BLOCKS_PER_GROUP > 0 else 0
    there = live[:, None] & (within < data_stride)[None, :]
    bits = tl.load(data + row[:, None] * data_stride + within[None, :], mask=there, other=0)
    scale = tl.load(scales + row * scales_row + group * scales_group, mask=live, other=0.0).to(tl.float32)[:, None]
    if ELEMENT == "int4":
        if zeros is None:
            zero = tl.full([OUTS], 8.0, tl.float32)
        else:
            zero = tl.load(zeros + row * zeros_row + group * zeros_group, mask=live, other=0).to(tl.float32)
        low, high = half_byte_numbers(bits, zero[:, None], tl.float32, INTERPRETED)
        dtype: tl.constexpr = out.dtype.element_ty
        w = tl.join((low * scale).to(dtype), (high * scale).to(dtype)).reshape(OUTS, 2 * STEP)
        column = 2 * block * STEP + tl.arange(0, 2 * STEP)
        there = live[:, None] & (column < 2 * data_stride)[None, :]
        tl.store(out + row[:, None] * out_stride + column[None, :], w, mask=there)
    else:
        w = byte_numbers(bits, ELEMENT, tl.float32, INTERPRETED) * scale
        tl.store(out + row[:, None] * out_stride + within[None, :], w.to(out.dtype.element_ty), mask=there)


def dequantize(
    data: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, out: torch.Tensor, *, element: str, group: int
) -> None:
    """out[n, k] = (q[n, k] − zero[n, k // group]) · scale[n, k // group], computed in float32 and rounded once.

    `out` [outs, in] bfloat16 or float16, contiguous within a row; the others as `quantized_product` has them.
    """
    outs, ins = out.shape
    packed = 2 if element == "int4" else 1
    check_quantized_matrix(data, scales, zeros, ins, element, group)
    assert data.shape[0] == outs
    assert out.dtype in (torch.bfloat16, torch.float16)
    assert out.stride(1) == 1
    block = columns_per_block(group, ins, COLUMNS_MAX)
    rows = ELEMENTS // block
    _dequantize_kernel[(triton.cdiv(ins, block), triton.cdiv(outs, rows))](
        data, scales, zeros, out, outs, data.stride(0), out.stride(0), *scales.stride(),
        *(zeros.stride() if zeros is not None else (0, 0)),
        ELEMENT=element, BLOCKS_PER_GROUP=0 if group >= ins else group // block, OUTS=rows, STEP=block // packed,
        INTERPRETED=is_interpreted(), num_warps=WARPS,
    )  # fmt: skip
