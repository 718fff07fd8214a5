"""Free bytes of one stretch of memory: first fit, neighbours merged. It does not touch the memory itself."""

from __future__ import annotations


class FreeExtents:
    """Free extents of `size` bytes, as (offset, bytes) in order; neighbours never touch."""

    __slots__ = ("free",)

    def __init__(self, size: int) -> None:
        self.free: list[tuple[int, int]] = [(0, size)]

    def copy(self) -> FreeExtents:
        copied = FreeExtents(0)
        copied.free = list(self.free)
        return copied

    def find(self, size: int) -> int | None:
        """Offset of the first extent of at least `size` bytes."""
        return next((offset for offset, room in self.free if room >= size), None)

    def take_extent(self, offset: int, size: int) -> None:
        """Take the first `size` bytes of the extent that begins at `offset`."""
        index = next(i for i, (start, _) in enumerate(self.free) if start == offset)
        room = self.free[index][1] - size
        assert room >= 0
        self.free[index : index + 1] = [(offset + size, room)] if room else []

    def give_extent(self, offset: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self.free, (offset, size)]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self.free = merged
