"""Adapters on their way to a device: whole slabs, copied beside its work into memory of their own, and taken from there
into the arena in the order of the steps.

A copy into the arena itself would have to wait for the steps in flight, which may still use the pages. It must never
know pages or tiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from adapters.device.host_slabs import SlabMemory


class Mark(Protocol):
    """A point in a device's work."""

    def query(self) -> bool:
        """All before it is done."""
        ...


class CopyLane(Protocol):
    """Copies to a device, beside the work that it does in order."""

    def begin_copy(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        """Begin a copy from host memory. Both stay as they are until the mark is reached."""
        ...

    def mark(self) -> Mark:
        """After all the work that it was given until now."""
        ...

    def follow(self, mark: Mark) -> None:
        """The work that it is given from now on begins after the mark."""
        ...


class CudaCopyLane:
    """A stream of its own beside the current one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin_copy(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            return self._record()

    def mark(self) -> Mark:
        return self._record()

    def follow(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream().wait_event(mark)

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event


class CopyBuffer:
    """One thread uses it."""

    def __init__(self, memory: torch.Tensor, lane: CopyLane) -> None:
        """`memory` uint8 [bytes] on the device."""
        self._slabs = SlabMemory(memory)
        self._lane = lane
        self._copying: dict[str, Mark] = {}  # digest → when its copy has ended
        self._sources: dict[str, tuple[Mark, float]] = {}  # digest → until when its host memory is read, and since when
        self._cooling: dict[str, Mark] = {}  # key → after which its bytes are not read or written
        self._cooled = 0

    @property
    def bytes(self) -> int:
        return self._slabs.bytes

    def has(self, digest: str) -> bool:
        """It is here, or comes."""
        return digest in self._slabs

    def is_there(self, digest: str) -> bool:
        return digest in self._slabs and digest not in self._copying

    def reads(self, digest: str) -> bool:
        """A copy of it is under way, wanted or not: its host memory must stay as it is."""
        return digest in self._sources

    def bytes_copying(self) -> int:
        return sum(int(self._slabs.view(digest).shape[0]) for digest in self._copying)

    def begin_copy(self, digest: str, source: torch.Tensor, may_go: Callable[[str], bool]) -> bool:
        """Begin to copy it here from a slab in pinned memory, in place of others that `may_go`. False: there is no
        room. The slab must stay as it is while this `reads` it."""

        def free(other: str) -> bool:
            return other not in self._copying and other not in self._cooling and may_go(other)

        if self._slabs.allocate_slab(digest, int(source.shape[0]), free) is None:
            return False
        mark = self._copying[digest] = self._lane.begin_copy(self._slabs.view(digest), source)
        self._sources[digest] = mark, time.monotonic()
        return True

    def take_out(self, digest: str) -> torch.Tensor:
        """Its bytes, for the work that the device is given until `taken`: that begins after the copy."""
        if digest in self._copying:
            self._lane.follow(self._copying[digest])
        return self._slabs.view(digest)

    def taken(self, digest: str) -> None:
        """That work was given. Its room is free when it is done."""
        self._copying.pop(digest, None)
        self._cool(digest, self._lane.mark())

    def discard_copy(self, digest: str) -> None:
        """It is not wanted here any more."""
        if digest in self._copying:
            self._cool(digest, self._copying.pop(digest))
        elif digest in self._slabs:
            self._slabs.free_slab(digest)

    def poll_copies(self) -> list[tuple[str, float]]:
        """Copies that have ended since, and the seconds until that was seen."""
        for key in [key for key, mark in self._cooling.items() if mark.query()]:
            del self._cooling[key]
            self._slabs.free_slab(key)
        now = time.monotonic()
        ended = [(digest, now - began) for digest, (mark, began) in self._sources.items() if mark.query()]
        for digest, _ in ended:
            del self._sources[digest]
            self._copying.pop(digest, None)
        return ended

    def check_integrity(self) -> None:
        """AssertionError says what is wrong."""
        self._slabs.check_integrity()
        assert set(self._copying) | set(self._cooling) <= set(self._slabs.names())

    def _cool(self, digest: str, mark: Mark) -> None:
        self._cooled += 1
        key = f"{digest}/{self._cooled}"
        self._slabs.rename(digest, key)
        self._cooling[key] = mark
