"""Attention over gathered K and V against the reference: any page size, prefixes, NaN wherever nobody may look."""

from __future__ import annotations

import random

import pytest
import torch
from paged_kv import DEVICE, DTYPES, Shape, assert_same, paged

from kernels import reference_attention as reference
from kernels.gathered_attention import gathered_attention

SHAPES = [Shape(9, 3, 64, 16), Shape(32, 8, 128, 16), Shape(28, 4, 128, 13), Shape(4, 4, 64, 40)]


@pytest.mark.parametrize(("new", "keys"), [(1, 1), (130, 130), (70, 200), (1, 65), (64, 128), (33, 401)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_chunk_over_its_prefix(shape: Shape, new: int, keys: int) -> None:
    torch.manual_seed(new)
    dtype = DTYPES[0]
    arena = paged(shape, [keys, 50], dtype, layer=1, dice=random.Random(keys))
    table = arena.pages[arena.page_starts[0] : arena.page_starts[1]]
    qkv = torch.randn(new + 2, shape.q_size + 2 * shape.kv_heads * shape.head_dim).to(dtype).to(DEVICE)
    q = qkv[1 : new + 1, : shape.q_size]
    places = {
        "layer": 1, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "tokens_per_page": shape.tokens_per_page, "scale": shape.scale,
    }  # fmt: skip
    wanted = torch.full((new, shape.q_size), torch.nan, dtype=dtype, device=DEVICE)
    reference.prefill_attention(q, wanted, arena.kv, [0], [new], [keys], [0], table, **places)
    memory = arena.kv.new_full((len(table) + 3, arena.kv.shape[1] // shape.layers), torch.nan)
    memory = memory[:, : shape.tokens_per_page * 2 * shape.kv_heads * shape.head_dim].contiguous()
    for gathered in (None, memory):
        out = torch.full((new + 2, shape.q_size), torch.nan, dtype=dtype, device=DEVICE)
        gathered_attention(q, out[1:-1], arena.kv, table, keys, gathered=gathered, **places)
        assert_same(out[1:-1], wanted)
        assert out[[0, -1]].isnan().all()
