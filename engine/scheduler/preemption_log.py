"""The latest preemptions, for whoever watches: who gave way, to which tier, and what became of the KV.

It remembers a bounded number. It must never decide who gives way.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import takewhile

# Between two looks of a watcher; of more, the oldest are forgotten, and their numbers say so.
PREEMPTIONS_KEPT = 256


@dataclass(slots=True, frozen=True)
class PreemptionRecord:
    number: int  # from 1
    at: float  # of the scheduler's clock
    request_id: str
    tier: int  # rank
    cause: int  # rank
    swapped: bool  # its KV went to host memory; else it is computed again


class PreemptionLog:
    def __init__(self, tiers: int) -> None:
        self.count = 0
        self.by_tier = [0] * tiers  # whose requests gave way, by rank
        self.by_model: Counter[str] = Counter()
        self._latest: deque[PreemptionRecord] = deque(maxlen=PREEMPTIONS_KEPT)

    def record_preemption(
        self, at: float, request_id: str, model: str, tier: int, cause: int, *, swapped: bool
    ) -> None:
        self.count += 1
        self.by_tier[tier] += 1
        self.by_model[model] += 1
        self._latest.append(PreemptionRecord(self.count, at, request_id, tier, cause, swapped))

    def after(self, number: int) -> list[PreemptionRecord]:
        """Those above `number` that are still known, the oldest first."""
        newer = list(takewhile(lambda one: one.number > number, reversed(self._latest)))
        return newer[::-1]
