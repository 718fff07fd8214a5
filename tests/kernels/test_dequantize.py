"""A quantised W written out as a plain matrix, against float32."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from kernels import dequantize, reference_quantized
from support.kernels.operands import DEVICE, GPU, poisoned, sampled
from support.kernels.quantized import DTYPES, matrix

SHAPES = [(1, 64), (24, 96), (40, 160), (100, 288), (130, 160), (7, 2080)]
WHOLE = list(
    itertools.product(
        SHAPES,
        [32, 64, 128, 0],
        [("fp8", False), ("int8", False), ("int4", False), ("int4", True)],
        [torch.float32, torch.float16, torch.bfloat16],
        DTYPES,
    )
)
# On a GPU almost every case is another kernel to compile.
CASES = random.Random(22).sample(WHOLE, 90)


@pytest.mark.parametrize(("shape", "group", "kind", "scales", "dtype"), sampled("dequantize", CASES, 16), ids=str)
def test_against_torch(
    shape: tuple[int, int], group: int, kind: tuple[str, bool], scales: torch.dtype, dtype: torch.dtype
) -> None:
    """Every bit: one product in float32, rounded once; the interpreter truncates to bfloat16, a unit in the last
    place."""
    outs, ins = shape
    element, with_zeros = kind
    w = matrix(outs, ins, group or ins, element, with_zeros=with_zeros, scales_dtype=scales, seed=outs + ins // 32)
    whole, wanted = poisoned(outs + 2, ins + 8, dtype=dtype), poisoned(outs, ins, dtype=dtype)
    dequantize.dequantize(*w[:3], whole[1:-1, :ins], element=element, group=w.group)
    reference_quantized.dequantize(*w[:3], wanted, element=element, group=w.group)
    tolerance = 2**-7 if dtype == torch.bfloat16 and not GPU else 0
    torch.testing.assert_close(whole[1:-1, :ins], wanted, rtol=tolerance, atol=0)
    assert whole[[0, -1]].isnan().all()
    assert whole[:, ins:].isnan().all()


def test_nan_numbers_and_scales_are_nan() -> None:
    data = torch.tensor([[0x7F, 0xFF, 0x38] + [0] * 29] * 2, dtype=torch.uint8, device=DEVICE)
    scales = torch.tensor([[1.0], [torch.nan]], device=DEVICE)
    out = poisoned(2, 32, dtype=torch.float16)
    dequantize.dequantize(data, scales, None, out, element="fp8", group=32)
    assert out[0].isnan().tolist() == [True, True] + [False] * 30
    assert float(out[0, 2]) == 1
    assert out[1].isnan().all()


def test_nibbles_are_packed_low_first() -> None:
    nibbles = torch.arange(16, dtype=torch.uint8).repeat(2, 2)
    data = reference_quantized.pack_int4(nibbles)
    assert data[0, :3].tolist() == [0x10, 0x32, 0x54]
    out = poisoned(2, 32, dtype=torch.float16)
    ones = torch.ones(2, 1, device=DEVICE)
    dequantize.dequantize(data.to(DEVICE), ones, None, out, element="int4", group=32)
    assert torch.equal(out.cpu(), nibbles.to(torch.float16) - 8)
