"""Delays a client's requests of one kind (refusals, administrative writes) beyond a rate.

A client in a closed loop sends its next request when the last one is answered. Without a delay one client's refusals,
which cost half a millisecond each, would fill the event loop, and its administrative writes would fill the database's
queue of writers. The requests of other tenants would wait behind them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BURST_S = 0.2
DELAY_S_MAX = 1.0
CLIENTS_MAX = 10_000


class ClientPace:
    """Not thread-safe: for one event loop. A client is a tenant, or the address of a request without a valid key."""

    def __init__(self, per_s: float, burst_s: float = BURST_S, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_s`: requests a second that are not delayed; 0: no request is. `burst_s`: after a pause the requests of
        `burst_s` seconds, at least one, are not delayed. `clock`: seconds."""
        self._interval_s = 1 / per_s if per_s else 0.0
        self._burst_s = max(burst_s, self._interval_s)
        self._clock = clock
        self._due: dict[str, float] = {}  # by client: the moment until which its last request is delayed

    async def wait(self, client: str) -> bool:
        """Delay the request, at most DELAY_S_MAX. True if it was delayed."""
        delay_s = self.delay_s(client)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        return delay_s > 0

    def delay_s(self, client: str) -> float:
        """Count one more request and return its delay in seconds."""
        if not self._interval_s:
            return 0.0
        now = self._clock()
        due = max(self._due.get(client, 0.0), now - self._burst_s) + self._interval_s
        self._due[client] = due = min(due, now + DELAY_S_MAX)
        if len(self._due) > CLIENTS_MAX:
            self._forget_clients(now)
        return max(0.0, due - now)

    def _forget_clients(self, now: float) -> None:
        """Remove the clients whose burst is whole again; without such clients, all clients."""
        self._due = {client: due for client, due in self._due.items() if due > now - self._burst_s}
        if len(self._due) > CLIENTS_MAX:
            self._due.clear()
