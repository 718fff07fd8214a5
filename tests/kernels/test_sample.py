"""The draw on the device: the same ids as plain torch's in float64 and as the engine's sampler, whatever the filters
leave; and the distribution that is asked for.

Float32 against float64 may pick another id where two times, or a sum and its limit, agree to seven digits: of 20,000
rows at most DIFFERENT_MAX.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from engine.compute.penalties import Draw
from engine.cpu.sampler import FAVOURITES
from engine.cpu.sampler import sample as engine_sample
from engine.protocol.frames import Sampling
from kernels import reference_sample
from kernels.sample import CANDIDATES_MAX, CHUNK, Draws, Mode, new_scratch, sample
from support.kernels.operands import DEVICE, GPU

DIFFERENT_MAX = 4
NEUTRAL = {"temperature": 1.0, "seed": 0, "choice": 0, "position": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DTYPES = (torch.float32, torch.int64, torch.int32, torch.int32, torch.int32, torch.float32, torch.float32)


def draws_of(rows: list[dict[str, Any]]) -> Draws:
    columns = [[{**NEUTRAL, **row}[name] for row in rows] for name in NEUTRAL]
    return Draws(*(torch.tensor(x, dtype=dtype, device=DEVICE) for x, dtype in zip(columns, DTYPES, strict=True)))


def draw(logits: torch.Tensor, rows: list[dict[str, Any]], mode: Mode = Mode.FILTERED) -> list[int]:
    out = torch.full((len(rows),), -7, dtype=torch.int32, device=DEVICE)
    scratch = new_scratch(len(rows), logits.shape[1], DEVICE)
    for buffer in scratch:
        buffer.fill_(float("nan") if buffer.is_floating_point() else -7)
    sample(logits, draws_of(rows), scratch, out, mode=mode)
    return [int(i) for i in out.tolist()]


def wanted(logits: torch.Tensor, rows: list[dict[str, Any]]) -> list[int]:
    out = torch.full((len(rows),), -7, dtype=torch.int64)
    columns = Draws(*(column.cpu() for column in draws_of(rows)))
    reference_sample.sample(logits.cpu(), *columns, out)
    return [int(i) for i in out.tolist()]


def some_logits(rows: int, vocab: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A few ids far above the rest, as a language model has them, and by bfloat16's steps, so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocab, generator=generator) * 2
    x += 4 * torch.rand(rows, vocab, generator=generator).pow(math.log(vocab + 1)).mul(4)
    return x.bfloat16().to(dtype).to(DEVICE)


def some_rows(count: int, vocab: int, seed: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    rows = []
    for position in range(count):
        row: dict[str, Any] = {
            "seed": dice.randrange(-(2**63), 2**63),
            "choice": dice.randrange(128),
            "position": position * 511,
        }
        row["temperature"] = dice.choice([0.0, 0.05, 0.7, 1.0, 1.0, 1.5, 3.0])
        if dice.random() < 0.7:
            row["top_k"] = dice.choice([0, 1, 2, 20, 50, vocab - 1, vocab, 2 * vocab])
            row["top_p"] = dice.choice([1.0, 1e-6, 0.3, 0.9, 0.95, 0.999])
            row["min_p"] = dice.choice([0.0, 0.0, 0.02, 0.3, 1.0])
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("rows", "vocab", "dtype"),
    [
        (0, 10, torch.float32),
        (2, 2, torch.float32),
        (8, 10, torch.float16),
        (8, CHUNK, torch.float32),
        (10, 2 * CHUNK + 1, torch.float32),
        *([(20_000, 1000, torch.float32), (300, 49152, torch.bfloat16), (150, 128256, torch.bfloat16)] if GPU else []),
    ],
)
def test_same_ids_as_plain_torch_in_float64(rows: int, vocab: int, dtype: torch.dtype) -> None:
    logits, asked = some_logits(rows, vocab, seed=vocab, dtype=dtype), some_rows(rows, vocab, seed=vocab)
    got, expected = draw(logits, asked), wanted(logits, asked)
    different = [(row, a, b) for row, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
    assert len(different) <= (DIFFERENT_MAX if rows > 100 else 0), different[:10]


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.PLAIN, Mode.FILTERED])
def test_each_mode_draws_as_the_one_above_it(mode: Mode) -> None:
    logits, asked = some_logits(6, 2 * CHUNK + 77, seed=3), some_rows(6, 100, seed=4)
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **({"temperature": 0.0} if mode == Mode.GREEDY else {})}
    asked = [row | neutral for row in asked] if mode != Mode.FILTERED else asked
    assert draw(logits, asked, mode) == wanted(logits, asked)


def test_same_ids_as_the_engines_sampler() -> None:
    """With filters; and without, where the vocabulary is so small that the engine's has no shortcut to take."""
    wide: list[dict[str, Any]] = [{"top_k": 30}, {"top_p": 0.8}, {"min_p": 0.05}]
    for vocab, filters in ((FAVOURITES, [dict[str, Any]()]), (1500, wide)):
        logits = some_logits(4, vocab, seed=1)
        for extra in filters:
            asked: list[dict[str, Any]] = [
                {"temperature": 0.9, "seed": 77 - row, "choice": row, "position": 9, **extra} for row in range(4)
            ]
            draws = [
                Draw(Sampling(**{name: row[name] for name in row if name != "position"}), row["position"])
                for row in asked
            ]
            assert draw(logits, asked) == engine_sample(logits, draws)


