"""Random adapters for the pool of tiles, and an account of its pages beside the pool's own."""

from __future__ import annotations

import random

import torch

from adapters.device.host_weights import HostAdapter, ModuleWeights, pack_adapter
from adapters.device.pool import TilePool
from adapters.files.spec import BaseShape
from support.adapters.files import BASE

MODULES = list(BASE.modules)
PAGE_BYTES = 6_144  # a 16-row tile of up_proj takes 4,096
GUARD = 0xAB


def module_weights(
    ranks: dict[str, int], seed: int = 0, base: BaseShape = BASE, **how: object
) -> dict[tuple[int, str], ModuleWeights]:
    """Random weights of these modules in every layer."""
    sizes = [ranks[name] * (base.modules[name].in_features + base.modules[name].out_features) for name in ranks]
    dtype, device = how.get("dtype", torch.float32), how.get("device", "cpu")
    slab = torch.empty(sum(sizes) * base.layers, dtype=dtype, device=device)  # type: ignore[call-overload]
    slab.normal_(generator=None if device == "meta" else torch.Generator().manual_seed(seed))
    modules, position = {}, 0
    for layer in range(base.layers):
        for name, rank in ranks.items():
            shape = base.modules[name]
            a = slab[position : position + rank * shape.in_features].view(rank, -1)
            position += a.numel()
            b = slab[position : position + rank * shape.out_features].view(rank, -1)
            position += b.numel()
            modules[layer, name] = ModuleWeights(a, b, 1.0 + seed)
    return modules


def host_adapter(ranks: dict[str, int], seed: int = 0, base: BaseShape = BASE, **how: object) -> HostAdapter:
    """The same tiles in one slab, like a slab that was read from its file."""
    return pack_adapter(module_weights(ranks, seed, base, **how), base)


class Books:
    """Plays the scheduler, and counts pages independently of the pool."""

    def __init__(self, pool: TilePool, arena: torch.Tensor, dice: random.Random) -> None:
        self.pool, self.arena, self.dice = pool, arena, dice
        self.free = set(range(arena.shape[0]))
        self.placed: list[str] = []  # least recently used first

    def place(self, digest: str) -> None:
        needed = self.pool.pages_needed(digest)
        if needed > len(self.free):
            return
        pages = self.dice.sample(sorted(self.free), needed)
        self.free -= set(pages)
        self.pool.place_adapter(digest, pages)
        if digest not in self.placed:
            self.placed.append(digest)
        assert self.pool.pages_needed(digest) == 0

    def remove(self, digest: str) -> None:
        back = self.pool.evict_adapter(digest)
        assert len(set(back)) == len(back)
        assert not set(back) & self.free
        self.free |= set(back)
        for page in back:  # another owner has it now
            self.arena[page] = GUARD
        if digest in self.placed:
            self.placed.remove(digest)

    def use(self, digest: str) -> None:
        if digest in self.placed:
            self.pool.use(digest)
            self.placed.remove(digest)
            self.placed.append(digest)

    def check(self) -> None:
        self.pool.check_integrity()
        assert self.pool.resident() == self.placed
        for page in self.free:
            assert bool((self.arena[page] == GUARD).all()), f"page {page} was written without being owned"
        used = {page for digest in self.placed for page, _ in self.pool._resident[digest].places}
        assert used == set(range(self.arena.shape[0])) - self.free, "a page is held without a tile in it, or not held"
