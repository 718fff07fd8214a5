"""What the attention kernels share: one output from the parts of split keys, and softmax over keys in fp8."""

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


@triton.jit
def fp8_queries(queries, scale):
    """The queries [rows, dim] as they are multiplied with fp8 keys, and the factor [rows] that their scores lack.

    Of 16 bits they become float16, to which fp8 is converted in one instruction for two numbers, bfloat16 in four. Each
    row of bfloat16 is brought to a maximum in [1, 2) by a power of two, so that nothing overflows and what is lost is
    less than 2⁻²⁴ of the maximum."""
    if queries.dtype == tl.bfloat16:
        wide = queries.to(tl.float32)
        largest = tl.max(tl.abs(wide), 1)
        exponent = tl.floor(tl.log2(tl.where(largest > 0.0, largest, 1.0)))
        exponent = tl.minimum(tl.maximum(exponent, -120.0), 120.0)
        factor = tl.exp2(exponent) * scale
        return (wide * tl.exp2(-exponent)[:, None]).to(tl.float16), factor
    else:
        return queries, tl.full([queries.shape[0]], 1.0, tl.float32) * scale


@triton.jit
def attend_fp8_tile(summed, highest, total, queries, factor, keys, values, key_scales, value_scales, seen):
    """Take one tile of fp8 keys into the running softmax, in base 2. `keys`, `values` [keys, dim] uint8, 0 where not
    there; scales [keys] float32, 1 where not there; `seen` [rows or 1, keys]; None: every row
    sees every key.

    V's scale is part of its key's weight: the running maximum is that of weight · scale, so that p · scale, which is
    rounded for the product with V, is at most 1 and as exact as p is without scales. `total` is the sum of p alone."""
    dtype = queries.dtype
    keys = keys.to(tl.float8e4nv, bitcast=True).to(dtype)
    values = values.to(tl.float8e4nv, bitcast=True).to(dtype)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * factor[:, None]
    scores = scores * key_scales[None, :] + tl.log2(value_scales)[None, :]
    if seen is not None:
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1))
    kept = tl.exp2(highest - higher)
    p = tl.exp2(scores - higher[:, None])
    total = total * kept + tl.sum(p * (1.0 / value_scales)[None, :], 1)
    summed = tl.dot(p.to(dtype), values, summed * kept[:, None], input_precision="ieee")
    return summed, higher, total
