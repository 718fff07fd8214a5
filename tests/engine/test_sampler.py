"""Draws have the distribution that the parameters ask for, and depend on (seed, choice, position) alone."""

from __future__ import annotations

import math

import pytest
import torch

from engine.penalties import Draw
from engine.protocol import Sampling
from engine.sampler import CANDIDATES, philox4x32, row_key, sample

DRAWS = 20_000


def reference(logits: list[float], sampling: Sampling) -> list[float]:
    """Probability of each id, in plain Python: temperature, then top-k, then top-p."""
    weights = [math.exp(x / sampling.temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -weights[i])
    order = order[: sampling.top_k or len(order)]
    total = sum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        kept.append(i)
        mass += weights[i] / total
        if mass >= sampling.top_p:
            break
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


def chi_square(counts: list[int], probabilities: list[float]) -> tuple[float, int]:
    possible = [(count, p * DRAWS) for count, p in zip(counts, probabilities, strict=True) if p > 0]
    return sum((count - expected) ** 2 / expected for count, expected in possible), len(possible) - 1


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
    ],
    ids=str,
)
def test_distribution_is_the_reference_s(vary: str, sampling: Sampling) -> None:
    torch.manual_seed(3)
    logits = torch.randn(12) * 1.5
    draws = []
    for i in range(DRAWS):
        seed, choice, position = (i if vary == name else 5 for name in ("seed", "choice", "position"))
        draws.append(Draw(Sampling(sampling.temperature, sampling.top_p, sampling.top_k, seed, choice), position))
    counts = [0] * 12
    for index in sample(logits.expand(DRAWS, -1), draws):
        assert index is not None
        counts[index] += 1
    expected = reference(logits.tolist(), sampling)
    assert all(count == 0 for count, p in zip(counts, expected, strict=True) if p == 0)
    statistic, freedom = chi_square(counts, expected)
    # The 99.99 % point of chi-square, after Wilson and Hilferty; seeds are fixed, so this passes or fails for ever.
    if freedom:
        spread = 2 / (9 * freedom)
        assert statistic < freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3
    else:
        assert max(counts) == DRAWS


def test_a_nucleus_wider_than_the_candidates_is_drawn_whole() -> None:
    vocab = 4 * CANDIDATES
    logits = torch.linspace(0.0, 0.5, vocab).flip(0)[None]
    kept = len([p for p in reference(logits[0].tolist(), Sampling(top_p=0.9)) if p > 0])
    assert kept > 3 * CANDIDATES
    ids = [sample(logits, [Draw(Sampling(top_p=0.9, seed=seed), 1)])[0] or 0 for seed in range(400)]
    assert max(ids) < kept
    assert max(ids) > kept * 0.97  # likeliest first: id = rank
    top_k = [sample(logits, [Draw(Sampling(top_k=2 * CANDIDATES, seed=seed), 1)])[0] or 0 for seed in range(400)]
    assert 1.9 * CANDIDATES < max(top_k) < 2 * CANDIDATES


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
    ]
    draws = []
    for row in range(64):
        kind = kinds[row % len(kinds)]
        draws.append(Draw(Sampling(kind.temperature, kind.top_p, kind.top_k, seed=row, choice=row % 3), 17 + row))
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
