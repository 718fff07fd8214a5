"""K and V in fp8: what is written, what attention reads of it, and that nothing else is read or written."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from kernels import reference_attention, reference_step, rotary
from kernels.decode_attention import FP8_TUNING, allocate_decode_plan, decode_attention, plan_decode
from kernels.kv_layout import FP8, KvLayout, fp8_run_bytes, fp8_scales_start
from kernels.prefill_attention import prefill_attention
from kernels.prefill_blocks import prefill_blocks
from kernels.reference_kv import E4M3_NAN, dequantise_heads, quantise_heads
from support.kernels.attention import CHUNKS, GPU_CHUNKS, GPU_LENGTHS, LENGTHS, check_decode, check_prefill
from support.kernels.operands import DEVICE, GPU, deltas, normal, poisoned, sampled
from support.kernels.paged_kv import DTYPES, Shape, assert_same, int32, paged

HEAD_DIMS, KV_HEADS, PAGES = (64, 80, 128), (1, 3, 8), (16, 31, 8)
GROUPS = {1: 4, 3: 3, 8: 4}  # query heads of a K/V head
SHAPES = [
    *(Shape(GROUPS[n] * n, n, dim, size) for dim, n, size in itertools.product(HEAD_DIMS, KV_HEADS, PAGES)),
    Shape(2, 1, 20, 5),
    Shape(6, 2, 96, 1),
]
WRITTEN = list(itertools.product([0, 1, 33], SHAPES, ["", "delta", "norm", "delta norm"], DTYPES))


def cases(lengths: dict[str, Any], count: int, cost: int) -> list[tuple[Shape, str, torch.dtype]]:
    """A sample of the cases in the interpreter, where each takes seconds."""
    whole = list(itertools.product(SHAPES, lengths, DTYPES))
    small = [case for case in whole if GPU or case[0].kv_heads * case[0].head_dim <= cost]
    return sampled("fp8", small, count)


# ---- one head


def test_a_head_is_within_one_step_of_its_scale() -> None:
    """e4m3 has 3 bits after the point: half a step is 2⁻⁴ of a number, or 2⁻¹⁰ of the scale near zero. The scale is no
    more than one float16 above max / 448."""
    x = torch.randn(4000, 96, generator=torch.Generator().manual_seed(1)) * 10 ** torch.linspace(-9, 6, 4000)[:, None]
    numbers, scales = quantise_heads(x)
    back = torch.empty_like(x)
    dequantise_heads(numbers, scales, back)
    wide = scales.float()[:, None]
    assert ((back - x).abs() <= torch.maximum(x.abs() * 2**-4, wide * 2**-10) * 1.0001).all()
    exact = x.abs().amax(1) / 448
    assert (scales.float() >= exact).all()
    assert (scales.float() <= exact * (1 + 2**-10) + 2**-24).all()
    assert (numbers & 0x7F).max() < E4M3_NAN
    assert (numbers & 0x7F).amax(1)[exact > 1e-4].min() == 0x7E, "the largest number of a head is 448"


def test_numbers_in_16_bits_are_those_in_float32() -> None:
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert all(torch.equal(a, b) for a, b in zip(quantise_heads(x), quantise_heads(x.float()), strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 65504.0 * 448 * 1.001])
def test_a_head_that_fp8_cannot_hold_is_nan(bad: float) -> None:
    x = torch.ones(3, 64)
    x[1, 7] = bad
    numbers, scales = quantise_heads(x)
    assert (numbers[1] == E4M3_NAN).all()
    assert scales.isnan().tolist() == [False, True, False]
    back = torch.empty_like(x)
    dequantise_heads(numbers, scales, back)
    assert back[1].isnan().all()
    torch.testing.assert_close(back[0], x[0], rtol=2**-10, atol=0)


def test_a_head_of_zeros_is_zeros() -> None:
    numbers, scales = quantise_heads(torch.zeros(2, 64))
    assert not numbers.any()
    assert (scales == 2**-24).all(), "the smallest positive float16"


# ---- rotary_write


@pytest.mark.parametrize(("rows", "shape", "extra", "dtype"), sampled("fp8 rotary_write", WRITTEN, 14))
def test_what_is_written_and_where(rows: int, shape: Shape, extra: str, dtype: torch.dtype) -> None:
    """V's bytes, which no arithmetic of floats precedes, are the reference's. K's are within one code, and its scales
    within one float16: a rotation may round otherwise. Every other byte of the arena is as before."""
    layer, width = 1, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    qkv = normal(rows, width, dtype=dtype, seed=1)
    options: dict[str, Any] = deltas(rows, width, dtype, 2) if "delta" in extra else {}
    if "norm" in extra:
        q_norm, k_norm = (normal(shape.head_dim, dtype=dtype, seed=seed).contiguous() for seed in (3, 4))
        options |= {"q_norm": q_norm, "k_norm": k_norm, "eps": 1e-6}
    size = shape.tokens_per_page
    pages = rows // size + 2
    chosen = torch.randperm(pages * size, generator=torch.Generator().manual_seed(5))[:rows].to(DEVICE)
    write_pages = (chosen // size).masked_fill(chosen % 4 == 0, -1).int()
    angles = torch.arange(rows, device=DEVICE)[:, None] * torch.linspace(1, 0.01, shape.head_dim // 2, device=DEVICE)
    run = fp8_run_bytes(size, shape.kv_heads, shape.head_dim)
    kv = torch.full((pages, 3 * run + 6), 0x5A, dtype=torch.uint8, device=DEVICE)
    q_out = poisoned(rows, shape.q_size, dtype=dtype)
    wanted, wanted_q = kv.clone(), q_out.clone()
    place: dict[str, Any] = {
        "layer": layer, "heads": shape.heads, "kv_heads": shape.kv_heads, "tokens_per_page": size
    }  # fmt: skip
    where = angles.cos(), angles.sin(), write_pages, (chosen % size).int()
    rotary.rotary_write(qkv, q_out, kv, *where, **place, **options)
    reference_step.rotary_write(qkv, wanted_q, wanted, *where, **place, **options)
    torch.testing.assert_close(q_out, wanted_q, rtol=2e-2, atol=2e-2, equal_nan=True)
    start = fp8_scales_start(size, shape.kv_heads, shape.head_dim)
    data = slice(run, run + start)
    numbers, wanted_numbers = (x[:, data].reshape(pages, size, 2, -1).int() for x in (kv, wanted))
    assert ((numbers - wanted_numbers).abs() <= 1)[:, :, 0].all()
    end = start + 4 * size * shape.kv_heads
    scales, wanted_scales = (
        x[:, run + start : run + end].contiguous().view(torch.int16).view(pages, 2, -1).int() for x in (kv, wanted)
    )
    assert ((scales - wanted_scales).abs() <= 1).all()
    if "delta" not in extra:
        assert torch.equal(numbers[:, :, 1], wanted_numbers[:, :, 1])
        assert torch.equal(scales[:, 1], wanted_scales[:, 1])
    for x in (kv, wanted):
        x[:, run : run + end] = 0x5A
    assert (kv == 0x5A).all(), "a byte that is no live row's number or scale"
    assert (wanted == 0x5A).all()


def test_a_row_that_fp8_cannot_hold_is_nan_alone() -> None:
    """NaN and infinities of one head leave the row's other heads and the other rows as they are."""
    kv_heads, head_dim, size = 2, 32, 8
    qkv = torch.ones(4, 6 * head_dim, device=DEVICE)
    for row, (head, bad) in enumerate([(2, torch.nan), (3, torch.inf), (5, -torch.inf)]):
        qkv[row, head * head_dim + 3] = bad
    run = fp8_run_bytes(size, kv_heads, head_dim)
    kv, q = torch.zeros(1, run, dtype=torch.uint8, device=DEVICE), torch.empty(4, 2 * head_dim, device=DEVICE)
    turned = (torch.full((4, head_dim // 2), 0.7, device=DEVICE),) * 2
    rotary.rotary_write(
        qkv, q, kv, *turned, int32([0] * 4), int32([0, 1, 2, 3]), layer=0, heads=2, kv_heads=2, tokens_per_page=size
    )
    k, v = reference_attention.gather_keys_values(
        kv, int32([0]), 4, layer=0, kv_heads=kv_heads, head_dim=head_dim, tokens_per_page=size
    )
    nan = torch.stack((k, v), 1).isnan().cpu()  # [row, K or V, head, dim]
    assert nan.all(-1).nonzero().tolist() == [[0, 0, 0], [1, 0, 1], [2, 1, 1]]
    assert nan.any(-1).sum() == 3


# ---- attention


@pytest.mark.parametrize(("shape", "name", "dtype"), cases(LENGTHS | (GPU_LENGTHS if GPU else {}), 7, 300), ids=str)
def test_decode_attention(shape: Shape, name: str, dtype: torch.dtype) -> None:
    check_decode(shape, (LENGTHS | GPU_LENGTHS)[name], dtype, fp8=True)


@pytest.mark.parametrize(("shape", "name", "dtype"), cases(CHUNKS | (GPU_CHUNKS if GPU else {}), 7, 300), ids=str)
def test_prefill_attention(shape: Shape, name: str, dtype: torch.dtype) -> None:
    check_prefill(shape, (CHUNKS | GPU_CHUNKS)[name], dtype, programs=264 if GPU else None, fp8=True)


@pytest.mark.parametrize("shape", [Shape(32, 8, 128, 31), Shape(16, 8, 64, 8)], ids=str)
def test_both_kernels_at_the_widest_shapes(shape: Shape) -> None:
    check_decode(shape, [3, 0, 70], DTYPES[0], fp8=True)
    check_prefill(shape, [(5, 70), (0, 9)], DTYPES[0], fp8=True)


def test_split_keys_and_shared_prefixes() -> None:
    shape = Shape(6, 2, 64, 31)
    check_decode(shape, [700, 0, 130, 1, 1100], DTYPES[0], programs=16, shared=2, fp8=True)
    check_prefill(shape, [(3, 2000), (40, 140)], DTYPES[0], programs=16, shared=1, fp8=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("power", [-12, 0, 12])
def test_scales_far_from_one(power: int, dtype: torch.dtype) -> None:
    """V of a size that float16 would lose or not hold, times p: the output is as exact as at size 1. Queries of
    bfloat16 beyond float16's range, and keys as much smaller."""
    shape, keys = Shape(4, 1, 64, 16), 90
    torch.manual_seed(3)
    factor = 2.0**power
    wide = 2.0 ** (18 if dtype == torch.bfloat16 else 0)
    arena = paged(shape, [keys], dtype, layer=0, dice=random.Random(3), fp8=True)
    table = arena.pages[arena.page_starts[0] :].tolist()
    start = fp8_scales_start(16, 1, 64)
    for page in table:
        scales = arena.kv[page, start : start + 64].view(torch.float16).view(2, 16)
        scales[0] /= wide
        scales[1] *= factor
    q = (torch.randn(1, 256) * wide).to(dtype).to(DEVICE)
    place: dict[str, Any] = {"layer": 0, "tokens_per_page": 16, "scale": shape.scale}
    plan = allocate_decode_plan(1, 4, 1, 64, torch.device(DEVICE), programs=4, tuning=FP8_TUNING)
    plan_decode(plan, int32([0]), int32([keys]), int32(arena.page_starts))
    out, prefilled, wanted = torch.empty_like(q), torch.empty_like(q), torch.empty(1, 256, device=DEVICE)
    decode_attention(q, out, arena.kv, arena.pages, plan, **place)
    lengths = int32([0]), int32([1]), int32([keys]), int32(arena.page_starts)
    blocks = torch.from_numpy(prefill_blocks([1], [keys], 4, 1)).to(DEVICE)
    prefill_attention(q, prefilled, arena.kv, *lengths, arena.pages, blocks, heads=4, kv_heads=1, **place)
    reference_attention.decode_attention(
        q.float(), wanted, arena.kv, [0], [keys], arena.page_starts, arena.pages, heads=4, kv_heads=1, **place
    )
    assert wanted.abs().max() > factor / 20
    assert_same(out / factor, (wanted / factor).to(dtype))
    assert_same(prefilled / factor, (wanted / factor).to(dtype))


@pytest.mark.parametrize("which", ["K", "V"])
def test_a_stale_scale_shows(which: str) -> None:
    """The scale of one key, twice as large, changes the output of every query head of its K/V head, of no other."""
    shape, keys = Shape(4, 2, 64, 8), 21
    arena = paged(shape, [keys], torch.float16, layer=1, dice=random.Random(4), fp8=True)
    q = torch.randn(1, 256, generator=torch.Generator().manual_seed(1)).half().to(DEVICE)
    plan = allocate_decode_plan(1, 4, 2, 64, torch.device(DEVICE), programs=4, tuning=FP8_TUNING)
    plan_decode(plan, int32([0]), int32([keys]), int32(arena.page_starts))
    run, start = fp8_run_bytes(8, 2, 64), fp8_scales_start(8, 2, 64)
    outs = []
    for _ in range(2):
        outs.append(torch.empty_like(q))
        decode_attention(q, outs[-1], arena.kv, arena.pages, plan, layer=1, tokens_per_page=8, scale=0.125)
        page = int(arena.pages[arena.page_starts[0] + 1])  # of keys 8 to 15
        scales = arena.kv[page, run + start : run + start + 64].view(torch.float16).view(2, 2, 8)
        scales["KV".index(which), 1, 3] *= 2
    changed = (outs[0] != outs[1]).view(4, 64).any(1).tolist()
    assert changed == [False, False, True, True]


# ---- the layout


@pytest.mark.parametrize(("kv_heads", "head_dim", "layers"), [(8, 128, 32), (3, 64, 30), (1, 20, 2), (5, 80, 7)])
def test_a_page_holds_as_many_tokens_as_fit(kv_heads: int, head_dim: int, layers: int) -> None:
    layout = KvLayout(layers, kv_heads, head_dim, FP8)
    assert layout.token_bytes == layers * 2 * kv_heads * (head_dim + 2)
    for tokens in (1, 8, 16, 31, 77):
        run = layout.run_bytes(tokens)
        assert run % 32 == 0
        assert 0 <= run - tokens * layout.token_bytes // layers < 32
        assert layout.tokens_per_page(layers * run) == tokens
        assert layout.tokens_per_page(layers * run - 1) == tokens - 1
        assert layout.page_waste(layers * run + 7) == layers * run + 7 - tokens * layout.token_bytes


def test_llama_8b() -> None:
    wide, fp8 = (KvLayout(32, 8, 128, dtype) for dtype in ("bfloat16", FP8))
    assert wide.token_bytes == 131_072
    assert fp8.token_bytes == 66_560
    assert 16 * fp8.token_bytes == 1_064_960
    assert fp8.tokens_per_page(1_064_960) == 16
    assert fp8.tokens_per_page(2 << 20) == 31
    assert fp8.tokens_per_page(2_129_920) == 32
    assert wide.tokens_per_page(2_129_920) == wide.tokens_per_page(2 << 20) == 16
    assert {wide.identity, fp8.identity} == {"bfloat16/v1", "fp8-e4m3-f16scales/v1"}
