"""One weight matrix, in the layouts that its device multiplies fastest.

On a CPU a step of a few rows takes as long as MKL takes to read the weights: benchmarks/cpu_decode.py measures it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Steps of 2 to PACKED_ROWS rows use the packed copy, padded to PACKED_ROWS, the row count that MKL packs for. One row
# is a matrix-vector product and gains nothing; above PACKED_ROWS the plain layout is as fast.
PACKED_ROWS = 8


class Linear:
    """y = x · Wᵀ (+ b)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, packed: bool = False) -> None:
        """`weight` [out, in] and `bias` [out], on their device. `packed` keeps a second copy for few rows, where this
        torch can (float32 with MKL); elsewhere it does nothing."""
        # MKL multiplies 2 to 64 rows up to twice as fast with [in, out]; cuBLAS does not care, and keeps a view.
        self._plain = weight.t().contiguous() if weight.device.type == "cpu" else weight.t()
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
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    return torch.backends.mkl.is_available() and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
