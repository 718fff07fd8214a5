"""Page-locked host memory in pieces, and the stream that copies from it to a GPU beside the steps."""

from __future__ import annotations

import contextlib
import mmap
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from adapters.device.staging import Mark
from engine.models.config import ModelRefused

# Size of one registration. A piece lies within one, since a copy may not span two.
REGISTERED_BYTES = 1 << 30
# Threads that touch pages before they are page-locked, which is most of the work.
TOUCHING = 8
MEASURED_COPIES = 8
PORTABLE = 1  # cudaHostRegisterPortable: for every context of the process


def pinned_pieces(count: int, piece_bytes: int, what: str) -> list[Tensor]:
    """`count` tensors uint8 [piece_bytes]. Not torch's own page-locked memory, whose sizes are powers of two. Raises
    ModelRefused, naming the setting `what`."""
    together = max(1, REGISTERED_BYTES // piece_bytes)
    sizes = [min(together, count - first) * piece_bytes for first in range(0, count, together)]
    try:
        with ThreadPoolExecutor(TOUCHING, "pin") as threads:
            regions = list(threads.map(_pinned, sizes))
    except (OSError, RuntimeError) as error:
        raise ModelRefused(f"{what}: {sum(sizes)} bytes could not be page-locked: {error}") from error
    return [region[first : first + piece_bytes] for region in regions for first in range(0, len(region), piece_bytes)]


class _Pinned(mmap.mmap):
    """Memory that is page-locked until no tensor uses it."""

    address = 0

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():
            torch.cuda.cudart().cudaHostUnregister(self.address)  # type: ignore[no-untyped-call]


def _pinned(size: int) -> Tensor:
    memory = _Pinned(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    region = torch.frombuffer(memory, dtype=torch.uint8)
    region.zero_()
    code = int(torch.cuda.cudart().cudaHostRegister(region.data_ptr(), size, PORTABLE))  # type: ignore[no-untyped-call]
    if code:
        raise OSError(f"cudaHostRegister: error {code}")
    memory.address = region.data_ptr()
    return region


class CudaCopies:
    """Implements engine.gpu.weights_loader.Copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def enter(self) -> None:
        torch.cuda.set_device(self._device)

    def begin_copy(self, target: Tensor, source: Tensor) -> Mark:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            return self._record()

    def mark(self) -> Mark:
        return self._record()

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()

    def measure(self, piece: Tensor) -> float:
        """Measured bytes per second to an idle device."""
        target = torch.empty_like(piece, device=self._device)
        self.wait(self.begin_copy(target, piece))
        began = time.perf_counter()
        for _ in range(MEASURED_COPIES):
            mark = self.begin_copy(target, piece)
        self.wait(mark)
        return MEASURED_COPIES * len(piece) / (time.perf_counter() - began)

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
