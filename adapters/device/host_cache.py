"""Adapters in host memory: read from their files on threads, evicted least recently used first.

One thread owns the index; others read files. It knows no devices and no pages.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from adapters.device.host_slabs import SlabMemory
from adapters.device.host_weights import READS_MAX, Source, read_numbers
from adapters.files.header import AdapterRefused
from adapters.files.slab_order import ReadStopped

_log = logging.getLogger(__name__)
# (file, slab uint8 [bytes], whether the read was cancelled)
Reader = Callable[[Source, torch.Tensor, Callable[[], bool]], None]


@dataclass(slots=True, eq=False)
class SlabRead:
    """A read of a file into a slab, and its outcome."""

    digest: str
    source: Source
    slab: torch.Tensor
    began: float
    seconds: float = 0.0
    error: str = ""
    stopped: bool = False


class HostMemory:
    def __init__(self, memory: torch.Tensor, read: Reader = read_numbers) -> None:
        """`memory` uint8 [bytes] on the host, pinned where a GPU copies from it; `read` is for threads."""
        self.evictions = 0
        self._slabs = SlabMemory(memory)
        self._read = read
        self._reading: dict[str, SlabRead] = {}
        self._queue: queue.SimpleQueue[SlabRead | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[SlabRead] = queue.SimpleQueue()
        self._threads = 0
        weakref.finalize(self, _end, self._queue)

    @property
    def bytes(self) -> int:
        return self._slabs.bytes

    def get(self, digest: str) -> torch.Tensor | None:
        """The adapter's slab; None if it is absent or not read completely."""
        if digest in self._reading or digest not in self._slabs:
            return None
        return self._slabs.view(digest)

    def touch(self, digest: str) -> None:
        """Make it the most recently used, if it is present."""
        if digest in self._slabs:
            self._slabs.touch(digest)

    def held(self) -> list[str]:
        """Digests read completely, least recently used first."""
        return [digest for digest in self._slabs.names() if digest not in self._reading]

    def used(self) -> int:
        """Used bytes, reads in flight included."""
        return self._slabs.used()

    def fetch(self, digest: str, source: Source, may_go: Callable[[str], bool]) -> bool:
        """Begin to read the adapter, evicting adapters that `may_go` allows. False: no space, or READS_MAX reads are in
        flight."""
        if digest in self._reading:
            return not self._reading[digest].stopped
        if len(self._reading) >= READS_MAX:
            return False
        gone = self._slabs.allocate_slab(
            digest, source.layout.bytes, lambda other: other not in self._reading and may_go(other)
        )
        if gone is None:
            return False
        self.evictions += len(gone)
        read = SlabRead(digest, source, self._slabs.view(digest), time.monotonic())
        self._reading[digest] = read
        self._queue.put(read)
        # One thread per concurrent read, so that a read which hangs with its disk delays no other; started when first
        # needed, since starting one takes the loop half a millisecond.
        if self._threads < len(self._reading):
            self._threads += 1
            threading.Thread(
                target=_serve, args=(self._read, self._queue, self._done), name="adapter-read", daemon=True
            ).start()
        return True

    def stop_read(self, digest: str) -> None:
        """Cancel a read. Its memory is free once the reading thread has noticed."""
        if digest in self._reading:
            self._reading[digest].stopped = True

    def forget_adapter(self, digest: str) -> None:
        if digest in self._reading:
            self.stop_read(digest)
        elif digest in self._slabs:
            self._slabs.free_slab(digest)

    def poll_reads(self) -> list[SlabRead]:
        """Reads that have ended since the last call, without the cancelled ones."""
        ended = []
        while not self._done.empty():
            read = self._done.get()
            del self._reading[read.digest]
            if read.stopped or read.error:
                self._slabs.free_slab(read.digest)
            if not read.stopped:
                ended.append(read)
        return ended

    def check_integrity(self) -> None:
        """Raises AssertionError with the fault."""
        self._slabs.check_integrity()
        assert set(self._reading) <= set(self._slabs.names())


def _end(reads: queue.SimpleQueue[SlabRead | None]) -> None:
    """End the reading threads."""
    for _ in range(READS_MAX):
        reads.put(None)


def _serve(read_into: Reader, reads: queue.SimpleQueue[SlabRead | None], done: queue.SimpleQueue[SlabRead]) -> None:
    """One reading thread."""
    while (read := reads.get()) is not None:
        _read(read_into, read)
        done.put(read)
        del read  # releases its slab


def _read(read_into: Reader, read: SlabRead) -> None:
    try:
        read_into(read.source, read.slab, lambda: read.stopped)
    except ReadStopped:
        read.stopped = True
    except (AdapterRefused, OSError) as error:
        read.error = str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 - the thread's edge: one adapter fails alone, and is logged
        _log.exception("adapter.read_failed", extra={"fields": {"digest": read.digest}})
        read.error = f"{type(error).__name__}: {error}"
    read.seconds = time.monotonic() - read.began
