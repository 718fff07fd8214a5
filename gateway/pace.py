"""How many requests begin in one turn of the event loop, so that a burst does not stop it.

A thousand requests that arrive at one moment would all be parsed and counted in one turn, which takes seconds: no token
is passed on meanwhile and no revision is read. It must never know what a request asks.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 32


class Pace:
    """Of one event loop: AT_ONCE requests a turn, in the order in which they asked."""

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when the caller may go on: at once while this turn of the loop has room."""
        if self._left and not self._waiting:
            self._take()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _take(self) -> None:
        if self._left == AT_ONCE:  # the first of this turn
            asyncio.get_running_loop().call_soon(self._next)
        self._left -= 1

    def _next(self) -> None:
        """The next turn has begun."""
        self._left = AT_ONCE
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else it was cancelled
                self._take()
                waiter.set_result(None)
