"""fp8 K and V in plain torch: the definition that the kernels' bytes and numbers must equal. The CPU's decoder uses it.

Tensors only.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
E4M3_NAN = 0x7F
F16_MAX, F16_NAN = 65504.0, 0x7FFF


def quantise_heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers uint8 [..., head_dim], bits of float8_e4m3fn, and the scales float16 [...] of heads x [..., head_dim]
    in any float dtype: x ≈ number · scale.

    A scale is the smallest positive float16 that is not below max|x| / 448, so that no number is clipped. A head with
    a NaN or an infinity, or beyond the range of the scales, becomes NaN throughout, scale included: its request fails
    alone, as it does in the model's dtype."""
    wide = x.float()
    largest = wide.abs().amax(-1)
    exact = largest / torch.full_like(largest, E4M3_MAX)  # on a GPU, torch multiplies by the reciprocal of a constant
    finite = exact <= F16_MAX  # false of NaN
    nearest = exact.half()
    bits = nearest.view(torch.int16) + (nearest.float() < exact).to(torch.int16)  # the next float16 above
    bits.clamp_(min=1).masked_fill_(~finite, F16_NAN)  # at least 1: a head of zeros
    scales = bits.view(torch.float16)
    numbers = (wide / scales.float()[..., None]).to(torch.float8_e4m3fn).view(torch.uint8)
    return numbers.masked_fill_(~finite[..., None], E4M3_NAN), scales


def dequantise_heads(numbers: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """out = number · scale, computed in float32. `numbers` uint8 and `out` [..., head_dim], `scales` float16 [...]."""
    torch.mul(numbers.view(torch.float8_e4m3fn).float(), scales.float()[..., None], out=out)
