"""Attention over the paged K and V in plain torch, one sequence at a time: the expected results of the attention
kernels.

Inputs are row numbers, page numbers and lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.kv_layout import fp8_run_bytes, fp8_scales_start
from kernels.reference_kv import dequantise_heads


def gather_keys_values(
    kv: torch.Tensor, table: torch.Tensor, keys: int, *, layer: int, kv_heads: int, head_dim: int, tokens_per_page: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [keys, kv_heads, head_dim] of one sequence in one layer. kv [pages, page elements]; `table` holds its
    page numbers in order. Keys beyond `keys` are not read. Of an arena uint8 [pages, page_bytes], which holds fp8,
    they are float32."""
    used = table[: -(-keys // tokens_per_page)].long()
    if kv.dtype == torch.uint8:
        run, start = (count(tokens_per_page, kv_heads, head_dim) for count in (fp8_run_bytes, fp8_scales_start))
        runs = kv[used, layer * run : (layer + 1) * run]
        numbers = runs[:, :start].reshape(-1, 2, kv_heads, head_dim)[:keys]
        scales = runs[:, start : start + 4 * tokens_per_page * kv_heads].contiguous().view(torch.float16)
        scales = scales.view(-1, 2, kv_heads, tokens_per_page).permute(0, 3, 1, 2).reshape(-1, 2, kv_heads)[:keys]
        both = torch.empty(numbers.shape, device=kv.device)
        dequantise_heads(numbers, scales, both)
        return both[:, 0], both[:, 1]
    run = tokens_per_page * 2 * kv_heads * head_dim
    rows = kv[used, layer * run : (layer + 1) * run].reshape(-1, 2, kv_heads, head_dim)[:keys]
    return rows[:, 0], rows[:, 1]


def prefill_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    kv: torch.Tensor,
    row_starts: Sequence[int],
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    page_starts: Sequence[int],
    pages: torch.Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    tokens_per_page: int,
    scale: float,
) -> None:
    """out[row_starts[s] + i] = softmax(scale · q · Kᵀ) · V over the first kv_lens[s] − q_lens[s] + i + 1 keys of s.

    q, out [rows, heads × head_dim]; query head h reads the K/V head h // (heads / kv_heads). Computed in float32, or in
    float64 where q is. A sequence of no new tokens writes nothing.
    """
    head_dim = q.shape[1] // heads
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    for row, new, keys, page_start in zip(row_starts, q_lens, kv_lens, page_starts, strict=True):
        if not new:
            continue
        k, v = gather_keys_values(
            kv, pages[page_start:], keys, layer=layer, kv_heads=kv_heads, head_dim=head_dim,
            tokens_per_page=tokens_per_page,
        )  # fmt: skip
        queries = q[row : row + new].reshape(new, kv_heads, heads // kv_heads, head_dim).to(wide)
        scores = torch.einsum("qhgd,khd->hgqk", queries, k.to(wide)) * scale
        seen = torch.arange(keys - new + 1, keys + 1, device=q.device)
        hidden = torch.arange(keys, device=q.device)[None, :] >= seen[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        attended = torch.einsum("hgqk,khd->qhgd", weights, v.to(wide))
        out[row : row + new] = attended.reshape(new, heads * head_dim).to(out.dtype)


def decode_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    kv: torch.Tensor,
    rows: Sequence[int],
    kv_lens: Sequence[int],
    page_starts: Sequence[int],
    pages: torch.Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    tokens_per_page: int,
    scale: float,
) -> None:
    """One new token a sequence: out[rows[s]] from q[rows[s]] and the first kv_lens[s] keys of s; a sequence
    without keys writes nothing. Otherwise as `prefill_attention`."""
    new = [int(keys > 0) for keys in kv_lens]
    prefill_attention(
        q, out, kv, rows, new, kv_lens, page_starts, pages, layer=layer, heads=heads, kv_heads=kv_heads,
        tokens_per_page=tokens_per_page, scale=scale,
    )  # fmt: skip
