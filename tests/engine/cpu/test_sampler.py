"""Draws have the distribution that the parameters ask for, and depend on (seed, choice, position) alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.compute.penalties import Draw
from engine.cpu.sampler import CANDIDATES, FAVOURITES, sample
from engine.protocol.frames import Sampling
from kernels.reference_sample import philox4x32, row_key

DRAWS = 20_000
PROMPT_IDS, OUTPUT_IDS, STOP_IDS = [0, 3, 3, 7], [1, 3, 1, 1, 8], frozenset({2, 6})


def reference(logits: list[float], draw: Draw) -> list[float]:
    """Probability of each id, step by step in the order that is promised, float64."""
    s, x = draw.sampling, np.array(logits, dtype=np.float64)
    if len(draw.output_ids) < s.min_tokens:
        x[list(draw.stop_ids)] = -np.inf
    for i, bias in s.logit_bias.items():
        x[i] += bias
    for i in {*draw.prompt_ids, *draw.output_ids}:
        x[i] = x[i] / s.repetition_penalty if x[i] > 0 else x[i] * s.repetition_penalty
    for i, count in Counter(draw.output_ids).items():
        x[i] -= s.frequency_penalty * count + s.presence_penalty
    p = np.exp((x - x.max()) / s.temperature)
    p[p < s.min_p * p.max()] = 0
    order = np.argsort(-p)
    if s.top_k:
        p[order[s.top_k :]] = 0
    before = np.cumsum(p[order]) / p.sum() - p[order] / p.sum()
    p[order[before >= s.top_p]] = 0
    return [float(share) for share in p / p.sum()]


def assert_distributed(counts: Counter[int], expected: list[float]) -> None:
    """Chi-square below its 99.99 % point, after Wilson and Hilferty; seeds are fixed, so this passes or fails for
    ever. And nothing impossible was drawn."""
    assert all(expected[i] > 0 for i in counts)
    total = counts.total()
    possible = [(counts[i], p * total) for i, p in enumerate(expected) if p > 0]
    assert min(often for _, often in possible) > 4, "too rare for the test to hold"
    freedom = len(possible) - 1
    statistic = sum((count - often) ** 2 / often for count, often in possible)
    spread = 2 / (9 * freedom) if freedom else 0
    assert statistic <= freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3


PENALTIES: dict[str, Any] = {"repetition_penalty": 1.6, "presence_penalty": 0.7, "frequency_penalty": -0.3}


@pytest.mark.parametrize(
    ("vary", "sampling"),
    [
        ("seed", Sampling(temperature=1.0)),
        ("choice", Sampling(temperature=1.0)),
        ("position", Sampling(temperature=1.0)),
        ("seed", Sampling(temperature=0.6)),
        ("position", Sampling(temperature=1.7, top_k=5)),
        ("seed", Sampling(temperature=1.0, top_p=0.8)),
        ("position", Sampling(temperature=0.9, top_k=7, top_p=0.7)),
        ("seed", Sampling(temperature=1.0, top_k=1)),
        ("seed", Sampling(min_p=0.12)),
        ("choice", Sampling(min_p=1.0)),
        ("position", Sampling(temperature=1.4, min_p=0.2, top_k=6, top_p=0.75)),
        ("seed", Sampling(repetition_penalty=1.8)),
        ("choice", Sampling(repetition_penalty=0.6)),
        ("position", Sampling(presence_penalty=1.1)),
        ("seed", Sampling(presence_penalty=-0.9)),
        ("seed", Sampling(frequency_penalty=0.5)),
        ("position", Sampling(frequency_penalty=-0.4)),
        ("choice", Sampling(logit_bias={0: 1.5, 4: -2.0, 11: 0.5})),
        ("seed", Sampling(logit_bias={1: 100.0, 5: 100.0})),
        ("seed", Sampling(logit_bias={9: -100.0})),
        ("seed", Sampling(min_tokens=6)),
        ("seed", Sampling(min_tokens=5)),
        ("position", Sampling(temperature=1.3, logit_bias={2: 2.0, 3: 1.0}, min_tokens=9, **PENALTIES)),
        ("seed", Sampling(temperature=0.8, top_k=9, top_p=0.9, min_p=0.03, logit_bias={8: 0.5}, **PENALTIES)),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(changed(value)),
)
def test_distribution_is_the_reference_s(vary: str, sampling: Sampling) -> None:
    torch.manual_seed(3)
    logits = torch.randn(12) * 1.2
    draws = []
    for i in range(DRAWS):
        seed, choice, position = (i if vary == name else 5 for name in ("seed", "choice", "position"))
        own = msgspec.structs.replace(sampling, seed=seed, choice=choice)
        draws.append(Draw(own, position, PROMPT_IDS, OUTPUT_IDS, STOP_IDS))
    drawn = Counter(index for index in sample(logits.expand(DRAWS, -1), draws) if index is not None)
    assert drawn.total() == DRAWS
    expected = reference(logits.tolist(), draws[0])
    assert_distributed(drawn, [p if p * DRAWS > 1e-6 else 0.0 for p in expected])


def changed(sampling: Sampling) -> list[str]:
    fields = msgspec.structs.asdict(sampling)
    return [f"{name}={value}" for name, value in fields.items() if value != getattr(Sampling(), name)]


def test_a_vocabulary_wider_than_the_favourites_has_its_distribution() -> None:
    torch.manual_seed(5)
    logits = torch.randn(5 * FAVOURITES) * 0.7
    draws = [Draw(Sampling(seed=i), 3) for i in range(DRAWS)]
    drawn = Counter(index for index in sample(logits.expand(DRAWS, -1), draws) if index is not None)
    assert_distributed(drawn, reference(logits.tolist(), draws[0]))


@pytest.mark.parametrize("vary", ["seed", "choice", "position"])
def test_neighbouring_draws_know_nothing_of_each_other(vary: str) -> None:
    torch.manual_seed(6)
    logits = torch.randn(7)
    draws = []
    for i in range(2 * DRAWS):
        seed, choice, position = (i if vary == name else 9 for name in ("seed", "choice", "position"))
        draws.append(Draw(Sampling(seed=seed, choice=choice), position))
    drawn = [index or 0 for index in sample(logits.expand(2 * DRAWS, -1), draws)]
    p = reference(logits.tolist(), draws[0])
    pairs = Counter(7 * a + b for a, b in zip(drawn[::2], drawn[1::2], strict=True))
    assert_distributed(pairs, [a * b for a in p for b in p])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.95), Sampling(1.3, min_p=0.01)], ids=str)
def test_a_rounding_error_hardly_ever_changes_a_draw(sampling: Sampling) -> None:
    """The size of a batch changes logits in their last bits. No draw can change seldomer than the probabilities do;
    the race stays within twice that. The widest vocabulary is what makes a point on a cumulative sum fail here."""
    torch.manual_seed(7)
    logits = torch.randn(8000) * 2
    other = logits + torch.randn(8000) * 1e-4
    p, q = (x.double().div(sampling.temperature).softmax(-1) for x in (logits, other))
    draws = [Draw(msgspec.structs.replace(sampling, seed=i), 3) for i in range(2000)]
    once, twice = (sample(x.expand(2000, -1), draws) for x in (logits, other))
    differing = sum(a != b for a, b in zip(once, twice, strict=True))
    expected = 2000 * float((p - q).abs().sum())
    assert expected < 0.5
    assert differing <= 2


def test_a_nucleus_wider_than_the_candidates_is_drawn_whole() -> None:
    vocab = 4 * CANDIDATES
    logits = torch.linspace(0.0, 0.5, vocab).flip(0)[None]
    kept = len([p for p in reference(logits[0].tolist(), Draw(Sampling(top_p=0.9), 1)) if p > 0])
    assert kept > 3 * CANDIDATES
    ids = [sample(logits, [Draw(Sampling(top_p=0.9, seed=seed), 1)])[0] or 0 for seed in range(400)]
    assert max(ids) < kept
    assert max(ids) > kept * 0.97  # likeliest first: id = rank
    top_k = [sample(logits, [Draw(Sampling(top_k=2 * CANDIDATES, seed=seed), 1)])[0] or 0 for seed in range(400)]
    assert 1.9 * CANDIDATES < max(top_k) < 2 * CANDIDATES
    near = len([p for p in reference(logits[0].tolist(), Draw(Sampling(min_p=0.65), 1)) if p > 0])
    assert near > 3 * CANDIDATES
    min_p = [sample(logits, [Draw(Sampling(min_p=0.65, seed=seed), 1)])[0] or 0 for seed in range(400)]
    assert near * 0.97 < max(min_p) < near
    narrow = [sample(logits, [Draw(Sampling(min_p=0.65, top_k=5, seed=seed), 1)])[0] or 0 for seed in range(50)]
    assert set(narrow) == set(range(5))


def test_neighbours_never_change_a_draw() -> None:
    torch.manual_seed(4)
    logits = torch.randn(64, 5000)
    kinds = [
        Sampling(temperature=0.0),
        Sampling(temperature=1.0),
        Sampling(temperature=0.8, top_k=40),
        Sampling(temperature=1.2, top_p=0.95),
        Sampling(temperature=5.0, top_p=0.99),  # wider than the candidates
        Sampling(temperature=1.0, top_k=2000, top_p=0.9),
        Sampling(temperature=1.1, min_p=0.05),
        Sampling(temperature=2.0, min_p=0.001, frequency_penalty=0.5, repetition_penalty=1.3),
        Sampling(temperature=0.0, logit_bias={5: 3.0}, presence_penalty=1.0),
    ]
    draws = []
    for row in range(64):
        kind = kinds[row % len(kinds)]
        own = msgspec.structs.replace(kind, seed=row, choice=row % 3)
        draws.append(Draw(own, 17 + row, [row, 9], [row] * (row % 5)))
    together = sample(logits, draws)
    alone = [sample(logits[row : row + 1], [draws[row]])[0] for row in range(64)]
    backwards = sample(logits.flip(0), draws[::-1])[::-1]
    assert together == alone == backwards


def test_greedy_is_the_argmax_and_needs_no_seed() -> None:
    logits = torch.tensor([[0.1, 3.0, -1.0], [5.0, 4.0, 4.5]])
    draws = [Draw(Sampling(temperature=0.0, seed=seed), seed) for seed in (1, 2)]
    assert sample(logits, draws) == [1, 0]


def test_a_temperature_near_zero_is_greedy() -> None:
    logits = torch.tensor([[0.1, 3.0, 2.9999]])
    for temperature in (1e-3 * 1e-3, 1e-300):
        assert sample(logits, [Draw(Sampling(temperature=temperature, top_p=0.9), 9)]) == [1]
        assert sample(logits, [Draw(Sampling(temperature=temperature), 9)]) == [1]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(), Sampling(top_p=0.5), Sampling(top_k=2)], ids=str
)
def test_a_row_that_is_no_number_fails_alone(poison: float, sampling: Sampling) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 3)
    clean = sample(logits, [Draw(sampling, position) for position in range(3)])
    logits[1, 0] = poison
    assert sample(logits, [Draw(sampling, position) for position in range(3)]) == [clean[0], None, clean[2]]


def test_ids_ruled_out_are_never_drawn() -> None:
    logits = torch.full((200, 8), float("-inf"))
    logits[:, [2, 5]] = 0.0
    for kind in (Sampling(), Sampling(top_p=0.99), Sampling(top_k=4)):
        draws = [Draw(Sampling(1.0, kind.top_p, kind.top_k, seed), 0) for seed in range(200)]
        assert set(sample(logits, draws)) == {2, 5}


def test_philox_gives_the_published_numbers() -> None:
    """Known answers of the authors' Random123 library."""
    ones = 0xFFFFFFFF
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((ones,) * 4, (ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox4x32((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)) == (
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    )


def test_a_key_comes_of_any_64_bit_seed() -> None:
    keys = {row_key(seed, 0, 1) for seed in (0, 1, -1, 2**31, 2**32, 2**63 - 1, -(2**63))}
    assert len(keys) == 7
    assert all(-(2**63) <= key < 2**63 for key in keys)
