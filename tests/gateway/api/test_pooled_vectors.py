"""What a gateway keeps of the vectors of one request: what the answer shows, whatever the model's width is."""

from __future__ import annotations

import itertools
import math
import random
from array import array

import pytest

from gateway.api.generation_request import EmbeddingFormat
from gateway.api.pooling.vectors import PooledVectors

WIDTH, PROMPTS = 512, 64


def unit(seed: int) -> array[float]:
    drawn = random.Random(seed)
    numbers = [drawn.gauss(0, 1) for _ in range(WIDTH)]
    length = math.hypot(*numbers)
    return array("f", [number / length for number in numbers])


def added(wanted: EmbeddingFormat, order: list[int]) -> tuple[PooledVectors, int]:
    """With the vectors of the prompts in this order, and the most bytes that were kept."""
    kept, most = PooledVectors(wanted), 0
    for index in order:
        kept.add_vector(index, unit(index).tobytes())
        most = max(most, kept.bytes_kept)
    return kept, most


def test_only_the_dimensions_that_are_shown_are_kept() -> None:
    kept, most = added(EmbeddingFormat(dimensions=16, shows_vectors=True), list(range(PROMPTS)))
    assert most == PROMPTS * 16 * 4
    shown, whole = array("f", kept.vector_of(3)), unit(3)
    length = math.hypot(*whole[:16])
    assert list(shown) == pytest.approx([number / length for number in whole[:16]], abs=1e-6)
    kept, most = added(EmbeddingFormat(dimensions=None, shows_vectors=True), [0])
    assert kept.vector_of(0) == unit(0).tobytes()


def test_a_vector_of_zeros_is_shortened() -> None:
    kept = PooledVectors(EmbeddingFormat(dimensions=2, shows_vectors=True))
    kept.add_vector(0, bytes(WIDTH * 4))
    assert kept.vector_of(0) == bytes(8)


@pytest.mark.parametrize("order", [list(range(PROMPTS)), list(range(PROMPTS))[::-1]])
def test_documents_are_kept_until_the_query_has_arrived(order: list[int]) -> None:
    kept, most = added(EmbeddingFormat(), order)
    assert most == WIDTH * 4 * (1 if order[0] == 0 else PROMPTS)
    for index in range(1, PROMPTS):
        assert kept.score_of(index) == pytest.approx(sum(a * b for a, b in zip(unit(0), unit(index), strict=True)))
    assert kept.score_of(1) == kept.score_of(1)
    assert kept.bytes_kept == WIDTH * 4, "the query's"


def test_pairs_are_kept_until_both_have_arrived() -> None:
    half = PROMPTS // 2
    for order in (list(range(PROMPTS)), list(itertools.chain(*zip(range(half), range(half, PROMPTS), strict=True)))):
        kept, most = added(EmbeddingFormat(queries=half), order)
        assert most == WIDTH * 4 * (half if order[1] == 1 else 1)
        assert kept.bytes_kept == 0
        pair = sum(a * b for a, b in zip(unit(5), unit(half + 5), strict=True))
        assert kept.score_of(half + 5) == pytest.approx(pair)
