"""The draw of an id in plain torch, and its noise, which a CPU's sampler and the kernel have in common.

The expected result of the kernel of the same name. Tensors only.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    choice: torch.Tensor,
    position: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """out[r] = the id that wins row r's race, in float64, a row at a time; -1 where its largest logit is not finite."""
    for row, x in enumerate(logits.double()):
        if not x.max().isfinite():  # torch's maximum is NaN where one is
            out[row] = -1
        elif temperature[row] == 0:
            out[row] = (x == x.max()).nonzero()[0, 0]
        else:
            weights = ((x - x.max()) / temperature[row].double()).exp()
            kept = _kept(weights, int(top_k[row]), float(top_p[row]), float(min_p[row]))
            key = torch.tensor([row_key(int(seed[row]), int(choice[row]), int(position[row]))], device=x.device)
            out[row] = kept[(exponentials(key, kept)[0] / weights[kept]).argmin()]


def _kept(weights: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The ids that filters leave; of equally likely ones at the edge the lowest."""
    order = weights.argsort(descending=True, stable=True)
    order = order[weights[order] >= min_p * weights.max()]
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        mass = weights[order].cumsum(0)
        order = order[: int(torch.searchsorted(mass, top_p * mass[-1])) + 1]
    return order


def exponentials(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """For `ids` [n] or [rows, n] and `keys` [rows], int64: [rows, n] float64 over 0, exponentially distributed, each a
    function of its row's key and its id.

    SplitMix64 (Steele et al., OOPSLA 2014), started at the key: torch's int64 wraps around, and its shifts keep the
    sign."""
    z = keys[:, None] + (ids + 1) * _signed(0x9E3779B97F4A7C15)
    z = z.bitwise_xor_(z >> 30 & (1 << 34) - 1).mul_(_signed(0xBF58476D1CE4E5B9))
    z = z.bitwise_xor_(z >> 27 & (1 << 37) - 1).mul_(_signed(0x94D049BB133111EB))
    z = z.bitwise_xor_(z >> 31 & (1 << 33) - 1)
    # 52 bits and a half: never 0 and never 1.
    uniform = (z >> 12 & (1 << 52) - 1).double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_()


def row_key(seed: int, choice: int, position: int) -> int:
    """64 random bits, signed: Philox4x32-10 keyed by the seed, counting (position, choice)."""
    counter = (position & _MASK, position >> 32 & _MASK, choice & _MASK, choice >> 32 & _MASK)
    high, low, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32 & _MASK))
    return _signed(high << 32 | low)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox over 32-bit words: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    CUDA's and Triton's generators are the same function."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ k0, second & _MASK, (first >> 32) ^ d ^ k1, first & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return a, b, c, d


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
