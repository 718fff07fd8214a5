"""Packed masks of ids: rows by chunk, single ids, and the fake runner's draw."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.compute.masks import allowed_id, is_allowed, mask_rows, mask_words
from engine.compute.penalties import Draw, penalize, unpack_mask
from engine.fake.runner import FakeRunner, fake_model
from engine.protocol.config import FakeConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.step import Chunk, Masks, Sequence, Step, run_step


def words_of(allowed: set[int], vocab: int) -> NDArray[Any]:
    found = np.zeros(mask_words(vocab), np.int64)
    for index in allowed:
        found[index // 32] |= 1 << index % 32
    return found.astype(np.uint32).view(np.int32)


def sequence(handle: int = 0) -> Sequence:
    sampling = Sampling(temperature=0.0)
    return Sequence(handle, 0, "r", "m", None, "n", "t", "s", [300 + handle], 9, sampling, frozenset(), 0.0)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100, 1000])
def test_bits_are_counted_from_the_least_significant(vocab: int) -> None:
    allowed = set(random.Random(vocab).sample(range(vocab), vocab // 2 + 1))
    row = words_of(allowed, vocab)
    assert {i for i in range(vocab) if is_allowed(row, i)} == allowed
    assert set(unpack_mask(row, vocab).nonzero()[:, 0].tolist()) == allowed
    logits = torch.randn(2, vocab)
    masked = penalize(logits, [Draw(Sampling(), 1, allowed=row), Draw(Sampling(), 1)])
    assert set(masked[0].isfinite().nonzero()[:, 0].tolist()) == allowed
    assert torch.equal(masked[1], logits[1])


def test_an_id_that_is_not_allowed_is_replaced() -> None:
    row = words_of({40, 70}, 100)
    assert allowed_id(None, 3, [1], 100) == 3
    assert allowed_id(row, 70, [40], 100) == 70
    assert allowed_id(row, 3, [1, 70, 40], 100) == 70
    assert allowed_id(row, 3, [1], 100) == 40
    with pytest.raises(ValueError, match="no id"):
        allowed_id(words_of(set(), 100), 3, [1], 100)


def test_rows_are_those_of_sampling_chunks_in_their_order() -> None:
    chunks = [Chunk(sequence(i), 0, 1, sample) for i, sample in enumerate([True, False, True, True])]
    step = Step(1, "m", chunks)
    words = np.arange(3 * 4, dtype=np.int32).reshape(3, 4)
    rows = mask_rows(step, Masks(words, frozenset([2])), 100)
    assert {index: row.tolist() for index, row in rows.items()} == {0: [0, 1, 2, 3], 3: [8, 9, 10, 11]}
    assert mask_rows(step, Masks(), 100) == {}
    with pytest.raises(ValueError, match="does not sample"):
        mask_rows(step, Masks(skip=frozenset([1])), 100)
    for bad in (words[:2], words[:, :3], words.astype(np.int64)):
        with pytest.raises(ValueError, match="expected int32"):
            mask_rows(step, Masks(bad), 100)


def test_the_fake_runner_draws_allowed_ids() -> None:
    config = FakeConfig(step_ms=0.0, vocab_size=1000)
    runner = FakeRunner([fake_model(ModelConfig(name="m"), config)], config)
    chunks = [Chunk(sequence(i), 0, 1, True) for i in range(4)]
    plain = run_step(runner, Step(1, "m", chunks)).ids
    words = np.stack(
        [words_of({700}, 1000), words_of(set(), 1000), words_of({5}, 1000), words_of(set(range(1000)), 1000)]
    )
    result = run_step(runner, Step(2, "m", chunks), Masks(words, frozenset([2])))
    assert result.ids == [700, None, None, plain[3]]
    assert list(result.errors) == [1]
    assert result.skipped == frozenset([2])
