"""Which adapters are in host memory, and which lie in the device arena, cut into tiles packed first-fit.

The scheduler decides which pages; this decides where in them. It must never know about requests or tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from adapters.spec import AdapterRefused, BaseShape
from adapters.table import AdapterRows
from adapters.weights import HostAdapter, load
from kernels.lora_work import TILE_ALIGN_BYTES, TILE_RANK
from kernels.reference import LoraTile


class TilePlace(NamedTuple):
    """Where a tile lies: rank rows `first ≤ i < first + rank` of one (layer, module). In the page from `offset` on: A
    [rank, in], then Bᵀ [rank, out], both contiguous."""

    layer: int
    module: str
    first: int
    rank: int
    page: int
    offset: int
    bytes: int


class ResidentAdapter:
    """The tiles of one adapter in the arena, as the ops want them."""

    def __init__(
        self, base: BaseShape, places: list[TilePlace], tiles: Mapping[tuple[int, str], list[LoraTile]]
    ) -> None:
        self.places = places
        self._base = base
        self._tiles = tiles
        # Filled as stacks are asked for: at most (layers x stacks of modules) entries.
        self._stacked: dict[tuple[int, tuple[str, ...]], tuple[LoraTile, ...]] = {}

    def tiles(self, layer: int, modules: tuple[str, ...]) -> tuple[LoraTile, ...]:
        """The tiles of modules that share one x and whose outputs lie side by side, in this order, in one y."""
        key = (layer, modules)
        if key not in self._stacked:
            self._stacked[key] = tuple(self._stack(layer, modules))
        return self._stacked[key]

    def _stack(self, layer: int, modules: tuple[str, ...]) -> list[LoraTile]:
        found, column = [], 0
        for module in modules:
            found += [tile._replace(column=column) for tile in self._tiles.get((layer, module), ())]
            column += self._base.modules[module].out_features
        return found


@dataclass(slots=True)
class _Page:
    """Free extents of one arena page, as (offset, bytes) in order; neighbours never touch."""

    free: list[tuple[int, int]]
    tiles: int = 0

    def find(self, size: int) -> int | None:
        """Offset of the first extent that has room."""
        return next((offset for offset, room in self.free if room >= size), None)

    def take(self, offset: int, size: int) -> None:
        index = next(i for i, (start, _) in enumerate(self.free) if start == offset)
        room = self.free[index][1] - size
        assert room >= 0
        self.free[index : index + 1] = [(offset + size, room)] if room else []
        self.tiles += 1

    def give(self, offset: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self.free, (offset, size)]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self.free = merged
        self.tiles -= 1


class _Cut(NamedTuple):
    """A tile not yet placed. `bytes` is rounded up to the alignment."""

    bytes: int
    layer: int
    module: str
    first: int
    rank: int


@dataclass(slots=True)
class _Known:
    """An adapter in host memory, and the models it was loaded for."""

    host: HostAdapter
    base: BaseShape
    cuts: list[_Cut]
    models: set[str] = field(default_factory=set)


class TilePool:
    """Adapters by digest. Structurally an `engine.step.AdapterTable`; one thread uses it."""

    def __init__(
        self,
        arena: torch.Tensor,
        dtype: torch.dtype,
        bases: Mapping[str, BaseShape],
        rows: AdapterRows | None = None,
    ) -> None:
        """`arena` [pages, page_bytes] uint8 on the device, contiguous; this writes only the pages it is handed. `rows`:
        where kernels look the tiles up, kept in step with what is resident; tiles and rows are then written in the
        order of the current stream."""
        assert arena.dtype == torch.uint8
        assert arena.dim() == 2
        assert arena.shape[1] % dtype.itemsize == 0
        self._arena = arena
        self._page_bytes = int(arena.shape[1])
        self._dtype = dtype
        self._bases = bases
        self.rows = rows
        self._known: dict[str, _Known] = {}
        self._resident: dict[str, ResidentAdapter] = {}  # least recently used first
        self._pages: dict[int, _Page] = {}
        self._plans: dict[str, int] = {}  # pages needed, while the free extents stay as they are

    def load(self, digest: str, model: str, path: Path) -> None:
        """Read an adapter's directory into host memory. Raises AdapterRefused, OSError; idempotent."""
        if self.known(digest, model):
            return
        if model not in self._bases:
            raise AdapterRefused(f"model {model!r} is not served here")
        self.add(digest, model, load(path, self._bases[model], self._dtype, pinned=self._arena.is_cuda))

    def add(self, digest: str, model: str, host: HostAdapter) -> None:
        """Take an adapter that is in host memory already."""
        assert host.dtype == self._dtype
        cuts = _cut(host, self._dtype.itemsize)
        if cuts and cuts[0].bytes > self._page_bytes:
            largest = cuts[0]
            raise AdapterRefused(
                f"layers.{largest.layer}.{largest.module}: a tile of {largest.rank} rank rows takes {largest.bytes} "
                f"bytes, an arena page has {self._page_bytes}"
            )
        rank = max((weights.a.shape[0] for weights in host.modules.values()), default=0)
        if self.rows is not None and rank > self.rows.rank_max:
            raise AdapterRefused(f"rank {rank}: this engine serves ranks up to {self.rows.rank_max} (adapter_rank_max)")
        base = self._bases[model]
        known = self._known.setdefault(digest, _Known(host, base, cuts))
        if known.base.modules != base.modules:  # its tiles know where modules lie beside each other
            raise AdapterRefused(f"{digest} serves {min(known.models)}, whose modules have other sizes than {model}'s")
        known.models.add(model)

    def unload(self, digest: str) -> None:
        """Forget it. It must not be resident."""
        assert digest not in self._resident
        self._known.pop(digest, None)
        self._plans.pop(digest, None)

    def known(self, digest: str, model: str) -> bool:
        return digest in self._known and model in self._known[digest].models

    def has_room(self) -> bool:
        """Whether one more can be resident, however many pages there are: a table of rows may be full."""
        return self.rows is None or self.rows.free > 0

    def pages_needed(self, digest: str) -> int:
        """Further arena pages needed to make it resident: 0 when it is, or fits what tile pages have free."""
        if digest in self._resident:
            return 0
        if digest not in self._plans:
            self._plans[digest] = _plan(self._known[digest].cuts, self._pages, self._page_bytes)[1]
        return self._plans[digest]

    def place(self, digest: str, pages: list[int]) -> None:
        """Copy it into the arena, using `pages` (as many as pages_needed said) beside free tiles. Idempotent.
        Raises ValueError, nothing being changed, when the table of rows is full."""
        assert len(pages) == self.pages_needed(digest)
        assert not set(pages) & set(self._pages)
        if digest in self._resident:
            return
        if self.rows is not None:
            self.rows.check_room()
        known = self._known[digest]
        planned, _ = _plan(known.cuts, self._pages, self._page_bytes)
        fresh = {-1 - index: page for index, page in enumerate(pages)}
        for page in pages:
            self._pages[page] = _Page([(0, self._page_bytes)])
        places = []
        tiles: dict[tuple[int, str], list[LoraTile]] = {}
        for cut, (planned_page, offset) in zip(known.cuts, planned, strict=True):
            page = fresh.get(planned_page, planned_page)
            self._pages[page].take(offset, cut.bytes)
            place = TilePlace(cut.layer, cut.module, cut.first, cut.rank, page, offset, cut.bytes)
            places.append(place)
            tiles.setdefault((cut.layer, cut.module), []).append(self._copy(known.host, place))
        self._resident[digest] = ResidentAdapter(known.base, places, tiles)
        if self.rows is not None:
            self.rows.add(digest, places, _scales(known.host))
        self._plans.clear()

    def resident(self) -> list[str]:
        """Resident digests, least recently used first."""
        return list(self._resident)

    def use(self, digest: str) -> ResidentAdapter:
        """A resident adapter for the step being built; it becomes the most recently used."""
        adapter = self._resident.pop(digest)
        self._resident[digest] = adapter
        return adapter

    def remove(self, digest: str) -> list[int]:
        """Drop it from the arena; return the pages that are empty now. It stays known."""
        adapter = self._resident.pop(digest, None)
        if adapter is None:
            return []
        if self.rows is not None:
            self.rows.remove(digest)
        for place in adapter.places:
            self._pages[place.page].give(place.offset, place.bytes)
        empty = [page for page in dict.fromkeys(place.page for place in adapter.places) if not self._pages[page].tiles]
        for page in empty:
            del self._pages[page]
        self._plans.clear()
        return empty

    def _copy(self, host: HostAdapter, place: TilePlace) -> LoraTile:
        """Write one tile into its place, and return the views that ops read."""
        weights = host.modules[place.layer, place.module]
        a, b = self._views(host, place)
        a.copy_(weights.a[place.first : place.first + place.rank], non_blocking=True)
        b.copy_(weights.b[place.first : place.first + place.rank], non_blocking=True)
        return LoraTile(a.t(), b, weights.scale, 0)

    def _views(self, host: HostAdapter, place: TilePlace) -> tuple[torch.Tensor, torch.Tensor]:
        """A [rank, in] and Bᵀ [rank, out] of a tile, in the arena."""
        weights = host.modules[place.layer, place.module]
        a_count, b_count = place.rank * weights.a.shape[1], place.rank * weights.b.shape[1]
        stop = place.offset + (a_count + b_count) * self._dtype.itemsize
        numbers = self._arena[place.page, place.offset : stop].view(self._dtype)
        return numbers[:a_count].view(place.rank, -1), numbers[a_count:].view(place.rank, -1)

    def check_integrity(self) -> None:
        """Every byte of every page is free or in exactly one tile, and every tile holds its adapter's numbers.
        For idle moments and tests; AssertionError says what is wrong."""
        extents: dict[int, list[tuple[int, int]]] = {page: list(state.free) for page, state in self._pages.items()}
        for digest, adapter in self._resident.items():
            host = self._known[digest].host
            for place in adapter.places:
                extents[place.page].append((place.offset, place.bytes))
                weights = host.modules[place.layer, place.module]
                rows = slice(place.first, place.first + place.rank)
                a, b = (part.cpu() for part in self._views(host, place))
                assert torch.equal(a, weights.a[rows]), f"{digest}: tile {place} differs from host memory"
                assert torch.equal(b, weights.b[rows]), f"{digest}: tile {place} differs from host memory"
            if self.rows is not None:
                self.rows.check(digest, adapter.places, _scales(host))
        for page, found in extents.items():
            position = 0
            for offset, size in sorted(found):
                assert offset == position, f"page {page}: a gap or an overlap at byte {position}"
                position = offset + size
            assert position == self._page_bytes, f"page {page}: {position} of {self._page_bytes} bytes accounted for"


