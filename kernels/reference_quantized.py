"""Quantised rows and quantised matrices in plain torch: the expected results of the kernels of the same names.

A quantised matrix represents W [out, in]: W[n, k] = (q[n, k] − zero[n, k // group]) · scale[n, k // group].
"""

from __future__ import annotations

import torch

from kernels.quantize import FP8_MAX, QuantizedRows

FP8 = torch.float8_e4m3fn
FP8_NAN = 0x7F
INT4_ZERO = 8  # where a matrix has no zeros


def quantize_rows(x: torch.Tensor, out: QuantizedRows) -> None:
    """scales[r] = max |x[r]| / 448, or 1 where the row is all zeros; numbers[r] = x[r] / scales[r]."""
    wide = x.float()
    largest = wide.abs().amax(dim=1)
    scales = largest / torch.full_like(largest, FP8_MAX)  # on a GPU, torch multiplies by the reciprocal of a constant
    scales = torch.where(scales == 0, 1.0, scales)
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    quotients = wide / scales[:, None] + 0.0
    bits = quotients.clamp(-FP8_MAX, FP8_MAX).to(FP8).view(torch.uint8)
    out.numbers.copy_(torch.where(quotients.isnan(), FP8_NAN, bits).view(FP8))
    out.scales.copy_(scales)


def pack_int4(nibbles: torch.Tensor) -> torch.Tensor:
    """`nibbles` [out, in] uint8 below 16, `in` even, to data [out, in / 2] uint8: column 2j is the low half of byte
    j."""
    assert nibbles.dtype == torch.uint8
    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)


def dequantize(
    data: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, out: torch.Tensor, *, element: str, group: int
) -> None:
    """out = W."""
    out.copy_(_wide(data, scales, zeros, out.shape[1], element, group))


def quantized_product(
    x: torch.Tensor | QuantizedRows,
    data: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    out: torch.Tensor,
    *,
    element: str,
    group: int,
) -> None:
    """out = x · Wᵀ, in float32 until the result is rounded."""
    wide_x = x.numbers.float() * x.scales[:, None] if isinstance(x, QuantizedRows) else x.float()
    out.copy_(wide_x @ _wide(data, scales, zeros, wide_x.shape[1], element, group).T)


def _wide(
    data: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, columns: int, element: str, group: int
) -> torch.Tensor:
    """W [out, columns] in float32."""
    if element == "fp8":
        numbers = data.view(FP8).float()
    elif element == "int8":
        numbers = data.view(torch.int8).float()
    else:
        assert element == "int4"
        numbers = torch.stack((data & 15, data >> 4), dim=2).flatten(1).float()
    of_column = torch.arange(columns, device=data.device) // group
    if element == "int4":
        numbers -= INT4_ZERO if zeros is None else zeros.float()[:, of_column]
    return numbers * scales.float()[:, of_column]
