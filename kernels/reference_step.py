"""A step's small ops in plain torch: norms, rotary, SwiGLU, embedding, and the draw of an id.

What the kernels of the same names must compute; signatures and shapes are theirs. Tensors only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out[r] = x[r] / sqrt(mean(x[r]²) + eps) · weight."""
    out.copy_(_normed(x, weight, eps))


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    delta: torch.Tensor | None = None,
    adapted: torch.Tensor | None = None,
) -> None:
    """residual[r] += x[r] + delta[r], the delta only where `adapted[r]` ≠ 0; out[r] = rms_norm(residual[r])."""
    residual += _with_delta(x, delta, adapted)
    out.copy_(_normed(residual, weight, eps))


def swiglu(
    gate_up: torch.Tensor,
    out: torch.Tensor,
    *,
    delta: torch.Tensor | None = None,
    adapted: torch.Tensor | None = None,
) -> None:
    """out[r] = silu(gate) · up of the halves of gate_up[r] + delta[r]."""
    gate, up = _with_delta(gate_up, delta, adapted).chunk(2, dim=1)
    torch.mul(F.silu(gate), up, out=out)


def rotary_tables(positions: torch.Tensor, frequencies: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """cos, sin[r, i] = cos, sin(positions[r] · frequencies[i])."""
    angles = positions[:, None].float() * frequencies
    cos.copy_(angles.cos())
    sin.copy_(angles.sin())


def rotary_write(
    qkv: torch.Tensor,
    q_out: torch.Tensor,
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    write_pages: torch.Tensor,
    write_slots: torch.Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    tokens_per_page: int,
    delta: torch.Tensor | None = None,
    adapted: torch.Tensor | None = None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """q rotated to `q_out`, k rotated and v as it is to their page and slot of the arena."""
    live = (write_pages >= 0).nonzero()[:, 0]
    head_dim = qkv.shape[1] // (heads + 2 * kv_heads)
    rows = _with_delta(qkv, delta, adapted)[live].unflatten(1, (heads + 2 * kv_heads, head_dim))
    q, k, v = rows.split([heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = _normed(q, q_norm, eps), _normed(k, k_norm, eps)
    q, k = (_rotated(x, cos[live, None], sin[live, None]) for x in (q, k))
    q_out[live] = q.flatten(1)
    run = tokens_per_page * 2 * kv_heads * head_dim
    slots = kv[:, layer * run : (layer + 1) * run].unflatten(1, (tokens_per_page, -1))
    slots[write_pages[live].long(), write_slots[live].long()] = torch.cat((k, v), dim=1).flatten(1)


def gather_ids(ids: torch.Tensor, source: torch.Tensor, previous: torch.Tensor, out: torch.Tensor) -> None:
    """out[r] = previous[source[r]] where `source[r]` ≥ 0, else ids[r]."""
    drawn = source >= 0
    out.copy_(ids)
    out[drawn] = previous[source[drawn].long()].to(out.dtype)


def embed(
    ids: torch.Tensor, source: torch.Tensor, previous: torch.Tensor, embedding: torch.Tensor, out: torch.Tensor
) -> None:
    """out[r] = embedding[id], the id brought within the vocabulary."""
    chosen = torch.empty_like(ids, dtype=torch.int64)
    gather_ids(ids, source, previous, chosen)
    out.copy_(embedding[chosen.clamp(0, embedding.shape[0] - 1)])


def _with_delta(x: torch.Tensor, delta: torch.Tensor | None, adapted: torch.Tensor | None) -> torch.Tensor:
    if delta is None or adapted is None:
        return x
    return torch.where((adapted != 0)[:, None], x + delta, x)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [rows, heads, head_dim]; `cos`, `sin` [rows, 1, head_dim / 2] float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


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
    """out[r] = the id that wins row r's race, in float64, a row at a time; -1 where its logits are no logits."""
    for row, x in enumerate(logits.double()):
        if not x.max().isfinite():  # torch's maximum is NaN where one is
            out[row] = -1
        elif temperature[row] == 0:
            out[row] = (x == x.max()).nonzero()[0, 0]
        else:
            weights = ((x - x.max()) / temperature[row].double()).exp()
            kept = _kept(weights, int(top_k[row]), float(top_p[row]), float(min_p[row]))
            times = exponentials(int(seed[row]), int(choice[row]), int(position[row]), kept) / weights[kept]
            out[row] = kept[times.argmin()]


def _kept(weights: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The ids that filters leave; of equally likely ones at the edge the lowest."""
    order = weights.argsort(descending=True, stable=True)
    order = order[weights[order] >= min_p * weights.max()]
    if 0 < top_k:
        order = order[:top_k]
    if top_p < 1:
        mass = weights[order].cumsum(0)
        order = order[: int(torch.searchsorted(mass, top_p * mass[-1])) + 1]
    return order


def exponentials(seed: int, choice: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    """The time of each id [n] int64 in the race of (seed, choice, position), float64 over 0: −log of a uniform number
    of 52 bits and a half, from SplitMix64 (Steele et al., OOPSLA 2014) started at the row's key."""
    z = (ids + 1) * _signed(0x9E3779B97F4A7C15) + _row_key(seed, choice, position)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    return -((_shifted(z, 12).double() + 0.5) * 2.0**-52).log()


def _row_key(seed: int, choice: int, position: int) -> int:
    """64 random bits, signed: ten rounds of Philox4x32 (Salmon et al., SC 2011) keyed by the seed."""
    mask = 0xFFFFFFFF
    a, b, c, d = position & mask, position >> 32 & mask, choice & mask, choice >> 32 & mask
    k0, k1 = seed & mask, seed >> 32 & mask
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ k0, second & mask, first >> 32 ^ d ^ k1, first & mask
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    return _signed(a << 32 | b)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """A logical shift to the right: torch's keeps the sign."""
    return z >> bits & (1 << 64 - bits) - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
