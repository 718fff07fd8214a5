"""Placement of tiles in arena pages, first-fit over the pages' free bytes. Page numbers and offsets only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from adapters.device.extents import FreeExtents
from adapters.files.slab_order import TileSpan


@dataclass(slots=True)
class _Page:
    """Free bytes and number of tiles of one arena page."""

    free: FreeExtents
    tiles: int = 0
    largest: int = 0  # free extent


class TilePlacement(NamedTuple):
    """A planned placement. Page -1 - i is the i-th of `fresh` new pages."""

    places: list[tuple[int, int]]  # (page, offset) of each cut
    fresh: int
    free: dict[int, FreeExtents]  # page → its free extents afterwards
    tiles: Mapping[int, int]  # page → number of tiles added


class TilePages:
    """Pages with tiles in them, on shelves by the bit length of their largest free extent, so that a page with enough
    free bytes is found without visiting full pages, which are nearly all."""

    def __init__(self, page_bytes: int) -> None:
        self.pages: dict[int, _Page] = {}
        self._page_bytes = page_bytes
        self._shelves: list[dict[int, None]] = [{} for _ in range(page_bytes.bit_length() + 1)]

    def take_tiles(self, plan: TilePlacement, fresh: Sequence[int]) -> list[tuple[int, int]]:
        """Execute a plan with `fresh` as its new pages; returns (page, offset) of each cut. No tile was taken or freed
        since the plan was made."""
        assert len(fresh) == plan.fresh
        for number, tiles in plan.tiles.items():
            extents = plan.free[number]
            if number < 0:
                page = self.pages[fresh[-1 - number]] = _Page(extents)
            else:
                page = self.pages[number]
                page.free = extents
            page.tiles += tiles
            self._shelve(number if number >= 0 else fresh[-1 - number], page)
        return [(number if number >= 0 else fresh[-1 - number], offset) for number, offset in plan.places]

    def free_tile(self, number: int, offset: int, size: int) -> bool:
        """Free a tile. Returns whether its page is empty now, and removed from here."""
        page = self.pages[number]
        page.free.give_extent(offset, size)
        page.tiles -= 1
        self._shelve(number, page)
        if page.tiles:
            return False
        del self._shelves[page.largest.bit_length()][number], self.pages[number]
        return True

    def plan(self, cuts: Sequence[TileSpan]) -> TilePlacement:
        """Plan cuts, which are ordered largest first, by first fit. Changes nothing."""
        order: list[int] = []
        trial: dict[int, FreeExtents] = {}
        planned: list[tuple[int, int]] = []
        fresh, start, size = 0, 0, 0
        for cut in cuts:
            if cut.bytes != size:  # an equal cut continues where the previous one fitted
                size, start = cut.bytes, 0
                order = [*trial, *self._with_room(size, trial)]
            while True:
                if start == len(order):
                    fresh += 1
                    trial[-fresh] = FreeExtents(self._page_bytes)
                    order.append(-fresh)
                number = order[start]
                extents = trial.get(number) or self.pages[number].free
                offset = extents.find(size)
                if offset is not None:
                    break
                start += 1
            if number not in trial:
                extents = trial[number] = extents.copy()
            extents.take_extent(offset, size)
            planned.append((number, offset))
        return TilePlacement(planned, fresh, trial, Counter(number for number, _ in planned))

    def _with_room(self, size: int, other_than: Container[int]) -> list[int]:
        shelves, pages = self._shelves[size.bit_length() :], self.pages
        return [n for shelf in shelves for n in shelf if pages[n].largest >= size and n not in other_than]

    def _shelve(self, number: int, page: _Page) -> None:
        before, page.largest = page.largest, max((room for _, room in page.free.free), default=0)
        shelf = self._shelves[page.largest.bit_length()]
        if number not in shelf:
            self._shelves[before.bit_length()].pop(number, None)
            shelf[number] = None
