"""Limits how many requests begin in one turn of the event loop, so that a burst does not block the loop.

Otherwise a thousand requests that arrive at once would be parsed and counted in one turn of several seconds, in which
no token is sent and no revision is read. This module must never know what a request contains.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 32


class RequestPace:
    """For one event loop: `at_once` requests per turn, in the order of their calls of `turn`."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_turn(self) -> None:
        """Wait for a place; returns at once while fewer than `at_once` requests began in this turn."""
        if self.try_turn():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def try_turn(self) -> bool:
        """Take a place in this turn; False if there is none."""
        if not self._left or self._waiting:
            return False
        self._take_place()
        return True

    def _take_place(self) -> None:
        if self._left == self._at_once:  # the first of this turn
            asyncio.get_running_loop().call_soon(self._next)
        self._left -= 1

    def _next(self) -> None:
        """The next turn has begun."""
        self._left = self._at_once
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else it was cancelled
                self._take_place()
                waiter.set_result(None)
