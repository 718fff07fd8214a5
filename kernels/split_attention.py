"""Shared by the attention kernels that split over the keys: one output from the parts' outputs, each by the weight of
its keys."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combined_parts(
    partials, weights, first, count, row, there, rows_per_part,
    HEAD_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Rows `row` [BLOCK_ROWS], where `there`, of the parts first … first + count: float32 [BLOCK_ROWS, BLOCK_DIM], 0
    where not there. partials [parts × rows_per_part, HEAD_DIM] are outputs of softmax over a part's keys, weights
    [parts × rows_per_part] the base-2 logarithm of its sum. Added in the parts' order: the same bits each time."""
    dim = tl.arange(0, BLOCK_DIM)
    highest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    summed = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    for start in range(0, count, BLOCK_PARTS):
        part = start + tl.arange(0, BLOCK_PARTS)
        loaded = (part[:, None] < count) & there[None, :]
        at = (first + part[:, None]) * rows_per_part + row[None, :]
        # .cg: from the L2 cache, which all programs share.
        weight = tl.load(weights + at, mask=loaded, other=float("-inf"), cache_modifier=".cg")
        at = at.to(tl.int64)[:, :, None] * HEAD_DIM + dim[None, None, :]
        loaded = loaded[:, :, None] & (dim[None, None, :] < HEAD_DIM)
        outputs = tl.load(partials + at, mask=loaded, other=0.0, cache_modifier=".cg")
        higher = tl.maximum(highest, tl.max(weight, 0))
        higher = tl.where(there, higher, 0.0)  # else −inf − −inf, which is NaN
        kept = tl.exp2(highest - higher)
        weight = tl.exp2(weight - higher[None, :])
        total = total * kept + tl.sum(weight, 0)
        summed = summed * kept[:, None] + tl.sum(outputs * weight[:, :, None], 0)
        highest = higher
    return summed / tl.where(there, total, 1.0)[:, None]
