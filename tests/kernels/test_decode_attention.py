"""Decode attention against its reference: odd shapes, any page size, NaN wherever nobody may look."""

from __future__ import annotations

import random

import pytest
import torch

from kernels import decode_attention as kernel
from kernels import reference_attention as reference
from kernels.decode_attention import allocate_decode_plan, decode_attention, plan_decode
from support.kernels.attention import GPU_LENGTHS, LENGTHS, ON_GPU, check_decode
from support.kernels.paged_kv import DEVICE, DTYPES, Shape, assert_same, int32, paged

SEED = 20261121
SHAPES = [
    Shape(9, 3, 64, 16),  # SmolLM2
    Shape(32, 8, 128, 16),  # Llama-3.1-8B
    Shape(28, 4, 128, 13),  # Qwen2.5-7B
    Shape(4, 4, 64, 40),
    Shape(16, 1, 32, 7),
    Shape(6, 2, 96, 1),
    Shape(2, 1, 20, 5),
    Shape(64, 8, 128, 48),
    Shape(15, 5, 80, 16),
]


def matrix() -> list[tuple[Shape, str, torch.dtype]]:
    whole = [(shape, name, dtype) for shape in SHAPES for name in LENGTHS | GPU_LENGTHS for dtype in DTYPES]
    if ON_GPU:
        return whole
    print(f"a sample of the matrix, seed {SEED}")
    dice = random.Random(SEED)
    small = [case for case in whole if case[1] in LENGTHS and case[0].kv_heads * max(LENGTHS[case[1]]) < 8000]
    return dice.sample(small, 9)


@pytest.mark.parametrize(("shape", "name", "dtype"), matrix(), ids=str)
def test_the_matrix(shape: Shape, name: str, dtype: torch.dtype) -> None:
    check_decode(shape, (LENGTHS | GPU_LENGTHS)[name], dtype)


