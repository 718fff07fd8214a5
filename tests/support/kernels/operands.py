"""Shared by the tests of a step's small ops: device, dtypes, tolerances, and operands that reveal unwritten elements.

With a CUDA device the whole matrix runs; without, in the interpreter, a sample of it with a printed seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import torch

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# The interpreter computes bfloat16 in another way than a GPU.
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if GPU else [torch.float32, torch.float16]
# Relative and absolute: two units in the last place, as sums are taken in another order.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SAMPLED = 10

Case = TypeVar("Case")


def sampled(name: str, cases: Sequence[Case], count: int = SAMPLED) -> list[Case]:
    """All cases on a GPU, else `count` of them, dealt by a seed made from `name`."""
    if GPU or len(cases) <= count:
        return list(cases)
    seed = zlib.crc32(name.encode())
    print(f"{name}: {count} of {len(cases)} cases, seed {seed}")
    return random.Random(seed).sample(list(cases), count)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare every element; NaN only where NaN is expected."""
    tolerance = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def normal(*shape: int, dtype: torch.dtype, seed: int, scale: float = 1.0) -> torch.Tensor:
    """Rows of a wider buffer, so that the row stride differs from the row's width."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(*shape[:-1], shape[-1] + 16, generator=generator) * scale
    return wide.to(dtype).to(DEVICE)[..., : shape[-1]]


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def deltas(rows: int, width: int, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """Deltas of about half the rows; the others' are NaN and must not be read. Flags are any number but 0."""
    flags = torch.randint(0, 2, (rows,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32).to(DEVICE)
    delta = normal(rows, width, dtype=dtype, seed=seed + 1)
    delta[flags == 0] = float("nan")
    return {"delta": delta, "adapted": flags * 3}
