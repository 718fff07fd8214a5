"""The device's table of tiles: a row for each adapter in the arena, where kernels find its tiles, ranks and scales.

It must never know about requests, nor who decides what is resident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from adapters.spec import PARENTS, BaseShape
from kernels.lora_work import TILE_ALIGN_BYTES, TILE_RANK, Stack, TileTable, pack_entry

# The modules in the order of the table's rows: those that share an x are neighbours.
MODULES = tuple(PARENTS)


class Placed(Protocol):
    """What the table must know of a tile in the arena: `adapters.pool.TilePlace` is one."""

    @property
    def layer(self) -> int: ...
    @property
    def module(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def page(self) -> int: ...
    @property
    def offset(self) -> int: ...


class AdapterRows:
    """Rows of a TileTable, given to adapters as they become resident. One thread, one stream: a row is rewritten in
    stream order, so that every step sees it whole, and a step that was begun before sees the old one."""

    def __init__(self, arena: torch.Tensor, dtype: torch.dtype, layers: int, adapters_max: int, rank_max: int) -> None:
        """`arena` [pages, page_bytes] uint8; `layers` of the deepest model; `adapters_max` resident at once, of rank
        `rank_max` at most."""
        assert arena.shape[1] % TILE_ALIGN_BYTES == 0, "tiles are counted in units of 64 bytes from the arena's start"
        assert arena.is_contiguous()
        self._page_units = arena.shape[1] // TILE_ALIGN_BYTES
        self.rank_max = rank_max
        self._tiles_max = -(-rank_max // TILE_RANK)
        shape = (adapters_max, layers, len(MODULES), 1 + self._tiles_max)
        entries = torch.zeros(shape, dtype=torch.int64, device=arena.device)
        self.table = TileTable(arena.view(-1).view(dtype), entries)
        self._free = list(range(adapters_max - 1, -1, -1))
        self._rows: dict[str, tuple[int, int]] = {}  # digest → its row, and the tiles of its largest module

    @property
    def free(self) -> int:
        """How many more adapters there is room for."""
        return len(self._free)

    def check_room(self) -> None:
        """Raises ValueError when every row is taken."""
        if not self._free:
            raise ValueError(f"{len(self._rows)} adapters are in the arena, and its table has rows for no more")

    def add(self, digest: str, places: Sequence[Placed], scales: Mapping[tuple[int, str], float]) -> None:
        """Give it a row, and write there where its tiles lie; `scales` by (layer, module). Raises ValueError when every
        row is taken."""
        assert digest not in self._rows
        self.check_room()
        entries = self._entries(places, scales)
        if self.table.entries.is_cuda:
            entries = entries.pin_memory()  # the allocator keeps it until the copy is done
        row = self._free.pop()
        self.table.entries[row].copy_(entries, non_blocking=True)
        ranks = entries[..., 0] & 0xFFFFFFFF
        self._rows[digest] = row, -(-int(ranks.max()) // TILE_RANK)

    def _entries(self, places: Sequence[Placed], scales: Mapping[tuple[int, str], float]) -> torch.Tensor:
        """What its row must hold."""
        entries = torch.zeros(self.table.entries.shape[1:], dtype=torch.int64)
        numbers = entries.numpy()
        ranks: Counter[tuple[int, str]] = Counter()
        for place in places:
            tile = place.first // TILE_RANK
            assert tile < self._tiles_max, f"{place.module} has more than {self._tiles_max} tiles"
            unit = place.page * self._page_units + place.offset // TILE_ALIGN_BYTES
            numbers[place.layer, MODULES.index(place.module), 1 + tile] = unit
            ranks[place.layer, place.module] += place.rank
        for (layer, module), rank in ranks.items():
            numbers[layer, MODULES.index(module), 0] = pack_entry(rank, scales[layer, module])
        return entries

    def check(self, digest: str, places: Sequence[Placed], scales: Mapping[tuple[int, str], float]) -> None:
        """AssertionError when its row says anything else. For idle moments and tests: it waits for the device."""
        row, _ = self._rows[digest]
        assert torch.equal(self.table.entries[row].cpu(), self._entries(places, scales)), f"{digest}: a wrong table row"

    def remove(self, digest: str) -> None:
        """Its row may be given to another. Steps begun before still find it as it was."""
        row, _ = self._rows.pop(digest)
        self._free.append(row)

    def find(self, digest: str) -> tuple[int, int]:
        """(row of the table, tiles of its largest module) of an adapter that has one."""
        return self._rows[digest]


def stack_of(base: BaseShape, modules: tuple[str, ...]) -> Stack:
    """Modules that share an x, neighbours in MODULES, as the kernels want them."""
    first = MODULES.index(modules[0])
    assert MODULES[first : first + len(modules)] == modules
    shapes = [base.modules[module] for module in modules]
    assert len({shape.in_features for shape in shapes}) == 1
    return Stack(first, shapes[0].in_features, tuple(shape.out_features for shape in shapes))