@pytest.mark.parametrize("programs", [1, 2, 7, 64])
def test_any_number_of_programs(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program does all the work in turn; many split a sequence as far as it goes, and it is combined in turns."""
    monkeypatch.setattr(kernel, "TILES_MIN", 1)
    monkeypatch.setattr(kernel, "COMBINED_ELEMENTS", 1024)
    check_decode(Shape(6, 2, 64, 16), [700, 0, 130, 1, 1100], DTYPES[0], programs=programs)


def test_a_prefix_shared_by_all() -> None:
    check_decode(Shape(9, 3, 64, 13), [100, 70, 41, 39, 12, 250], DTYPES[0], shared=3)


def test_rows_are_found_through_their_numbers() -> None:
    """The same sequences in another order of rows give each row the same output."""
    shape, kv_lens = Shape(4, 2, 32, 16), [90, 33, 150]
    arena = paged(shape, kv_lens, DTYPES[0], layer=0, dice=random.Random(1))
    q = torch.randn(3, shape.q_size).to(DTYPES[0]).to(DEVICE)
    plan = allocate_decode_plan(3, 4, 2, 32, DEVICE, programs=8)
    outs = []
    for order in ([0, 1, 2], [2, 0, 1]):
        plan_decode(
            plan, int32(order), int32([kv_lens[s] for s in order]), int32([arena.page_starts[s] for s in order])
        )
        out = torch.full_like(q, torch.nan)
        decode_attention(q, out, arena.kv, arena.pages, plan, layer=0, tokens_per_page=16, scale=shape.scale)
        outs.append(out)
    assert_same(outs[0], outs[1])


def test_a_score_far_below_or_above_the_others() -> None:
    """No overflow where scores are large, whichever tile holds the largest."""
    shape, keys = Shape(2, 1, 64, 16), 300
    for hot in (0, 100, 299):
        arena = paged(shape, [keys], DTYPES[0], layer=0, dice=random.Random(2))
        k, v = reference.gather_keys_values(
            arena.kv, arena.pages[arena.page_starts[0] :], keys, layer=0, kv_heads=1, head_dim=64, tokens_per_page=16
        )
        q = torch.full((1, 128), 1.0, dtype=DTYPES[0], device=DEVICE)
        page = int(arena.pages[arena.page_starts[0] + hot // 16])
        arena.kv[page, hot % 16 * 128 : hot % 16 * 128 + 64] = 60.0
        plan = allocate_decode_plan(1, 2, 1, 64, DEVICE, programs=4)
        plan_decode(plan, int32([0]), int32([keys]), int32(arena.page_starts))
        out = torch.full_like(q, torch.nan)
        decode_attention(q, out, arena.kv, arena.pages, plan, layer=0, tokens_per_page=16, scale=1.0)
        assert k.shape == v.shape
        assert_same(out, v[hot].repeat(1, 2))


@pytest.mark.parametrize("sequences", [1, 3, 256, 1000])
def test_the_plan_covers_every_key_once_within_its_bounds(sequences: int) -> None:
    dice = random.Random(sequences)
    programs, kv_heads = 396, 8
    plan = allocate_decode_plan(sequences, 32, kv_heads, 128, DEVICE, programs=programs)
    for most in (0, 1, 64, 700, 20_000, 131_072):
        kv_lens = [dice.randint(0, most) if dice.random() < 0.9 else 0 for _ in range(sequences)]
        starts = [dice.randrange(10**6) for _ in kv_lens]
        rows = dice.sample(range(sequences), sequences)
        plan.items.fill_(-1)
        plan_decode(plan, int32(rows), int32(kv_lens), int32(starts))
        items = plan.items.tolist()
        count = items[0][0]
        assert count <= plan.items_max
        assert plan.items[1 + count :].eq(-1).all()
        reached = [0] * sequences
        parts = [0] * sequences
        for index, (row, begin, end, start, sequence, first, of, _) in enumerate(items[1 : 1 + count]):
            assert (row, start) == (rows[sequence], starts[sequence])
            assert begin == reached[sequence] < end
            assert index == first + parts[sequence]
            reached[sequence] = end
            parts[sequence] += 1
            assert 1 <= of * kv_heads <= programs + kv_heads
        assert reached == kv_lens
        assert [items[1 + i][6] for i in range(count)] == [parts[items[1 + i][4]] for i in range(count)]


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: captured graphs")
def test_one_captured_graph_serves_any_batch() -> None:
    shape, capacity = Shape(32, 8, 128, 16), 16
    lengths = [[100] * 16, [5000, *([0] * 15)], [*range(1, 16), 9000], [0] * 16]
    arenas = [paged(shape, kv_lens, DTYPES[0], layer=1, dice=random.Random(3)) for kv_lens in lengths]
    pages = max(arena.kv.shape[0] for arena in arenas)
    kv = torch.empty(pages, arenas[0].kv.shape[1], dtype=DTYPES[0], device=DEVICE)
    table = torch.zeros(max(arena.pages.shape[0] for arena in arenas), dtype=torch.int32, device=DEVICE)
    rows, kv_lens, page_starts = (torch.zeros(capacity, dtype=torch.int32, device=DEVICE) for _ in range(3))
    q = torch.randn(capacity, shape.q_size, device=DEVICE).to(DTYPES[0])
    out = torch.empty_like(q)
    plan = allocate_decode_plan(256, shape.heads, shape.kv_heads, shape.head_dim, DEVICE)

    def launch() -> None:
        plan_decode(plan, rows, kv_lens, page_starts)
        decode_attention(q, out, kv, table, plan, layer=1, tokens_per_page=16, scale=shape.scale)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for arena, wanted_lens in zip(arenas, lengths, strict=True):
        kv.fill_(torch.nan)
        kv[: arena.kv.shape[0]] = arena.kv
        table[: arena.pages.shape[0]] = arena.pages
        rows.copy_(torch.arange(capacity).flip(0))
        kv_lens.copy_(torch.tensor(wanted_lens))
        page_starts.copy_(torch.tensor(arena.page_starts))
        out.fill_(torch.nan)
        wanted = out.clone()
        graph.replay()
        reference.decode_attention(
            q, wanted, kv, rows.tolist(), wanted_lens, arena.page_starts, table, layer=1, heads=shape.heads,
            kv_heads=shape.kv_heads, tokens_per_page=16, scale=shape.scale,
        )  # fmt: skip
        assert_same(out, wanted)
