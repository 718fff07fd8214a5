"""RMSNorm, alone and with the sum before it, against plain torch."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels import norm, reference_step
from support.kernels.operands import DEVICE, DTYPES, close, deltas, normal, poisoned, sampled

CASES = list(itertools.product([0, 1, 3, 17, 256], [1, 7, 64, 576, 1000, 4096], [False, True], DTYPES))


@pytest.mark.parametrize(("rows", "hidden", "with_delta", "dtype"), sampled("add_rms_norm", CASES))
def test_the_sum_and_its_norm(rows: int, hidden: int, with_delta: bool, dtype: torch.dtype) -> None:
    x = normal(rows, hidden, dtype=dtype, seed=1)
    weight = normal(hidden, dtype=dtype, seed=2).contiguous()
    residual = normal(rows, hidden, dtype=dtype, seed=3, scale=3)
    options = deltas(rows, hidden, dtype, 4) if with_delta else {}
    out, wanted, wanted_residual = poisoned(rows, hidden, dtype=dtype), torch.empty_like(x), residual.clone()
    before = x.clone()
    norm.add_rms_norm(x, residual, weight, 1e-5, out, **options)
    reference_step.add_rms_norm(x, wanted_residual, weight, 1e-5, wanted, **options)
    close(out, wanted)
    assert torch.equal(residual, wanted_residual), "the stream that all layers share is exact"
    assert torch.equal(x, before)


@pytest.mark.parametrize("with_delta", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_of_a_product_without_its_scales(dtype: torch.dtype, with_delta: bool) -> None:
    """Products of fp8 numbers are large. A NaN scale of a row stays in that row."""
    rows, hidden = 17, 96
    x = normal(rows, hidden, dtype=dtype, seed=1, scale=300)
    scales = norm.OutputScales(
        (normal(1, rows, dtype=torch.float32, seed=5)[0].abs() / 30 + 1e-3).contiguous(),
        (normal(1, hidden, dtype=torch.float32, seed=6)[0].abs() / 10 + 1e-3).contiguous(),
    )
    scales.rows[3] = torch.nan
    weight = normal(hidden, dtype=dtype, seed=2).contiguous()
    residual = normal(rows, hidden, dtype=dtype, seed=3, scale=3)
    options = deltas(rows, hidden, dtype, 4) if with_delta else {}
    out, wanted, wanted_residual = poisoned(rows, hidden, dtype=dtype), torch.empty_like(x), residual.clone()
    norm.add_rms_norm(x, residual, weight, 1e-5, out, scales=scales, **options)
    reference_step.add_rms_norm(x, wanted_residual, weight, 1e-5, wanted, scales=scales, **options)
    others = [row for row in range(rows) if row != 3]
    assert out[3].isnan().all()
    close(out[others], wanted[others])
    assert torch.equal(residual[others], wanted_residual[others])


@pytest.mark.parametrize(("rows", "hidden", "dtype"), sampled("rms_norm", [(r, h, d) for r, h, _, d in CASES]))
def test_the_norm_alone(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x = normal(rows, hidden, dtype=dtype, seed=1)
    weight = normal(hidden, dtype=dtype, seed=2).contiguous()
    out, wanted = poisoned(rows, hidden, dtype=dtype), torch.empty_like(x)
    norm.rms_norm(x, weight, 1e-6, out)
    reference_step.rms_norm(x, weight, 1e-6, wanted)
    close(out, wanted)


def test_a_row_of_zeros_and_of_large_numbers() -> None:
    """The smallest and the largest squares: eps alone under the root, and beyond what float16 can hold."""
    x = torch.stack((torch.zeros(64), torch.full((64,), 6e4))).to(torch.float16).to(DEVICE)
    out = poisoned(2, 64, dtype=torch.float16)
    norm.rms_norm(x, torch.ones(64, dtype=torch.float16, device=DEVICE), 1e-5, out)
    close(out, torch.stack((torch.zeros(64), torch.ones(64))).to(torch.float16).to(DEVICE))


def test_a_nan_stays_in_its_row() -> None:
    x, residual = torch.ones(3, 8, device=DEVICE), torch.ones(3, 8, device=DEVICE)
    x[1, 5] = float("nan")
    out = torch.zeros(3, 8, device=DEVICE)
    norm.add_rms_norm(x, residual, torch.ones(8, device=DEVICE), 0.0, out)
    close(out[[0, 2]], torch.ones(2, 8, device=DEVICE))
    assert out[1].isnan().all()
