"""Timeouts of awaitables.

In a `StallTolerantTimeout` a stall of its own process counts as at most one of STEPS steps. With `asyncio.timeout`, a
stall of this process has the effect of a slow peer: the deadline fires in the first iteration of the event loop after
the stall, but the peer's answer needs several iterations to arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

STEPS = 8  # consecutive timers of one timeout
T = TypeVar("T")


async def within_timeout(seconds: float, awaitable: Awaitable[T]) -> T:
    """The result of `awaitable`. Raises TimeoutError after `seconds`. `asyncio.wait_for` of Python 3.11 loses a
    cancellation that arrives together with the result: its task then runs on, and the process does not stop."""
    async with asyncio.timeout(seconds):
        return await awaitable


class StallTolerantTimeout:
    """`async with StallTolerantTimeout(seconds)` raises TimeoutError as `asyncio.timeout` does. The time is counted in
    STEPS consecutive timers; a stall of any length delays one timer, and so counts as at most one step."""

    __slots__ = ("_left", "_loop", "_step_s", "_timeout", "_timer")

    def __init__(self, seconds: float) -> None:
        self._step_s = seconds / STEPS
        self._left = STEPS
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> StallTolerantTimeout:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._step_s, self._step)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def _step(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._step_s, self._step)
        else:
            self._timeout.reschedule(self._loop.time())
