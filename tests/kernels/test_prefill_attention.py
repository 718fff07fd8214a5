"""Prefill attention against its reference: odd shapes, any page size, NaN wherever nobody may look."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from kernels.prefill_attention import allocate_prefill_partials, prefill_attention
from kernels.prefill_blocks import BLOCK_ROWS, FIELDS, prefill_blocks
from support.kernels.attention import CHUNKS, GPU_CHUNKS, ON_GPU, check_prefill
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
    Shape(15, 5, 80, 16),
]


def matrix() -> list[tuple[Shape, str, torch.dtype]]:
    whole = [(shape, name, dtype) for shape in SHAPES for name in CHUNKS | GPU_CHUNKS for dtype in DTYPES]
    if ON_GPU:
        return whole
    print(f"a sample of the matrix, seed {SEED}")
    return random.Random(SEED).sample([case for case in whole if case[1] in CHUNKS], 12)


@pytest.mark.parametrize(("shape", "name", "dtype"), matrix(), ids=str)
def test_the_matrix(shape: Shape, name: str, dtype: torch.dtype) -> None:
    check_prefill(shape, (CHUNKS | GPU_CHUNKS)[name], dtype, programs=264 if ON_GPU else None)


@pytest.mark.parametrize("shape", [Shape(9, 3, 64, 16), Shape(4, 4, 64, 40), Shape(16, 1, 32, 7)], ids=str)
def test_a_small_chunk_over_a_long_prefix_is_split(shape: Shape) -> None:
    """Rows of queries that fill a block and that do not, beside a chunk that is not split."""
    assert check_prefill(shape, [(3, 2000), (40, 40)], DTYPES[0], programs=16)
    assert check_prefill(shape, [(7, 1100)], DTYPES[0], programs=200)
    assert not check_prefill(shape, [(7, 700)], DTYPES[0], programs=200)


def test_chunks_over_a_shared_prefix() -> None:
    check_prefill(Shape(9, 3, 64, 13), [(20, 100), (61, 100), (1, 40), (12, 12)], DTYPES[0], shared=3)


def test_a_prompt_in_chunks_is_the_prompt_at_once() -> None:
    """Its rows come out the same however it is cut, up to the order of sums."""
    shape, tokens = Shape(6, 2, 64, 16), 150
    arena = paged(shape, [tokens], DTYPES[0], layer=0, dice=random.Random(0))
    q = torch.randn(tokens, shape.q_size).to(DTYPES[0]).to(DEVICE)
    outs = []
    for cuts in ([0, 150], [0, 1, 70, 150], [0, 64, 128, 149, 150]):
        out = torch.full_like(q, torch.nan)
        for begin, end in itertools.pairwise(cuts):
            blocks = torch.from_numpy(prefill_blocks([end - begin], [end], 6, 2)).to(DEVICE)
            prefill_attention(
                q, out, arena.kv, int32([begin]), int32([end - begin]), int32([end]), int32(arena.page_starts),
                arena.pages, blocks, layer=0, heads=6, kv_heads=2, tokens_per_page=16, scale=shape.scale,
            )  # fmt: skip
        outs.append(out)
    assert_same(outs[1], outs[0])
    assert_same(outs[2], outs[0])


@pytest.mark.parametrize("heads", [1, 3, 4, 7, 16])
@pytest.mark.parametrize("programs", [0, 1, 50, 264, 3000])
def test_blocks_cover_every_query_and_key_once(heads: int, programs: int) -> None:
    dice = random.Random(heads)
    queries, split = BLOCK_ROWS // heads, False
    for case in range(20):
        q_lens = [dice.randint(0, 400 if case % 2 else 9) for _ in range(dice.randint(1, 30))]
        kv_lens = [new + dice.randint(0, dice.choice([0, 900, 30_000])) for new in q_lens]
        blocks = prefill_blocks(q_lens, kv_lens, heads, 1, programs=programs).tolist()
        partials = allocate_prefill_partials(1, 16, torch.device("cpu"), programs=programs)
        reached: dict[tuple[int, int], int] = {}
        owned: dict[int, tuple[int, int]] = {}
        for s, first, begin, end, partial, first_partial, parts in sorted(blocks, key=lambda block: block[:3]):
            assert begin == reached.get((s, first), 0) < end
            assert first % queries == 0
            # Each query sees a key of each part: else it would be averaged over nothing.
            assert begin <= kv_lens[s] - q_lens[s] + first
            reached[s, first] = end
            if parts > 1:
                assert partial not in owned
                assert partial - first_partial < parts
                owned[partial] = (s, first)
        last = {(s, i): kv_lens[s] - q_lens[s] + min(i + queries, q_lens[s]) for s, i in reached}
        assert reached == last
        assert set(last) == {(s, i) for s, new in enumerate(q_lens) for i in range(0, new, queries)}
        # What the space for partials, and the grid that combines them, are made for.
        heads_of_split = [i for i, block in enumerate(blocks) if block[6] > 1 and block[4] == block[5]]
        assert sorted(owned) == list(range(len(owned)))
        assert len(owned) <= partials.parts_max
        assert heads_of_split == list(range(len(heads_of_split)))
        assert len(heads_of_split) <= partials.blocks_max
        lengths = [block[3] - block[2] for block in blocks[len(heads_of_split) :]]
        assert lengths == sorted(lengths, reverse=True)
        split |= bool(owned)
    assert split == (programs >= 50)


def test_no_blocks() -> None:
    for programs in (0, 264):
        assert prefill_blocks([], [], 4, 2, programs=programs).shape == (0, FIELDS)
        assert prefill_blocks([0], [3], 4, 2, programs=programs).shape == (0, FIELDS)
