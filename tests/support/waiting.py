"""Waiting for what another process or thread does, as long as a machine may stand still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 30.0  # longer than a machine stands still; a green test waits for none of it


def promptly(attempt: Callable[[], float], within: float, tries: int = 5) -> None:
    """At least one attempt takes less than `within`: a stall of the machine delays some attempts, a fault of the
    product all."""
    found: list[float] = []
    while not found or (found[-1] >= within and len(found) < tries):
        found.append(attempt())
    assert min(found) < within, found


def eventually(check: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    """Wait until `check()`; return the seconds it took."""
    began = time.monotonic()
    while not check():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - began


async def eventually_async(check: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    began = time.monotonic()
    while not check():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - began
