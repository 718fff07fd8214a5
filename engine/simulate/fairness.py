"""Measures how differently the tenants of one tier were served while they had requests waiting. Virtual Token Counter
bounds this difference (engine.simulate.bounds).

It uses the totals that callers add. It must never read the scheduler, whose own counters it checks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class ServedGap:
    """For one tier. While two tenants wait, the service that they get differs by the change of the difference of their
    totals. `widest`: the largest such change, over all pairs of tenants and all intervals in which both wait."""

    def __init__(self, tenants_max: int) -> None:
        self.widest = 0.0
        self.totals = [0.0] * tenants_max  # by tenant, weighted tokens for each unit of its weight
        self._index: dict[str, int] = {}
        self._waiting = [0] * tenants_max  # by tenant, requests whose first chunk has not begun
        self._waiters: list[int] = []  # tenants with waiting requests
        # [f, g]: the least and the most of totals[f] - totals[g] since both tenants wait.
        self._low = np.zeros((tenants_max, tenants_max))
        self._high = np.zeros((tenants_max, tenants_max))

    def index(self, tenant: str) -> int:
        return self._index.setdefault(tenant, len(self._index))

    def tenants(self) -> Iterable[str]:
        return self._index

    def note_waiting(self, tenant: int) -> None:
        """One more request of the tenant waits."""
        self._waiting[tenant] += 1
        if self._waiting[tenant] == 1:
            self._waiters.append(tenant)
            ahead = self.totals[tenant] - np.array(self.totals)
            self._low[tenant] = self._high[tenant] = ahead
            self._low[:, tenant] = self._high[:, tenant] = -ahead

    def note_start(self, tenant: int) -> None:
        """One request of the tenant no longer waits."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            self._waiters.remove(tenant)

    def note_step(self) -> None:
        """Update `widest`; to be called after each step."""
        if len(self._waiters) < 2:
            return
        served = np.array([self.totals[tenant] for tenant in self._waiters])
        ahead = served[:, None] - served
        pairs = np.ix_(self._waiters, self._waiters)
        self._low[pairs] = low = np.minimum(self._low[pairs], ahead)
        self._high[pairs] = high = np.maximum(self._high[pairs], ahead)
        self.widest = max(self.widest, float(np.max(high - low)))
