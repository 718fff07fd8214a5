"""SwiGLU against plain torch."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels import reference_step, swiglu
from support.kernels.operands import DEVICE, DTYPES, close, deltas, normal, poisoned, sampled

CASES = list(itertools.product([0, 1, 5, 256], [1, 13, 1023, 1024, 1025, 14336], [False, True], DTYPES))


@pytest.mark.parametrize(("rows", "width", "with_delta", "dtype"), sampled("swiglu", CASES))
def test_against_torch(rows: int, width: int, with_delta: bool, dtype: torch.dtype) -> None:
    gate_up = normal(rows, 2 * width, dtype=dtype, seed=1, scale=4)
    options = deltas(rows, 2 * width, dtype, 2) if with_delta else {}
    out, wanted = poisoned(rows, width, dtype=dtype), torch.empty(rows, width, dtype=dtype, device=DEVICE)
    swiglu.swiglu(gate_up, out, **options)
    reference_step.swiglu(gate_up, wanted, **options)
    close(out, wanted)


def test_gates_far_from_zero_neither_overflow_nor_vanish() -> None:
    gates = torch.tensor([[-1e4, -100.0, -20.0, 20.0, 100.0, 1e4]], device=DEVICE)
    out = poisoned(1, 6, dtype=torch.float32)
    swiglu.swiglu(torch.cat((gates, torch.ones_like(gates)), dim=1), out)
    close(out, torch.nn.functional.silu(gates))
