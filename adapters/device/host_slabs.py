"""Adapter slabs in one stretch of memory, each contiguous, evicted least recently used first. One thread uses it.

The caller says which adapters may be evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch

from adapters.device.extents import FreeExtents


class SlabMemory:
    """`memory` uint8 [bytes]; keys are digests, least recently used first."""

    def __init__(self, memory: torch.Tensor) -> None:
        assert memory.dtype == torch.uint8
        assert memory.dim() == 1
        self.bytes = int(memory.shape[0])
        self._memory = memory
        self._extents = FreeExtents(self.bytes)
        self._places: OrderedDict[str, tuple[int, int]] = OrderedDict()  # key → offset, bytes

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def names(self) -> list[str]:
        return list(self._places)

    def used(self) -> int:
        """Used bytes."""
        return sum(size for _, size in self._places.values())

    def view(self, key: str) -> torch.Tensor:
        offset, size = self._places[key]
        return self._memory[offset : offset + size]

    def touch(self, key: str) -> None:
        """Make it the most recently used."""
        self._places.move_to_end(key)

    def allocate_slab(self, key: str, size: int, may_go: Callable[[str], bool]) -> list[str] | None:
        """Allocate `size` contiguous bytes. Returns the evicted keys, least recently used first; or None, with nothing
        changed, if evicting all that `may_go` allows does not suffice."""
        assert key not in self._places
        extents, gone = self._extents, list[str]()
        offset = extents.find(size)
        if offset is None:
            extents = self._extents.copy()
            for other, place in self._places.items():
                if may_go(other):
                    extents.give_extent(*place)
                    gone.append(other)
                    offset = extents.find(size)
                    if offset is not None:
                        break
            else:
                return None
        assert offset is not None
        for other in gone:
            del self._places[other]
        extents.take_extent(offset, size)
        self._extents = extents
        self._places[key] = offset, size
        return gone

    def rename(self, key: str, name: str) -> None:
        """Keep its bytes under another key."""
        assert name not in self._places
        self._places[name] = self._places.pop(key)

    def free_slab(self, key: str) -> None:
        self._extents.give_extent(*self._places.pop(key))

    def check_integrity(self) -> None:
        """Raises AssertionError if a byte is in two slabs, or in none."""
        position = 0
        for offset, size in sorted([*self._extents.free, *self._places.values()]):
            assert offset == position, f"a gap or an overlap at byte {position}"
            position = offset + size
        assert position == self.bytes, f"{position} of {self.bytes} bytes accounted for"
