"""The device's table of tiles: one row for each resident adapter, in which kernels find its tiles, ranks and scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from adapters.files.slab_order import TileSpan
from adapters.files.spec import PARENTS, BaseShape
from kernels.lora_work import TILE_ALIGN_BYTES, TILE_RANK, Stack, TileTable, pack_entry

# The modules in the order of the table's rows: modules with the same input are neighbours.
MODULES = tuple(PARENTS)
# Minimum of a table's layers, because a model with more layers than the first ones may be added later.
LAYERS_MIN = 128


@dataclass(slots=True, frozen=True)
class RowForm:
    """The part of an adapter's row that does not depend on where its tiles are. `entries` [layers, modules, 1 + tiles]
    int64: each module's rank and scale, with zeros for tiles; `spots` [cuts]: flat index in `entries` of each tile;
    `tiles`: of its largest module."""

    entries: npt.NDArray[np.int64]
    spots: npt.NDArray[np.int64]
    tiles: int


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
        self._rows: dict[str, tuple[int, int]] = {}  # digest → row, tiles of its largest module

    @property
    def layers(self) -> int:
        """Layers of the deepest model that fits."""
        return int(self.table.entries.shape[1])

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def check_room(self) -> None:
        """Raises ValueError when every row is taken."""
        if not self._free:
            raise ValueError(f"{len(self._rows)} adapters are in the arena, and its table has rows for no more")

    def form(self, cuts: Sequence[TileSpan], scales: Mapping[tuple[int, str], float]) -> RowForm:
        """The entries of an adapter with these tiles; `scales` by (layer, module). May run on any thread."""
        entries = np.zeros(self.table.entries.shape[1:], np.int64)
        ranks: Counter[tuple[int, str]] = Counter()
        spots = []
        for cut in cuts:
            tile = cut.first // TILE_RANK
            assert tile < self._tiles_max, f"{cut.module} has more than {self._tiles_max} tiles"
            spots.append(np.ravel_multi_index((cut.layer, MODULES.index(cut.module), 1 + tile), entries.shape))
            ranks[cut.layer, cut.module] += cut.rank
        for (layer, module), rank in ranks.items():
            entries[layer, MODULES.index(module), 0] = pack_entry(rank, scales[layer, module])
        return RowForm(entries, np.array(spots, np.int64), -(-max(ranks.values(), default=0) // TILE_RANK))

    def add_row(self, digest: str, form: RowForm, places: Sequence[tuple[int, int]]) -> None:
        """Give it a row and write its `places`, the (page, offset) of each tile. Raises ValueError if every row is
        taken."""
        assert digest not in self._rows
        self.check_room()
        entries = self._entries(form, places)
        if self.table.entries.is_cuda:
            entries = entries.pin_memory()  # the allocator does not reuse the memory until the copy is done
        row = self._free.pop()
        self.table.entries[row].copy_(entries, non_blocking=True)
        self._rows[digest] = row, form.tiles

    def _entries(self, form: RowForm, places: Sequence[tuple[int, int]]) -> torch.Tensor:
        """The contents of its row."""
        where = np.array(places, np.int64).reshape(-1, 2)
        entries = form.entries.copy()
        entries.reshape(-1)[form.spots] = where[:, 0] * self._page_units + where[:, 1] // TILE_ALIGN_BYTES
        return torch.from_numpy(entries)

    def check_row(self, digest: str, form: RowForm, places: Sequence[tuple[int, int]]) -> None:
        """Raises AssertionError if its row differs. For idle moments and tests: it waits for the device."""
        row, _ = self._rows[digest]
        assert torch.equal(self.table.entries[row].cpu(), self._entries(form, places)), f"{digest}: a wrong table row"

    def remove_row(self, digest: str) -> None:
        """Free its row. Steps that were begun before still read the old contents."""
        row, _ = self._rows.pop(digest)
        self._free.append(row)

    def find(self, digest: str) -> tuple[int, int]:
        """(row of the table, tiles of its largest module) of an adapter that has one."""
        return self._rows[digest]


def stack_of(base: BaseShape, modules: tuple[str, ...]) -> Stack:
    """Modules that share an x and are neighbours in MODULES, as a kernel argument."""
    first = MODULES.index(modules[0])
    assert MODULES[first : first + len(modules)] == modules
    shapes = [base.modules[module] for module in modules]
    assert len({shape.in_features for shape in shapes}) == 1
    return Stack(first, shapes[0].in_features, tuple(shape.out_features for shape in shapes))
