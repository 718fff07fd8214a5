"""Models' slabs in page-locked host memory, in pieces, so that models of any size share it. Eviction is least recently
used.

One thread keeps the index; another fills the pieces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True, eq=False)
class HostSlab:
    """`filled[i]`: piece i has its bytes; set by the thread that fills the pieces."""

    pieces: list[Tensor]
    filled: list[bool]

    @property
    def is_filled(self) -> bool:
        return all(self.filled)


class HostSlabs:
    def __init__(self, pieces: list[Tensor]) -> None:
        """uint8 [piece bytes] each, all of one size."""
        self.evictions = 0
        self._free = list(pieces)
        self._count = len(pieces)
        self._slabs: OrderedDict[str, HostSlab] = OrderedDict()  # least recently used first

    def get(self, model: str) -> HostSlab | None:
        return self._slabs.get(model)

    def names(self) -> list[str]:
        return list(self._slabs)

    def touch(self, model: str) -> None:
        """Make it the most recently used, if it is present."""
        if model in self._slabs:
            self._slabs.move_to_end(model)

    def allocate_slab(self, model: str, count: int, may_go: Callable[[str], bool]) -> HostSlab | None:
        """A slab of `count` pieces, evicting slabs that `may_go` allows. None, with nothing changed, if that frees too
        few."""
        assert model not in self._slabs
        if count > self._count:
            return None
        gone, room = list[str](), len(self._free)
        for other, slab in self._slabs.items():
            if room >= count:
                break
            if may_go(other):
                gone.append(other)
                room += len(slab.pieces)
        if room < count:
            return None
        for other in gone:
            self.free_slab(other)
            self.evictions += 1
        pieces = [self._free.pop() for _ in range(count)]
        slab = self._slabs[model] = HostSlab(pieces, [False] * count)
        return slab

    def free_slab(self, model: str) -> None:
        """Free a slab that nothing reads or fills."""
        slab = self._slabs.pop(model, None)
        if slab is not None:
            self._free += slab.pieces

    def check_integrity(self) -> None:
        """Raises AssertionError if a piece is in two slabs, or in none."""
        held = [piece for slab in self._slabs.values() for piece in slab.pieces]
        addresses = {piece.data_ptr() for piece in [*held, *self._free]}
        assert len(held) + len(self._free) == len(addresses) == self._count
