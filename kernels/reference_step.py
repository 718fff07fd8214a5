"""A step's small ops in plain torch: norms, rotary, SwiGLU and embedding.

The expected results of the kernels of the same names, with the same signatures and shapes. Tensors only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.kv_layout import fp8_run_bytes, fp8_scales_start
from kernels.reference_kv import quantise_heads


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
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """residual[r] += x[r] · scales + delta[r], the delta only where `adapted[r]` ≠ 0; out[r] = rms_norm(residual[r]).
    `scales` [rows], [hidden] float32; None: x has its scales."""
    if scales is None:
        residual += _with_delta(x, delta, adapted)
    else:
        wide = x.float() * (scales[0][:, None] * scales[1])
        wide_delta = None if delta is None else delta.float()
        residual += _with_delta(wide, wide_delta, adapted).to(x.dtype)
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
    """Write q rotated to `q_out`, and k rotated and v unchanged to their page and slot of the arena, which is uint8
    where they are fp8."""
    live = (write_pages >= 0).nonzero()[:, 0]
    head_dim = qkv.shape[1] // (heads + 2 * kv_heads)
    rows = _with_delta(qkv, delta, adapted)[live].view(-1, heads + 2 * kv_heads, head_dim)
    q, k, v = torch.split(rows, [heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = _normed(q, q_norm, eps), _normed(k, k_norm, eps)
    q, k = (_rotated(x, cos[live, None], sin[live, None]) for x in (q, k))
    q_out[live] = q.flatten(1)
    at = write_pages[live].long(), write_slots[live].long()
    written = torch.cat((k, v), dim=1)
    size, run = tokens_per_page * 2 * kv_heads * head_dim, tokens_per_page * 2 * kv_heads * head_dim
    if kv.dtype == torch.uint8:
        run = fp8_run_bytes(tokens_per_page, kv_heads, head_dim)
        written, scales = quantise_heads(written)
        start = layer * run + fp8_scales_start(tokens_per_page, kv_heads, head_dim)
        of_page = kv[:, start : start + tokens_per_page * 2 * kv_heads * 2].view(torch.float16)
        of_page.view(kv.shape[0], 2 * kv_heads, tokens_per_page).transpose(1, 2)[at] = scales
    slots = kv[:, layer * run : layer * run + size].view(kv.shape[0], tokens_per_page, 2 * kv_heads * head_dim)
    slots[at] = written.flatten(1)


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