def test_greedy_takes_the_lowest_of_equals_and_refuses_what_is_no_logits() -> None:
    vocab = 2 * CHUNK + 5
    logits = torch.zeros(7, vocab)
    logits[0, [4, CHUNK, vocab - 1]] = 3.0
    logits[1, vocab - 1] = 1.0
    logits[2, vocab - 2] = float("nan")
    logits[3, 9] = float("inf")
    logits[4] = -float("inf")
    logits[5] = -float("inf")
    logits[5, CHUNK + 3] = -5.0
    logits[6, 7] = -float("inf")
    expected = [4, vocab - 1, -1, -1, -1, CHUNK + 3, 0]
    logits = logits.to(DEVICE)
    for mode in Mode:
        assert draw(logits, [{"temperature": 0.0}] * 7, mode) == expected
    for filters in ({}, {"top_p": 0.5, "min_p": 0.1, "top_k": 7}):
        drawn = draw(logits, [{"seed": 5, **filters}] * 7)
        assert drawn[2:6] == expected[2:6], "an id without any chance is not drawn, and no logits give none"
        assert drawn[6] != 7


@pytest.mark.parametrize(
    ("vocab", "filters", "kept"),
    [
        (50, {"top_k": 3}, 3),
        (50, {"top_p": 0.31}, 16),
        (50, {"top_k": 10, "top_p": 0.55}, 6),
        (2 * CANDIDATES_MAX + 9, {"top_k": 5}, 5),
        (2 * CANDIDATES_MAX + 9, {"top_p": 1e-3}, 9),
    ],
)
def test_of_equals_at_the_edge_the_lowest_ids_stay(vocab: int, filters: dict[str, Any], kept: int) -> None:
    """Also where all of them are equal, and too many to be gathered."""
    rows = 4000 if GPU else (8 if vocab < CHUNK else 2)
    drawn = draw(torch.zeros(1, vocab, device=DEVICE).expand(rows, -1), [{"seed": i, **filters} for i in range(rows)])
    assert set(drawn) <= set(range(kept))
    if rows > 100:
        assert set(drawn) == set(range(kept))


@pytest.mark.parametrize("filters", [{"top_p": 0.97}, {"top_k": 5000}, {"min_p": 1e-3}, {"top_k": 6000, "top_p": 0.9}])
def test_a_nucleus_wider_than_the_candidates(filters: dict[str, Any]) -> None:
    rows = 64 if GPU else 1
    vocab = 128256 if GPU else 2 * CANDIDATES_MAX
    logits = some_logits(rows, vocab, seed=2) / 8
    asked = [{"seed": 100 + row, **filters} for row in range(rows)]
    differing = [pair for pair in zip(draw(logits, asked), wanted(logits, asked), strict=True) if pair[0] != pair[1]]
    assert len(differing) <= (DIFFERENT_MAX if GPU else 0), differing


def test_many_candidates_are_gathered_before_a_whole_row_is_searched() -> None:
    """More than a few spans hold, and fewer than there is room for."""
    vocab, top_k = 5 * CHUNK - 3, 1000
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    asked = [{"seed": 3, "top_k": top_k}]
    scratch, out = new_scratch(1, vocab, DEVICE), torch.full((1,), -7, device=DEVICE)
    scratch.values.fill_(float("nan"))
    sample(logits, draws_of(asked), scratch, out, mode=Mode.FILTERED)
    assert out.tolist() == wanted(logits, asked)
    gathered = scratch.values[0][~scratch.values[0].isnan()]
    assert top_k <= len(gathered) < CANDIDATES_MAX
    assert torch.equal(gathered.sort(descending=True).values, logits[0].topk(len(gathered)).values)


FILTERS: list[dict[str, Any]] = [{}, {"temperature": 0.6}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.15},
                                 {"temperature": 1.4, "min_p": 0.03, "top_k": 12, "top_p": 0.9}]  # fmt: skip


@pytest.mark.parametrize("filters", FILTERS)
def test_draws_are_distributed_as_asked(filters: dict[str, Any]) -> None:
    """Chi-square below its 99.99 % point, after Wilson and Hilferty. In the interpreter the reference is drawn from,
    whose ids the kernel's are, as the tests above show."""
    count, vocab = (20_000, 24) if GPU else (2_000, 24)
    logits = (torch.arange(vocab).float() * 7 % vocab / 5).to(DEVICE)
    asked = [{"seed": 12345, "position": position, **filters} for position in range(count)]
    chosen = (draw if GPU else wanted)(logits.expand(count, -1), asked)
    probabilities = (logits.double().cpu() / filters.get("temperature", 1.0)).softmax(0)
    order = probabilities.argsort(descending=True, stable=True).tolist()
    order = [i for i in order if probabilities[i] >= filters.get("min_p", 0.0) * probabilities.max()]
    order = order[: filters.get("top_k", vocab)]
    limit, mass, kept = filters.get("top_p", 1.0) * float(probabilities[order].sum()), 0.0, []
    for i in order:
        if mass < limit:
            kept.append(i)
        mass += float(probabilities[i])
    assert set(chosen) <= set(kept)
    share = float(probabilities[kept].sum())
    statistic = 0.0
    for i in kept:
        often = count * float(probabilities[i]) / share
        statistic += (chosen.count(i) - often) ** 2 / often
    freedom = len(kept) - 1
    spread = 2 / (9 * freedom)
    assert statistic <= freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3
