"""What adapters of a real model's shape take in the arena, by their bytes: tiles are packed, and no rank is padded."""

from __future__ import annotations

import pytest
import torch

from adapters.device.host_weights import HostAdapter, ModuleWeights, pack_adapter
from adapters.device.pool import TilePool
from adapters.files.spec import BaseShape

PAGE_BYTES = 2 << 20
LLAMA_8B = BaseShape.from_config(
    {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
    }
)


def host(rank: int) -> HostAdapter:
    """Sizes without numbers."""

    def weights(width: int) -> torch.Tensor:
        return torch.empty(rank, width, dtype=torch.bfloat16, device="meta")

    modules = {
        (layer, name): ModuleWeights(weights(shape.in_features), weights(shape.out_features), 1.0)
        for layer in range(LLAMA_8B.layers)
        for name, shape in LLAMA_8B.modules.items()
    }
    return pack_adapter(modules, LLAMA_8B)


@pytest.mark.parametrize(("ranks", "count", "limit"), [((8,), 256, 1.05), ((8, 16, 32, 64), 32, 1.05), ((1,), 8, 1.3)])
def test_adapters_take_little_more_than_their_bytes(ranks: tuple[int, ...], count: int, limit: float) -> None:
    pool = TilePool(torch.empty(1 << 15, PAGE_BYTES, dtype=torch.uint8, device="meta"), torch.bfloat16, {"m": LLAMA_8B})
    hosts = {rank: host(rank) for rank in ranks}
    pages = used = 0
    for index in range(count):
        rank = ranks[index % len(ranks)]
        pool.add_host_adapter(str(index), "m", hosts[rank])
        needed = pool.pages_needed(str(index))
        pool.place_adapter(str(index), list(range(pages, pages + needed)))
        pages += needed
        used += hosts[rank].layout.bytes
    assert used <= pages * PAGE_BYTES <= limit * used
