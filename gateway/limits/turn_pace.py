"""Limits how many requests begin in one turn of the event loop, so that a burst does not block the loop.

Otherwise a thousand requests that arrive together would be parsed and counted in one turn of several seconds, in which
no token is sent and no revision is read.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 4


class RequestPace:
    """For one event loop: `at_once` requests begin in each turn, in the order of their calls of `wait_turn`."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_turn(self) -> None:
        """Wait until this request may begin; no wait if fewer than `at_once` requests began in this turn."""
        if self.try_turn():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def try_turn(self) -> bool:
        """True if the request may begin in this turn."""
        if not self._left or self._waiting:
            return False
        self._count_begun()
        return True

    def _count_begun(self) -> None:
        if self._left == self._at_once:  # the first of this turn
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._left -= 1

    def _begin_turn(self) -> None:
        """Runs at the beginning of the next turn."""
        self._left = self._at_once
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # done: cancelled
                self._count_begun()
                waiter.set_result(None)
