"""How far apart tenants of one tier were served while all of them had requests waiting: what Virtual Token Counter
bounds (engine.scheduler.bounds).

It keeps the totals that it is given. It must never look at the scheduler, whose own counters it checks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class ServedGap:
    """Of one tier. In any time in which two tenants wait, what they were served differs by how much the difference of
    their totals moved; `widest` is the most, over all pairs and times."""

    def __init__(self, tenants_max: int) -> None:
        self.widest = 0.0
        self.totals = [0.0] * tenants_max  # by tenant, weighted tokens for each unit of its weight
        self._index: dict[str, int] = {}
        self._waiting = [0] * tenants_max  # requests that have not begun
        self._waiters: list[int] = []  # tenants with such
        # [f, g]: of served f - served g, the least and the most since both wait.
        self._low = np.zeros((tenants_max, tenants_max))
        self._high = np.zeros((tenants_max, tenants_max))

    def index(self, tenant: str) -> int:
        return self._index.setdefault(tenant, len(self._index))

    def tenants(self) -> Iterable[str]:
        return self._index

    def note_waiting(self, tenant: int) -> None:
        """One more of its requests waits."""
        self._waiting[tenant] += 1
        if self._waiting[tenant] == 1:
            self._waiters.append(tenant)
            ahead = self.totals[tenant] - np.array(self.totals)
            self._low[tenant] = self._high[tenant] = ahead
            self._low[:, tenant] = self._high[:, tenant] = -ahead

    def note_start(self, tenant: int) -> None:
        """One of its requests waits no longer."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            self._waiters.remove(tenant)

    def note_step(self) -> None:
        """After each step."""
        if len(self._waiters) < 2:
            return
        served = np.array([self.totals[tenant] for tenant in self._waiters])
        ahead = served[:, None] - served
        pairs = np.ix_(self._waiters, self._waiters)
        self._low[pairs] = low = np.minimum(self._low[pairs], ahead)
        self._high[pairs] = high = np.maximum(self._high[pairs], ahead)
        self.widest = max(self.widest, float(np.max(high - low)))
