"""Attention of one large chunk of new tokens over K and V gathered from their pages, by torch's fused attention.

On a GPU that is cuDNN's, whose products run faster than Triton's once the chunk is large; but it plans every new pair
of lengths anew, and no captured graph can hold it. It must never know owners, nor why a row is in the batch.
"""

from __future__ import annotations

import torch


def gathered_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    kv: torch.Tensor,
    table: torch.Tensor,
    keys: int,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    tokens_per_page: int,
    scale: float,
    gathered: torch.Tensor | None = None,
) -> None:
    """out[i] = softmax(scale · q[i] · Kᵀ) · V over the first keys − new + i + 1 keys of the sequence, in `layer`.

    q, out [new, heads × head_dim], contiguous within a row, are the sequence's new tokens. kv [pages, page elements] is
    the arena in q's dtype, as for `prefill_attention`; `table` [pages of `keys` tokens] int32 or int64 names the
    sequence's pages in order. `gathered`, if given, is memory for [pages or more, tokens_per_page × 2 × kv_heads ×
    head_dim].
    Over a cached prefix the keys before the chunk and its own are two calls, one full and one causal, whose outputs are
    weighed by their sums; the second output is rounded to the dtype once more than the kernel's.
    """
    new, head_dim = q.shape[0], q.shape[1] // heads
    run = tokens_per_page * 2 * kv_heads * head_dim
    assert 0 < new <= keys
    assert table.shape[0] == -(-keys // tokens_per_page)
    assert heads % kv_heads == 0
    pages = kv[:, layer * run : (layer + 1) * run]
    held = None if gathered is None else gathered[: table.shape[0]]
    rows = torch.index_select(pages, 0, table, out=held).view(-1, 2, kv_heads, head_dim)
    k, v = rows[:keys].permute(1, 2, 0, 3)[:, None].unbind(0)  # each [1, kv_heads, keys, head_dim]
    queries = q.view(1, new, heads, head_dim).transpose(1, 2)
    prefix = keys - new
    attended, log_sum = _attend(queries, k[:, :, prefix:], v[:, :, prefix:], scale, causal=True)
    if prefix:
        before, log_sum_before = _attend(queries, k[:, :, :prefix], v[:, :, :prefix], scale, causal=False)
        share = torch.sigmoid(log_sum_before - log_sum).to(q.dtype)
        attended = torch.lerp(attended, before, share[..., None])
    out.view(1, new, heads, head_dim).copy_(attended.transpose(1, 2))


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [1, heads, new, head_dim] and the natural logarithm of each row's sum [1, heads, new], float32. Causal:
    query i sees i + 1 keys. Torch's public function hands over no sums."""
    if q.is_cuda:
        out, log_sum = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=scale
        )[:2]
    else:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, log_sum.view(q.shape[:3])
