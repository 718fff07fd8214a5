"""Waits for the work of other processes and threads, for longer than a busy machine stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 30.0  # longer than a busy machine stalls; a passing test never waits this long


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


def last_sent_before(ask: Callable[[], int], status: int) -> float:
    """Ask until the answer has `status`. Returns how many seconds after the call the last request with another status
    was sent. 503 is not counted: a gateway gives it when it does not know whether a key is still good. Unlike the time
    of the whole wait, the result does not grow on a busy machine."""
    began, last = time.monotonic(), 0.0
    while True:
        sent = time.monotonic() - began
        answered = ask()
        if answered == status:
            return last
        assert sent < PATIENCE_S, f"it answered {answered} all the time"
        if answered != 503:
            last = sent
