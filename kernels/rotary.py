"""Rotary position embedding: the angles of a step once, then per layer q and k rotated, q to a buffer and K and V to
their token's place in the arena. It knows rows, pages and slots, no sequences.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.fp8_attention import find_runs

TABLE_BLOCK = 256
HEADS_BLOCK = 4
WARPS = 4


@triton.jit
def _tables_kernel(positions_ptr, frequencies_ptr, cos_ptr, sin_ptr, half, count, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    within = index < count
    position = tl.load(positions_ptr + index // half, mask=within, other=0)
    frequency = tl.load(frequencies_ptr + index % half, mask=within, other=0.0)
    # The product is rounded to float32, as torch's is. From there on 2π is a float64's 2π: positions go far beyond what
    # fast cosines reduce well.
    angle = (position.to(tl.float32) * frequency).to(tl.float64)
    quadrant = tl.floor(angle * 0.6366197723675814 + 0.5)
    x = (angle - quadrant * 1.5707963267948966).to(tl.float32)  # within ±π/4
    square = x * x
    # Minimax polynomials of Cephes' sinf and cosf.
    sin = x + x * square * (-1.6666654611e-1 + square * (8.3321608736e-3 - square * 1.9515295891e-4))
    cos = 4.166664568298827e-2 + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5)
    cos = 1.0 - 0.5 * square + square * square * cos
    turn = quadrant.to(tl.int32) & 3
    odd = (turn & 1) != 0
    tl.store(cos_ptr + index, tl.where(odd, sin, cos) * tl.where((turn == 1) | (turn == 2), -1.0, 1.0), mask=within)
    tl.store(sin_ptr + index, tl.where(odd, cos, sin) * tl.where(turn >= 2, -1.0, 1.0), mask=within)


@triton.jit
def _head_norm(first, second, weight_ptr, lanes, inside, head_dim, eps):
    """Both halves of heads [heads, half] float32, normed over the whole head and rounded as a norm's output is."""
    dtype = weight_ptr.dtype.element_ty
    mean = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / head_dim
    scale = tl.rsqrt(mean + eps)[:, None]
    first_weight = tl.load(weight_ptr + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
    second_weight = tl.load(weight_ptr + head_dim // 2 + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
    first = ((first * scale).to(dtype).to(tl.float32) * first_weight).to(dtype).to(tl.float32)
    second = ((second * scale).to(dtype).to(tl.float32) * second_weight).to(dtype).to(tl.float32)
    return first, second


@triton.jit
def _e4m3(x):
    """The bits of float8_e4m3fn of float32 numbers |x| < 464, to nearest even, as uint8. In integers: not every device
    and not the interpreter converts so."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 120 * 8
    # Below 2⁻⁶ the codes count units of 2⁻⁹, which is the last place of floats from 2¹⁴ on.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.minimum(tl.where(size < 0x3C800000, small, normal), 0x7E)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _quantised(first, second):
    """Both halves of heads [heads, half] float32 as uint8, and their scales float16 [heads]: `reference_kv` says how.
    Lanes beyond a head are 0."""
    # As integers, so that a NaN is above every number.
    largest = tl.max(tl.maximum(first.to(tl.int32, bitcast=True) & 0x7FFFFFFF,
                                second.to(tl.int32, bitcast=True) & 0x7FFFFFFF), 1)  # fmt: skip
    exact = tl.math.div_rn(largest.to(tl.float32, bitcast=True), 448.0)
    finite = exact <= 65504.0  # float16's largest number; false of NaN
    exact = tl.where(finite, exact, 1.0)
    nearest = exact.to(tl.float16)
    above = tl.where(nearest.to(tl.float32) < exact, 1, 0)
    bits = tl.maximum(nearest.to(tl.int16, bitcast=True).to(tl.int32) + above, 1)
    scale = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)[:, None]
    first = tl.where(finite[:, None], _e4m3(tl.math.div_rn(first, scale)), 0x7F)
    second = tl.where(finite[:, None], _e4m3(tl.math.div_rn(second, scale)), 0x7F)
    return first, second, tl.where(finite, bits, 0x7FFF).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _rotary_kernel(
    qkv_ptr,
    delta_ptr,  # None: nothing is added
    adapted_ptr,
    q_norm_ptr,  # None: q and k are not normed
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    write_pages_ptr,
    write_slots_ptr,
    q_out_ptr,
    kv_ptr,
    scales_ptr,  # None: K and V are written in q's dtype; else their numbers are fp8, and kv_ptr uint8
    qkv_stride,
    delta_stride,
    q_stride,
    page_stride,
    layer_offset,
    scales_page_stride,
    scales_offset,
    eps,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    tokens_per_page: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """Heads lie side by side in a row of qkv: q's, k's, v's; and k's and v's in the same order in a token's slot."""
    row = tl.program_id(1).to(tl.int64)
    half: tl.constexpr = head_dim // 2
    head = tl.program_id(0) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
    lanes = tl.arange(0, HALF_BLOCK)
    inside = lanes < half
    within = (head < heads + 2 * kv_heads)[:, None] & inside[None, :]
    offsets = head[:, None] * head_dim + lanes[None, :]
    dtype = q_out_ptr.dtype.element_ty
    page = tl.load(write_pages_ptr + row)
    slot = tl.load(write_slots_ptr + row)
    cos = tl.load(cos_ptr + row * half + lanes, mask=inside, other=0.0)[None, :]
    sin = tl.load(sin_ptr + row * half + lanes, mask=inside, other=0.0)[None, :]
    qkv = qkv_ptr + row * qkv_stride + offsets
    first = tl.load(qkv, mask=within, other=0.0).to(tl.float32)
    second = tl.load(qkv + half, mask=within, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        adapted_heads = tl.where(tl.load(adapted_ptr + row) != 0, heads + 2 * kv_heads, 0)
        wanted = (head < adapted_heads)[:, None] & inside[None, :]
        delta = delta_ptr + row * delta_stride + offsets
        first = (first + tl.load(delta, mask=wanted, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
        second = (second + tl.load(delta + half, mask=wanted, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
    is_q = (head < heads)[:, None]
    is_v = (head >= heads + kv_heads)[:, None]
    rotated_first, rotated_second = first, second
    if q_norm_ptr is not None:
        q_first, q_second = _head_norm(first, second, q_norm_ptr, lanes, inside, head_dim, eps)
        k_first, k_second = _head_norm(first, second, k_norm_ptr, lanes, inside, head_dim, eps)
        rotated_first = tl.where(is_q, q_first, k_first)
        rotated_second = tl.where(is_q, q_second, k_second)
    out_first = tl.where(is_v, first, rotated_first * cos - rotated_second * sin).to(dtype)
    out_second = tl.where(is_v, second, rotated_second * cos + rotated_first * sin).to(dtype)
    q_out = q_out_ptr + row * q_stride + offsets
    to_q = (head < tl.where(page >= 0, heads, 0))[:, None] & inside[None, :]
    tl.store(q_out, out_first, mask=to_q)
    tl.store(q_out + half, out_second, mask=to_q)
    token = layer_offset + slot * (2 * kv_heads * head_dim) - heads * head_dim
    kv = kv_ptr + page.to(tl.int64) * page_stride + token + offsets
    to_kv = (head < tl.where(page >= 0, heads + 2 * kv_heads, 0))[:, None] & (head >= heads)[:, None] & inside[None, :]
    if scales_ptr is not None:
        # Of the numbers as the model's dtype rounds them; lanes beyond a head are 0.
        kv_first, kv_second, scales = _quantised(out_first.to(tl.float32), out_second.to(tl.float32))
        scale_at = scales_offset + (head - heads) * tokens_per_page + slot
        of_kv = (head >= heads) & (head < tl.where(page >= 0, heads + 2 * kv_heads, 0))
        tl.store(scales_ptr + page.to(tl.int64) * scales_page_stride + scale_at, scales, mask=of_kv)
        tl.store(kv, kv_first, mask=to_kv)
        tl.store(kv + half, kv_second, mask=to_kv)
    else:
        tl.store(kv, out_first, mask=to_kv)
        tl.store(kv + half, out_second, mask=to_kv)


def rotary_tables(positions: torch.Tensor, frequencies: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """cos, sin[r, i] = cos, sin(positions[r] · frequencies[i]).

    `positions` [rows] int32 or int64; `frequencies` [half] float32, radians; `cos`, `sin` [rows, half] float32, all
    contiguous. Right to float32's last bits at any angle below 2²⁴."""
    rows, half = cos.shape
    assert positions.shape == (rows,)
    assert frequencies.shape == (half,)
    assert sin.shape == cos.shape
    assert cos.dtype == sin.dtype == frequencies.dtype == torch.float32
    assert all(operand.is_contiguous() for operand in (positions, frequencies, cos, sin))
    if rows:
        grid = (triton.cdiv(rows * half, TABLE_BLOCK),)
        _tables_kernel[grid](positions, frequencies, cos, sin, half, rows * half, BLOCK=TABLE_BLOCK, num_warps=4)


def rotary_write(
    qkv: torch.Tensor,
    q_out: torch.Tensor,
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    write_pages: torch.Tensor,
    write_slots: torch.Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    tokens_per_page: int,
    delta: torch.Tensor | None = None,
    adapted: torch.Tensor | None = None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Row r's q, k, v = qkv[r] + delta[r], the delta only where `adapted[r]` ≠ 0; q and k normed per head where weights
    are given, and rotated; q is written to q_out[r], K and V to page `write_pages[r]`, slot `write_slots[r]`, layer
    `layer`. A row whose page is -1 is padding: it writes nothing.

    `qkv`, `delta` [rows, (heads + 2 · kv_heads) · head_dim], `q_out` [rows, heads · head_dim], `kv` the arena [pages,
    page elements], norm weights [head_dim], in one dtype, contiguous within a row; `cos`, `sin` [rows, head_dim / 2]
    float32, contiguous; `write_pages`, `write_slots`, `adapted` [rows] int32. A page holds layers, each of
    `tokens_per_page` slots, each K of all heads, then V of all heads. Head halves rotate together, as in Hugging Face's
    Llama. Float32 within; rounded where single ops would round: after the delta, after the norm, at the end.

    `kv` uint8 [pages, page_bytes]: K and V are written in fp8 with a scale per head, as `kv_layout` and
    `reference_kv.quantise_heads` say, of the numbers as they would be in the model's dtype."""
    rows, width = qkv.shape
    head_dim = width // (heads + 2 * kv_heads)
    layer_offset, scales, scales_page_stride, scales_offset = find_runs(kv, layer, tokens_per_page, kv_heads, head_dim)
    assert width == (heads + 2 * kv_heads) * head_dim
    assert head_dim % 2 == 0
    assert q_out.shape == (rows, heads * head_dim)
    assert cos.shape == sin.shape == (rows, head_dim // 2)
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    assert write_pages.shape == write_slots.shape == (rows,)
    assert (delta is None) == (adapted is None)
    assert (q_norm is None) == (k_norm is None)
    assert delta is None or delta.shape == qkv.shape
    for operand in (qkv, delta, q_out, None if scales is not None else kv, q_norm, k_norm):
        assert operand is None or (operand.dtype == qkv.dtype and operand.stride(-1) == 1)
    if rows == 0:
        return
    _rotary_kernel[(triton.cdiv(heads + 2 * kv_heads, HEADS_BLOCK), rows)](
        qkv,
        delta,
        adapted,
        q_norm,
        k_norm,
        cos,
        sin,
        write_pages,
        write_slots,
        q_out,
        kv,
        scales,
        qkv.stride(0),
        0 if delta is None else delta.stride(0),
        q_out.stride(0),
        kv.stride(0),
        layer_offset,
        scales_page_stride,
        scales_offset,
        eps,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tokens_per_page=tokens_per_page,
        HEADS_BLOCK=HEADS_BLOCK,
        HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        num_warps=WARPS,
    )
