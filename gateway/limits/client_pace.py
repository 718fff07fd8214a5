"""How fast one client's requests of a kind go on: `per_s` of them without delay, and every further one later.

A client in a closed loop sends its next request when the last one is answered. Refusals, which cost half a millisecond
each, would otherwise fill the event loop with the requests of one client, and administrative writes would fill the
database's queue of writers; other tenants' requests would wait behind them. It must never know what is delayed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BURST_S = 0.2
DELAY_S_MAX = 1.0
CLIENTS_MAX = 10_000


class ClientPace:
    """Of one event loop. A client is a tenant, or the address of a request without a valid key."""

    def __init__(self, per_s: float, burst_s: float = BURST_S, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_s`: 0 delays nothing. After a pause the requests of `burst_s` seconds go on at once, one at least."""
        self._interval_s = 1 / per_s if per_s else 0.0
        self._burst_s = max(burst_s, self._interval_s)
        self._clock = clock
        self._due: dict[str, float] = {}  # client → when its last request goes on

    async def wait(self, client: str) -> bool:
        """Return when the request may go on, DELAY_S_MAX later at most. Whether it was delayed."""
        delay_s = self.delay_s(client)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        return delay_s > 0

    def delay_s(self, client: str) -> float:
        """Of one more request, which is counted."""
        if not self._interval_s:
            return 0.0
        now = self._clock()
        due = max(self._due.get(client, 0.0), now - self._burst_s) + self._interval_s
        self._due[client] = due = min(due, now + DELAY_S_MAX)
        if len(self._due) > CLIENTS_MAX:
            self._forget_clients(now)
        return max(0.0, due - now)

    def _forget_clients(self, now: float) -> None:
        """Drop the clients whose burst is whole again; without such clients, all of them."""
        self._due = {client: due for client, due in self._due.items() if due > now - self._burst_s}
        if len(self._due) > CLIENTS_MAX:
            self._due.clear()
