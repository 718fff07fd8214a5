"""How fast refusals are answered: each client gets `per_s` of them without delay, and every further one later.

A client in a closed loop sends its next request when the last one is answered. Refusals that cost half a millisecond
each would otherwise fill the event loop with the requests of one client, and other tenants' requests wait behind them.
It must never know why a request is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BURST_S = 0.2  # refusals of this many seconds are answered at once after a pause
DELAY_S_MAX = 1.0
CLIENTS_MAX = 10_000


class RefusalPace:
    """Of one event loop. A client is a tenant, or the address of a request without a valid key."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_s`: 0 delays nothing."""
        self._interval_s = 1 / per_s if per_s else 0.0
        self._burst_s = max(BURST_S, self._interval_s)  # one refusal at least
        self._clock = clock
        self._due: dict[str, float] = {}  # client → when its last refusal is answered

    async def wait(self, client: str) -> bool:
        """Return when the refusal may be answered, DELAY_S_MAX later at most. Whether it was delayed."""
        delay_s = self.delay_s(client)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        return delay_s > 0

    def delay_s(self, client: str) -> float:
        """Of one more refusal, which is counted."""
        if not self._interval_s:
            return 0.0
        now = self._clock()
        due = max(self._due.get(client, 0.0), now - self._burst_s) + self._interval_s
        self._due[client] = due = min(due, now + DELAY_S_MAX)
        if len(self._due) > CLIENTS_MAX:
            self._forget(now)
        return max(0.0, due - now)

    def _forget(self, now: float) -> None:
        """Clients whose burst is whole again; if there is none, all: each gets a new burst."""
        self._due = {client: due for client, due in self._due.items() if due > now - self._burst_s}
        if len(self._due) > CLIENTS_MAX:
            self._due.clear()
