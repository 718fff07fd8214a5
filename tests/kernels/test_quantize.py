"""Rows in fp8: the same bits from every kernel that writes them, and beside them the row it always wrote."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from kernels import norm, quantize, reference_quantized, swiglu
from kernels.quantize import QuantizedRows, quantize_rows
from support.kernels.operands import DEVICE, GPU, deltas, normal, poisoned, sampled
from support.kernels.quantized import DTYPES, FP8_NAN, poisoned_rows, same_rows

CASES = list(itertools.product([1, 2, 3, 16, 17, 33, 64], [1, 24, 64, 160, 288, 1000, 4096], DTYPES))
WIDE = [(2, 14336), (1, 20000), (3, 65536)]


def referenced(x: torch.Tensor) -> QuantizedRows:
    wanted = poisoned_rows(*x.shape)
    reference_quantized.quantize_rows(x, wanted)
    return wanted


def quantized(x: torch.Tensor) -> QuantizedRows:
    got = poisoned_rows(*x.shape)
    quantize_rows(x, got)
    return got


@pytest.mark.parametrize(("rows", "width", "dtype"), sampled("quantize_rows", CASES))
def test_rows_of_any_width(rows: int, width: int, dtype: torch.dtype) -> None:
    x = normal(rows, width, dtype=dtype, seed=rows + width, scale=3)
    before = x.clone()
    same_rows(quantized(x), referenced(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize(("rows", "width"), WIDE)
def test_rows_that_are_read_in_parts(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of many rows, and wider than a program's block."""
    x = normal(rows, width, dtype=DTYPES[1], seed=width)
    same_rows(quantized(x), referenced(x))
    monkeypatch.setattr(quantize, "MANY_ROWS", 1)
    same_rows(quantized(x), referenced(x))


def test_every_number_of_sixteen_bits_and_every_tie() -> None:
    """All finite float16 numbers and bfloat16 numbers, at scales from the smallest to the largest. The interpreter
    reads subnormal bfloat16 numbers wrong."""
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    for dtype in DTYPES:
        numbers = every.view(dtype)
        numbers = numbers[numbers.isfinite()]
        if dtype == torch.bfloat16 and not GPU:
            numbers = numbers[(numbers == 0) | (numbers.float().abs() >= 2.0**-126)]
        magnitudes, order = numbers.float().abs().sort()
        rows = [
            numbers[order[: int(torch.searchsorted(magnitudes, 2.0**power))]]
            for power in (-130, -100, -20, 0, 9, 15, 100)
        ]
        rows = [row for row in rows if len(row)]
        width = max(len(row) for row in rows)
        x = torch.zeros(len(rows), width, dtype=dtype)
        for row, values in zip(x, rows, strict=True):
            row[: len(values)] = values
        same_rows(quantized(x.to(DEVICE)), referenced(x.to(DEVICE)))
    # A row whose scale is 1, so that numbers between two neighbours of e4m3fn, ties too, are rounded as they are.
    neighbours = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (neighbours[1:] + neighbours[:-1]) / 2
    row = torch.cat((neighbours, between, -between, between * 1.0078125, between * 0.99609375)).to(torch.bfloat16)
    row = torch.cat((row[row.abs() <= 448], torch.tensor([448.0, -0.0], dtype=torch.bfloat16)))[None].to(DEVICE)
    got = quantized(row)
    assert float(got.scales[0]) == 1
    same_rows(got, referenced(row))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_nan_and_infinities(dtype: torch.dtype) -> None:
    x = torch.ones(5, 40, dtype=dtype, device=DEVICE)
    x[0] = 0
    x[1] = -0.0
    x[2, 39] = torch.nan
    x[3, 0] = -torch.inf
    got = quantized(x)
    same_rows(got, referenced(x))
    bits = got.numbers.view(torch.uint8)
    assert got.scales[:2].tolist() == [1, 1]
    assert not bits[:2].any()
    assert got.scales[2:4].isnan().all()
    assert (bits[2:4] == FP8_NAN).all()
    assert float(got.scales[4]) == float(torch.tensor(1.0) / 448)


BESIDE = [case for case in CASES if GPU or case[0] < 16]  # five kernels, each with and without


@pytest.mark.parametrize(("rows", "width", "dtype"), sampled("quantizing kernels", BESIDE, 5))
def test_norms_and_swiglu_write_the_same_bits_beside_their_rows(rows: int, width: int, dtype: torch.dtype) -> None:
    x = normal(rows, width, dtype=dtype, seed=1)
    weight = normal(width, dtype=dtype, seed=2).contiguous()
    residual = normal(rows, width, dtype=dtype, seed=3, scale=3)
    gate_up = normal(rows, 2 * width, dtype=dtype, seed=4, scale=4)

    def check(kernel: Any, *operands: Any, **options: Any) -> None:
        plain, out, got = poisoned(rows, width, dtype=dtype), poisoned(rows, width, dtype=dtype), None
        fresh = [o.clone() if o is residual else o for o in operands]
        kernel(*fresh, plain, **options)
        got = poisoned_rows(rows, width)
        fresh = [o.clone() if o is residual else o for o in operands]
        kernel(*fresh, out, **options, quantized=got)
        assert torch.equal(out, plain), "the row that LoRA reads is not what it was"
        same_rows(got, referenced(out))

    check(norm.rms_norm, x, weight, 1e-5)
    check(norm.add_rms_norm, x, residual, weight, 1e-5)
    check(norm.add_rms_norm, x, residual, weight, 1e-5, **deltas(rows, width, dtype, 5))
    check(swiglu.swiglu, gate_up)
    check(swiglu.swiglu, gate_up, **deltas(rows, 2 * width, dtype, 6))


@pytest.mark.parametrize(("rows", "width"), WIDE)
def test_swiglu_of_wide_rows(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gate_up = normal(rows, 2 * width, dtype=torch.float16, seed=width, scale=4)
    options = deltas(rows, 2 * width, torch.float16, 7)
    plain = poisoned(rows, width, dtype=torch.float16)
    swiglu.swiglu(gate_up, plain, **options)
    for many in (quantize.MANY_ROWS, 1):
        monkeypatch.setattr(quantize, "MANY_ROWS", many)
        out, got = torch.full_like(plain, torch.nan), poisoned_rows(rows, width)
        swiglu.swiglu(gate_up, out, **options, quantized=got)
        assert torch.equal(out, plain)
        same_rows(got, referenced(out))


def test_a_row_of_nan_or_of_zeros_out_of_a_norm() -> None:
    """Whatever then lies beyond the row's end in registers."""
    x = torch.ones(3, 24, dtype=torch.float16, device=DEVICE)
    x[0] = 0
    x[1, 3] = torch.nan
    out, got = poisoned(3, 24, dtype=torch.float16), poisoned_rows(3, 24)
    norm.rms_norm(x, torch.ones(24, dtype=torch.float16, device=DEVICE), 1e-5, out, quantized=got)
    same_rows(got, referenced(out))
    assert got.scales.isnan().tolist() == [False, True, False]
    assert float(got.scales[0]) == 1


def test_no_rows() -> None:
    quantize_rows(torch.empty(0, 64, dtype=torch.float16, device=DEVICE), poisoned_rows(0, 64))
    out = torch.empty(0, 64, dtype=torch.float16, device=DEVICE)
    swiglu.swiglu(torch.empty(0, 128, dtype=torch.float16, device=DEVICE), out, quantized=poisoned_rows(0, 64))
