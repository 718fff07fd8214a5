"""Host memory for pages of requests that were preempted: whole pages, copied there and back in order with the steps.

It only moves bytes; `engine/scheduler/swap.py` knows whose they are.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from engine.models.config import ModelRefused

# Copies of one measurement, and measurements, when the pool is made.
TIMED_COPIES = 8


class TensorHostPool:
    """Implements engine.step.HostPool over an arena [pages, page_bytes]. For a GPU's arena it is page-locked, and every
    copy is queued on the stream of the steps: the host waits for no copy and never reads the pool. A page is large
    enough for its copy alone to reach the link's speed, so no second buffer gathers pages."""

    def __init__(self, arena: Tensor, slots: int) -> None:
        self.slots = slots
        self._arena = arena
        self._host = torch.empty(slots, arena.shape[1], dtype=torch.uint8, pin_memory=arena.is_cuda)
        self.page_copy_s = self._measure()

    def copy_out(self, pages: list[int], slots: list[int]) -> None:
        for page, slot in zip(pages, slots, strict=True):
            self._host[slot].copy_(self._arena[page], non_blocking=True)

    def copy_in(self, slots: list[int], pages: list[int]) -> None:
        for slot, page in zip(slots, pages, strict=True):
            self._arena[page].copy_(self._host[slot], non_blocking=True)

    def _measure(self) -> float:
        """Seconds of one page's copy out, a median. Called while all slots are empty."""
        taken = []
        for _ in range(TIMED_COPIES):
            self._synchronize()
            began = time.perf_counter()
            self.copy_out([0] * TIMED_COPIES, [0] * TIMED_COPIES)
            self._synchronize()
            taken.append((time.perf_counter() - began) / TIMED_COPIES)
        return statistics.median(taken)

    def _synchronize(self) -> None:
        if self._arena.is_cuda:
            torch.cuda.synchronize(self._arena.device)


def build_host_pool(arena: Tensor, host_pool_bytes: int) -> TensorHostPool | None:
    """Build the host pool; None for 0 bytes. Raises ModelRefused for less than a page."""
    if not host_pool_bytes:
        return None
    slots = host_pool_bytes // arena.shape[1]
    if not slots:
        raise ModelRefused(f"host_pool_bytes: {host_pool_bytes} is less than one page of {arena.shape[1]} bytes")
    return TensorHostPool(arena, slots)
