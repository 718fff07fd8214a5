"""Ids taken from the step before or from the host, and their embeddings."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels import embed, reference_step
from support.kernels.operands import DEVICE, DTYPES, normal, poisoned, sampled

VOCAB = 97
CASES = list(itertools.product([0, 1, 5, 257], [torch.int32, torch.int64], [torch.int32, torch.int64]))


def operands(rows: int, given: torch.dtype, drawn: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """About half the rows' ids are drawn ones, in no order, some of them twice; one in seven of these failed."""
    generator = torch.Generator().manual_seed(rows)
    previous = torch.randint(0, VOCAB, (max(rows // 2, 1),), generator=generator, dtype=drawn)
    previous[3::7] = -1
    source = torch.randint(-len(previous), len(previous), (rows,), generator=generator, dtype=torch.int32).clamp(min=-1)
    ids = torch.randint(0, VOCAB, (rows,), generator=generator, dtype=given)
    return ids.to(DEVICE), source.to(DEVICE), previous.to(DEVICE)


@pytest.mark.parametrize(("rows", "given", "drawn"), CASES)
def test_ids_come_from_where_the_source_says(rows: int, given: torch.dtype, drawn: torch.dtype) -> None:
    ids, source, previous = operands(rows, given, drawn)
    out, wanted = torch.full_like(ids, -99), torch.empty_like(ids)
    embed.gather_ids(ids, source, previous, out)
    reference_step.gather_ids(ids, source, previous, wanted)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize(
    ("case", "hidden", "dtype"), sampled("embed", list(itertools.product(CASES, [1, 576, 4096], DTYPES)))
)
def test_embeddings_of_these(case: tuple[int, torch.dtype, torch.dtype], hidden: int, dtype: torch.dtype) -> None:
    ids, source, previous = operands(*case)
    embedding = normal(VOCAB, hidden, dtype=dtype, seed=1)
    out, wanted = (poisoned(case[0], hidden, dtype=dtype) for _ in range(2))
    embed.embed(ids, source, previous, embedding, out)
    reference_step.embed(ids, source, previous, embedding, wanted)
    assert torch.equal(out, wanted)
    assert not out.isnan().any()
