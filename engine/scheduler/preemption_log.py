"""The latest preemptions, for observers: which request was preempted, for which tier, and what happened to its KV."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import takewhile

from engine.step import Sequence

# Remembered records. Numbers that are missing show an observer how many it did not see.
PREEMPTIONS_KEPT = 256


@dataclass(slots=True, frozen=True)
class PreemptionRecord:
    number: int  # from 1
    at: float  # on the scheduler's clock
    request_id: str
    tier: int  # rank
    cause: int  # rank
    swapped: bool  # its KV was copied to host memory; otherwise it is recomputed


class PreemptionLog:
    def __init__(self, tiers: int) -> None:
        self.count = 0
        self.by_tier = [0] * tiers  # preempted requests, by rank
        self.by_model: Counter[str] = Counter()
        self._latest: deque[PreemptionRecord] = deque(maxlen=PREEMPTIONS_KEPT)

    def record_preemption(self, at: float, sequence: Sequence, tier: int, cause: int, *, swapped: bool) -> None:
        self.count += 1
        self.by_tier[tier] += 1
        self.by_model[sequence.model] += 1
        self._latest.append(PreemptionRecord(self.count, at, sequence.request_id, tier, cause, swapped))

    def after(self, number: int) -> list[PreemptionRecord]:
        """Remembered records with a number above `number`, oldest first."""
        newer = list(takewhile(lambda record: record.number > number, reversed(self._latest)))
        return newer[::-1]
