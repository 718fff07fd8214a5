"""Loads weights slabs on one thread: from their files into page-locked memory, and from there to a device, piece by
piece beside the steps.

Few copies are in flight at once, so that a step's own input waits little. The scheduler decides which weights are
loaded.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from adapters.device.staging import Mark
from engine.gpu.weights_host import HostSlab
from engine.models.config import ModelRefused
from engine.models.slab_source import SlabSource

# Concurrent copies to the device. With two, one follows the other without a gap, and a copy of another stream (a step's
# own input) waits for the whole model: 290 ms (docs/LOG.md).
COPIES_MAX = 1
# Pieces read from files at once, each on a thread.
READS_MAX = 6
# Page-locked pieces for slabs that have no space in host memory and are only copied through it.
PASSING = COPIES_MAX + READS_MAX

_log = logging.getLogger(__name__)


class Copies(Protocol):
    """Copies to a device beside its ordered work (the current CUDA stream)."""

    def enter(self) -> None:
        """Called once on each copying thread."""
        ...

    def begin_copy(self, target: Tensor, source: Tensor) -> Mark:
        """Begin a copy from page-locked memory. Neither tensor may change before the mark is reached."""
        ...

    def mark(self) -> Mark:
        """A mark after all steps queued so far. For the loop's thread."""
        ...

    def wait(self, mark: Mark) -> None:
        """Block until the mark is reached."""
        ...


@dataclass(slots=True, eq=False)
class SlabLoad:
    """The load of a slab, and its outcome. Without `target`, to host memory only."""

    model: str
    source: SlabSource
    host: HostSlab | None  # its slab in host memory; None: pieces only pass through
    target: Tensor | None
    prepare: Callable[[], None] = lambda: None  # called before the target is written
    after: Mark | None = None  # waited for before `prepare`
    asked: float = 0.0
    from_host: bool = False  # all of it was in host memory when it was requested
    stopped: bool = False
    pieces: int = 0  # completed pieces
    seconds: float = 0.0  # seconds in which the thread worked on it
    error: str = ""


class SlabLoader:
    """Loads to the device run in the order of their requests; loads to host memory run while no load to the device
    waits.
    `ended` receives each load that is done, stopped or failed, when no read or copy of it is in flight any more."""

    def __init__(self, copies: Copies, passing: list[Tensor], piece_bytes: int) -> None:
        """`passing` [PASSING] uint8 [piece_bytes], pinned."""
        assert len(passing) >= PASSING
        self.ended: queue.SimpleQueue[SlabLoad] = queue.SimpleQueue()
        self._work = _LoaderWork(copies, passing, piece_bytes, self.ended)
        self._started = False
        weakref.finalize(self, self._work.asked.put, None)  # ends the thread

    def put(self, load: SlabLoad) -> None:
        load.asked = time.monotonic()
        (self._work.urgent if load.target is not None else self._work.quiet).append(load)
        self._work.asked.put(load)
        if not self._started:
            self._started = True
            threading.Thread(target=self._work.run, name="weights", daemon=True).start()


class _LoaderWork:
    """The thread's part of a loader."""

    def __init__(
        self, copies: Copies, passing: list[Tensor], piece_bytes: int, ended: queue.SimpleQueue[SlabLoad]
    ) -> None:
        self.asked: queue.SimpleQueue[SlabLoad | None] = queue.SimpleQueue()
        self.urgent: deque[SlabLoad] = deque()
        self.quiet: deque[SlabLoad] = deque()
        self._copies = copies
        self._passing = passing
        self._piece_bytes = piece_bytes
        self._ended = ended
        self._readers = ThreadPoolExecutor(READS_MAX, "weights-read", copies.enter)

    def run(self) -> None:
        self._copies.enter()
        while self.asked.get() is not None:  # one item per load; the next load is chosen here
            if not self._do_urgent() and self.quiet:
                self._do(self.quiet.popleft())
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _do_urgent(self) -> bool:
        did = False
        while self.urgent:
            self._do(self.urgent.popleft())
            did = True
        return did

    def _do(self, load: SlabLoad) -> None:
        began = time.monotonic()
        try:
            if load.target is None:
                self._gather(load)
            else:
                self._copy_slab(load, load.target)
        except (ModelRefused, OSError) as error:
            load.error = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - the thread's edge: one model fails alone, and is logged
            _log.exception("weights.load_failed", extra={"fields": {"model": load.model}})
            load.error = f"{type(error).__name__}: {error}"
        load.seconds += time.monotonic() - began
        self._ended.put(load)

    def _copy_slab(self, load: SlabLoad, target: Tensor) -> None:
        """Load to the device. When this returns or raises, no read or copy of it is in flight."""
        if load.after is not None:
            self._copies.wait(load.after)
        if load.stopped:
            return
        load.prepare()
        size, total = self._piece_bytes, int(target.shape[0])
        count = -(-total // size)
        reads: deque[tuple[Tensor, Future[None] | None]] = deque()
        marks: deque[Mark] = deque()
        try:
            for index in range(count):
                if load.stopped:
                    return
                # A passing piece is reused only once its copy is completed; the last COPIES_MAX may not be.
                while (ahead := index + len(reads)) < min(count, index + READS_MAX):
                    reads.append(self._read(load, ahead, min(size, total - ahead * size)))
                piece, read = reads.popleft()
                if read is not None:
                    read.result()
                    self._note_filled(load, index)
                while len(marks) >= COPIES_MAX:
                    self._copies.wait(marks.popleft())
                marks.append(self._copies.begin_copy(target[index * size : index * size + len(piece)], piece))
                load.pieces = index + 1
        finally:
            _settle([read for _, read in reads])
            while marks:
                self._copies.wait(marks.popleft())

    def _gather(self, load: SlabLoad) -> None:
        """Load to host memory. Loads to the device run between its pieces."""
        assert load.host is not None
        size, total = self._piece_bytes, load.source.layout.bytes
        count = -(-total // size)
        reads: deque[tuple[int, Future[None] | None]] = deque()
        index = 0
        try:
            while index < count or reads:
                if load.stopped or self.urgent:
                    # Completed reads are kept: the urgent load may be of the same slab.
                    while reads:
                        self._finish(load, *reads.popleft())
                    if load.stopped:
                        return
                    paused = time.monotonic()
                    self._do_urgent()
                    load.seconds -= time.monotonic() - paused
                while index < count and len(reads) < READS_MAX:
                    reads.append((index, self._read(load, index, min(size, total - index * size))[1]))
                    index += 1
                if reads:
                    self._finish(load, *reads.popleft())
        finally:
            _settle([read for _, read in reads])

    def _read(self, load: SlabLoad, index: int, length: int) -> tuple[Tensor, Future[None] | None]:
        """The piece, and the read that fills it, if necessary."""
        if load.host is None:
            piece = self._passing[index % len(self._passing)][:length]
        else:
            piece = load.host.pieces[index][:length]
            if load.host.filled[index]:
                return piece, None
        return piece, self._readers.submit(load.source.fill, index * self._piece_bytes, piece)

    def _finish(self, load: SlabLoad, index: int, read: Future[None] | None) -> None:
        if read is not None:
            read.result()
            self._note_filled(load, index)
        load.pieces = max(load.pieces, index + 1)

    def _note_filled(self, load: SlabLoad, index: int) -> None:
        if load.host is not None:
            load.host.filled[index] = True


def _settle(reads: list[Future[None] | None]) -> None:
    """Wait until none of these reads writes any more."""
    for read in reads:
        if read is not None and not read.cancel():
            read.exception()