def _scales(host: HostAdapter) -> dict[tuple[int, str], float]:
    return {key: weights.scale for key, weights in host.modules.items()}


def _cut(host: HostAdapter, itemsize: int) -> list[_Cut]:
    """An adapter's tiles, largest first: first-fit wastes less that way."""
    cuts = []
    for (layer, module), weights in host.modules.items():
        rank, row = weights.a.shape[0], (weights.a.shape[1] + weights.b.shape[1]) * itemsize
        for first in range(0, rank, TILE_RANK):
            rows = min(TILE_RANK, rank - first)
            size = -(-rows * row // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES
            cuts.append(_Cut(size, layer, module, first, rows))
    return sorted(cuts, key=lambda cut: (-cut.bytes, cut.layer, cut.module, cut.first))


def _plan(cuts: list[_Cut], pages: Mapping[int, _Page], page_bytes: int) -> tuple[list[tuple[int, int]], int]:
    """First-fit: for each cut its (page, offset), and how many fresh pages that takes. Page -1 - i is the fresh page i.
    Changes nothing."""
    trial = {number: _Page(list(page.free)) for number, page in pages.items() if page.free}
    order = list(trial)
    planned: list[tuple[int, int]] = []
    fresh, start, size = 0, 0, 0
    for cut in cuts:
        if cut.bytes != size:  # an equal cut need not look again where the one before it found no room
            size, start = cut.bytes, 0
        while True:
            if start == len(order):
                fresh += 1
                trial[-fresh] = _Page([(0, page_bytes)])
                order.append(-fresh)
            offset = trial[order[start]].find(size)
            if offset is not None:
                break
            start += 1
        trial[order[start]].take(offset, size)
        planned.append((order[start], offset))
    return planned, fresh
