"""SwiGLU: out = silu(gate) · up, with the LoRA delta of gate and up added on the way. It knows rows, no layers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
WARPS = 4


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
    within = columns < width
    gate = tl.load(gate_up_ptr + row * gate_up_stride + columns, mask=within, other=0.0)
    up = tl.load(gate_up_ptr + row * gate_up_stride + width + columns, mask=within, other=0.0)
    dtype = out_ptr.dtype.element_ty
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
    tl.store(out_ptr + row * out_stride + columns, silu * up.to(tl.float32), mask=within)


def swiglu(
    gate_up: torch.Tensor,
    out: torch.Tensor,
    *,
    delta: torch.Tensor | None = None,
    adapted: torch.Tensor | None = None,
) -> None:
    """out[r] = silu(gate) · up, where gate, up = the halves of gate_up[r] + delta[r], the delta only where
    `adapted[r]` ≠ 0.

    `gate_up`, `delta` [rows, 2 · width] and `out` [rows, width] in one dtype, contiguous within a row; `adapted` [rows]
    int32, given exactly when `delta` is. Deltas of other rows are not read. Float32 within; gate_up + delta is rounded,
    so is silu(gate), as torch's ops one by one do."""
    rows, width = out.shape
    assert (delta is None) == (adapted is None)
    for operand in (gate_up, delta):
        assert operand is None or (operand.shape == (rows, 2 * width) and operand.dtype == out.dtype)
        assert operand is None or operand.stride(1) == 1
    assert out.stride(1) == 1
    if rows == 0:
        return
    _swiglu_kernel[(triton.cdiv(width, BLOCK), rows)](
        gate_up,
        delta,
        adapted,
        out,
        gate_up.stride(0),
        0 if delta is None else delta.stride(0),
        out.stride(0),
        width,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
