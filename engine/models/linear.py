"""One weight matrix, in the layouts that a CPU multiplies fastest.

A step of a few rows takes as long as MKL takes to read the weights: benchmarks/cpu_decode.py measures it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# Steps of 2 to PACKED_ROWS rows use the packed copy, padded to PACKED_ROWS, the row count that MKL packs for. One row
# is a matrix-vector product and gains nothing; above PACKED_ROWS the plain layout is as fast.
PACKED_ROWS = 8

# Activations of int8 products have 16 bits: a high and a low byte, each multiplied separately. With 8 bits alone the
# mean divergence of SmolLM2 is ten times as large (docs/LOG.md, 2026-11-27).
HIGH_BYTE = 256
INT16_LARGEST = 127 * HIGH_BYTE  # so that the rounded high byte is at most 127
# The matrix [out, in] with which `multiplies_int8` compares both kinds of product, and how often.
MEASURED_SHAPE = (1536, 768)
MEASURED_PRODUCTS = 8
MEASURED_TURNS = 5
SMALLEST_SCALE = 1e-30  # of a row of zeros, whose numbers are 0 with any scale


class CpuProduct(Protocol):
    """y = x · Wᵀ (+ b) on a CPU."""

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        """Write y [rows, out] into `out`, and return it."""
        ...

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """y += x · Wᵀ. Only without a bias."""
        ...


class Linear:
    """y = x · Wᵀ (+ b) on a CPU, W in the dtype of x."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, packed: bool = False) -> None:
        """`weight` [out, in] and `bias` [out]. `packed` keeps a second copy for few rows, where this torch can (float32
        with MKL); elsewhere it does nothing."""
        # MKL multiplies 2 to 64 rows up to twice as fast with [in, out].
        self._plain = weight.t().contiguous()
        self._bias = bias
        self._out_in = self._plain.t()
        self._packed: Tensor | None = None
        if packed and can_pack(weight):
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), PACKED_ROWS)

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        """Write y [rows, out] into `out`, and return it."""
        if self._packed is not None and 1 < x.shape[0] <= PACKED_ROWS:
            out.copy_(self._few_rows(x))
            return out if self._bias is None else out.add_(self._bias)
        if self._bias is None:
            return torch.mm(x, self._plain, out=out)
        return torch.addmm(self._bias, x, self._plain, out=out)

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """y += x · Wᵀ. Only without a bias."""
        assert self._bias is None
        if self._packed is not None and 1 < x.shape[0] <= PACKED_ROWS:
            y.add_(self._few_rows(x))
        else:
            # The product is rounded on its own: summed onto y term by term (addmm) it loses three times as much.
            y.add_(torch.mm(x, self._plain))

    def _few_rows(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        x = F.pad(x, (0, 0, 0, PACKED_ROWS - rows)) if rows < PACKED_ROWS else x
        product: Tensor = torch.ops.mkl._mkl_linear(x, self._packed, self._out_in, None, PACKED_ROWS)
        return product[:rows]


def can_pack(weight: Tensor) -> bool:
    """Whether this torch has MKL's packed products, for this weight."""
    if weight.dtype != torch.float32:
        return False
    return torch.backends.mkl.is_available() and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


class Int8Linear:
    """y = x · Wᵀ (+ b) on a CPU, W in 8 bits with a scale a row, x [rows, in] in 16 bits with a scale a row.

    The sums are exact in int32 (in ≤ 2¹⁷), so a row's result is the same bits in any batch."""

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        """`weight` int8 [out, in], `scales` float32 [out], `bias` [out]."""
        self._weight = weight.contiguous().t()  # torch._int_mm multiplies fastest with the transpose of [out, in]
        if weight.shape[1] == 1:  # oneDNN takes its strides, 1 and 1, for others and reads memory behind it
            self._weight = weight.new_empty_strided((1, len(weight)), (len(weight), 1)).copy_(self._weight)
        self._scales = scales.float()
        self._bias = bias

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        out.copy_(self._product(x))
        return out if self._bias is None else out.add_(self._bias)

    def add_to(self, y: Tensor, x: Tensor) -> None:
        assert self._bias is None
        y.add_(self._product(x))

    def _product(self, x: Tensor) -> Tensor:
        """float32 [rows, out]"""
        rows, columns = x.shape
        largest = torch.linalg.vector_norm(x.float(), torch.inf, dim=1, keepdim=True)
        scales = (largest / INT16_LARGEST).clamp_(min=SMALLEST_SCALE)
        numbers = (x / scales).round_().to(torch.int16)
        # The low byte as a signed number, and the high byte that remains when it is subtracted.
        parts = torch.empty((2, rows, columns), dtype=torch.int8)
        parts[1] = numbers.view(torch.int8).view(rows, columns, 2)[..., 0]
        parts[0] = numbers.add_(HIGH_BYTE // 2).view(torch.int8).view(rows, columns, 2)[..., 1]
        if rows == 1:  # oneDNN has a path for one row that is faster than the path for two
            high, low = torch._int_mm(parts[0], self._weight), torch._int_mm(parts[1], self._weight)
        else:
            products = torch._int_mm(parts.view(2 * rows, columns), self._weight)  # also of no row: no chunk samples
            high, low = products.view(2, rows, self._weight.shape[1]).unbind()
        return high.float().mul_(HIGH_BYTE).add_(low).mul_(self._scales).mul_(scales)


@functools.cache
def multiplies_int8() -> bool:
    """Whether this CPU multiplies a row in 8 bits faster than in float32: with VNNI several times, without it (AVX2
    alone) six times slower. Measured once a process."""
    numbers = torch.randint(-127, 128, MEASURED_SHAPE, dtype=torch.int8)
    x, out = torch.randn(1, MEASURED_SHAPE[1]), torch.empty(1, MEASURED_SHAPE[0])
    narrow, wide = Int8Linear(numbers, torch.ones(MEASURED_SHAPE[0]), None), Linear(numbers.float())
    return _seconds(lambda: narrow(x, out)) < _seconds(lambda: wide(x, out))


def _seconds(multiply: Callable[[], object]) -> float:
    """Seconds of the fastest of MEASURED_TURNS runs."""
    taken = []
    for _ in range(MEASURED_TURNS):
        began = time.perf_counter()
        for _ in range(MEASURED_PRODUCTS):
            multiply()
        taken.append(time.perf_counter() - began)
    return min(taken)
