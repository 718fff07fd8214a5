"""Quantised matrices for the tests: a tensor of every part, in memory whose rest is poison."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.quantize import QuantizedRows
from kernels.reference_quantized import pack_int4
from support.kernels.operands import DEVICE

DTYPES = [torch.bfloat16, torch.float16]
ELEMENTS = ["fp8", "int8", "int4"]
FP8_NAN = 0x7F
GUARD_ROWS = 3  # before and after the rows of a tensor


class QuantizedMatrix(NamedTuple):
    """W [outs, in] in parts."""

    data: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    element: str
    group: int


def guarded(tensor: torch.Tensor, poison: float) -> torch.Tensor:
    """These numbers as rows of a larger tensor, with `poison` in all other rows."""
    whole = torch.full((tensor.shape[0] + 2 * GUARD_ROWS, *tensor.shape[1:]), poison, dtype=tensor.dtype, device=DEVICE)
    whole[GUARD_ROWS:-GUARD_ROWS] = tensor
    return whole[GUARD_ROWS:-GUARD_ROWS]


def matrix(
    outs: int, ins: int, group: int, element: str, *, with_zeros: bool, scales_dtype: torch.dtype, seed: int
) -> QuantizedMatrix:
    """All numbers of the element but NaN, scales such that entries are about 1. Around data lies NaN (fp8) or the
    largest number; around the scales NaN. Scales and zeros are transposed in memory for an odd `seed`."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-ins // group)
    zeros = None
    if element == "fp8":
        data = torch.randint(0, 256, (outs, ins), generator=generator, dtype=torch.uint8)
        data[(data & 0x7F) == FP8_NAN] = 0x80
        largest = 448.0
    elif element == "int8":
        data = torch.randint(0, 256, (outs, ins), generator=generator, dtype=torch.uint8)
        largest = 128.0
    else:
        data = pack_int4(torch.randint(0, 16, (outs, ins), generator=generator, dtype=torch.uint8))
        largest = 8.0
        if with_zeros:
            zeros = torch.randint(0, 16, (outs, groups), generator=generator, dtype=torch.uint8)
    scales = ((torch.rand(outs, groups, generator=generator) + 0.5) / largest).to(scales_dtype)
    return QuantizedMatrix(
        guarded(data.to(DEVICE), FP8_NAN if element == "fp8" else 0x7F),
        _placed(scales, torch.nan, transposed=seed % 2 == 1),
        None if zeros is None else _placed(zeros, 255, transposed=seed % 2 == 1),
        element,
        group,
    )


def _placed(tensor: torch.Tensor, poison: float, *, transposed: bool) -> torch.Tensor:
    tensor = tensor.to(DEVICE)
    return guarded(tensor.T, poison).T if transposed else guarded(tensor, poison)


def poisoned_rows(rows: int, width: int) -> QuantizedRows:
    """QuantizedRows full of NaN."""
    numbers = torch.full((rows, width), FP8_NAN, dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn)
    return QuantizedRows(numbers, torch.full((rows,), torch.nan, device=DEVICE))


def same_rows(got: QuantizedRows, wanted: QuantizedRows) -> None:
    """Bit for bit; NaN scales are equal."""
    assert torch.equal(got.numbers.view(torch.uint8), wanted.numbers.view(torch.uint8))
    torch.testing.assert_close(got.scales, wanted.scales, rtol=0, atol=0, equal_nan=True)
