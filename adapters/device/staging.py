"""The copy buffer: device memory to which whole adapter slabs are copied beside the steps, and from which they are
scattered into the arena in the order of the steps.

A copy into the arena itself would have to wait for the steps in flight, which may still use the pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from adapters.device.host_slabs import SlabMemory


class Mark(Protocol):
    """A point in the order of a device's work, such as a CUDA event."""

    def query(self) -> bool:
        """Whether all work before the mark is completed."""
        ...


class CopyLane(Protocol):
    """Copies to a device beside its ordered work (the current CUDA stream)."""

    def begin_copy(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        """Begin a copy from host memory. Neither tensor may change before the mark is reached."""
        ...

    def mark(self) -> Mark:
        """A mark after all work queued so far."""
        ...

    def follow(self, mark: Mark) -> None:
        """Let all work queued from now on begin after the mark."""
        ...


class CudaCopyLane:
    """A CUDA stream separate from the current stream."""

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
    """Slabs in device memory, from the beginning of their copy until they are placed. One thread uses it."""

    def __init__(self, memory: torch.Tensor, lane: CopyLane) -> None:
        """`memory` uint8 [bytes] on the device."""
        self._slabs = SlabMemory(memory)
        self._lane = lane
        self._copying: dict[str, Mark] = {}  # digest → end of its copy
        self._sources: dict[str, tuple[Mark, float]] = {}  # digest → end and beginning of its read
        self._cooling: dict[str, Mark] = {}  # key → end of the last use of its bytes
        self._cooled = 0

    @property
    def bytes(self) -> int:
        return self._slabs.bytes

    def has(self, digest: str) -> bool:
        """Whether it is in the buffer, or its copy is in flight."""
        return digest in self._slabs

    def is_there(self, digest: str) -> bool:
        return digest in self._slabs and digest not in self._copying

    def reads(self, digest: str) -> bool:
        """Whether a copy, even a discarded one, still reads its host slab, which must not change then."""
        return digest in self._sources

    def bytes_copying(self) -> int:
        return sum(int(self._slabs.view(digest).shape[0]) for digest in self._copying)

    def begin_copy(self, digest: str, source: torch.Tensor, may_go: Callable[[str], bool]) -> bool:
        """Begin a copy from a slab in page-locked memory, evicting slabs that `may_go` allows. False: no space. The
        slab must not change while this `reads` it."""

        def free(other: str) -> bool:
            return other not in self._copying and other not in self._cooling and may_go(other)

        if self._slabs.allocate_slab(digest, int(source.shape[0]), free) is None:
            return False
        mark = self._copying[digest] = self._lane.begin_copy(self._slabs.view(digest), source)
        self._sources[digest] = mark, time.monotonic()
        return True

    def take_out(self, digest: str) -> torch.Tensor:
        """Its bytes, for device work queued before `note_taken`; that work begins after the copy."""
        if digest in self._copying:
            self._lane.follow(self._copying[digest])
        return self._slabs.view(digest)

    def note_taken(self, digest: str) -> None:
        """That work is queued. Its bytes are free once the work is completed."""
        self._copying.pop(digest, None)
        self._cool(digest, self._lane.mark())

    def discard_copy(self, digest: str) -> None:
        """Discard a slab, or a copy in flight."""
        if digest in self._copying:
            self._cool(digest, self._copying.pop(digest))
        elif digest in self._slabs:
            self._slabs.free_slab(digest)

    def poll_copies(self) -> list[tuple[str, float]]:
        """(digest, seconds) of the copies that have ended since the last call."""
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
        """Raises AssertionError with the fault."""
        self._slabs.check_integrity()
        assert set(self._copying) | set(self._cooling) <= set(self._slabs.names())

    def _cool(self, digest: str, mark: Mark) -> None:
        self._cooled += 1
        key = f"{digest}/{self._cooled}"
        self._slabs.rename(digest, key)
        self._cooling[key] = mark
