"""The waiting requests of one tier, and who of them is next: the share that was served least, by Virtual Token
Counter (Sheng et al., OSDI 2024); inside a share, who came first. It must never know pages, nor what other tiers do.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter, OrderedDict

from engine.entry import Entry

# Shares whose counters are remembered; beyond it those that were served least are forgotten, which costs others least.
SHARES_MAX = 10_000


class TierQueue:
    """Requests of several models wait in one tier; a step asks for the head of its own model. Preempted requests come
    before all others, the oldest first."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}  # share → tokens charged, lifted when it comes back after a pause
        self._waiting: Counter[str] = Counter()  # share → its requests that wait and never ran
        self._lines: dict[str, _Line] = {}  # by model
        self._fresh: OrderedDict[int, Entry] = OrderedDict()  # by order of arrival, those that never ran
        self._last_left: str | None = None  # the share whose leaving emptied the queue
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entry: Entry) -> None:
        """A new request. A share that had nothing waiting starts level with the least served: a pause earns nothing."""
        share = entry.sequence.share
        if not self._waiting[share]:
            self._served[share] = max(self._served.get(share, 0), self._level())
            if len(self._served) > SHARES_MAX:
                self._forget_shares()
        self._waiting[share] += 1
        self._line(entry).add(entry)
        self._fresh[entry.number] = entry
        self._count += 1

    def put_back(self, entry: Entry) -> None:
        """A preempted request."""
        bisect.insort(self._line(entry).resumed, entry, key=_number)
        self._count += 1

    def head(self, model: str) -> Entry | None:
        line = self._lines.get(model)
        return line.head(self._served) if line else None

    def oldest(self) -> Entry | None:
        """Who waits longest without having run."""
        return next(iter(self._fresh.values()), None)

    def remove(self, entry: Entry) -> None:
        """It runs now, or has ended."""
        line = self._line(entry)
        self._count -= 1
        if entry.sequence.preemptions:
            line.resumed.remove(entry)
            return
        share = entry.sequence.share
        line.remove(entry)
        del self._fresh[entry.number]
        self._waiting[share] -= 1
        if not self._waiting[share]:
            del self._waiting[share]
            if not self._waiting:
                self._last_left = share

    def charge(self, entry: Entry, computed: int) -> None:
        """Charge the share for the request's tokens up to `computed`, each once: recomputing them is free."""
        if computed > entry.charged:
            share = entry.sequence.share
            self._served[share] = self._served.get(share, 0) + computed - entry.charged
            entry.charged = computed

    def served(self, share: str) -> int:
        return self._served.get(share, 0)

    def _level(self) -> int:
        if not self._waiting:
            return self._served.get(self._last_left, 0) if self._last_left is not None else 0
        levels = [line.level(self._served) for line in self._lines.values()]
        return min(level for level in levels if level is not None)

    def _line(self, entry: Entry) -> _Line:
        return self._lines.setdefault(entry.sequence.model, _Line())

    def _forget_shares(self) -> None:
        idle = sorted((served, share) for share, served in self._served.items() if share not in self._waiting)
        for _, share in idle[: SHARES_MAX // 10]:
            del self._served[share]


class _Line:
    """The waiting requests of one tier and model. The heap orders shares by (served, head's number); its keys may be
    out of date, but only too low, as both grow: a key is set right when it comes to the top."""

    def __init__(self) -> None:
        self.resumed: list[Entry] = []  # oldest first
        self._fresh: dict[str, OrderedDict[int, Entry]] = {}  # share → number → request
        self._heap: list[tuple[int, int, str]] = []
        self._in_heap: set[str] = set()

    def add(self, entry: Entry) -> None:
        share = entry.sequence.share
        self._fresh.setdefault(share, OrderedDict())[entry.number] = entry
        if share not in self._in_heap:
            self._in_heap.add(share)
            heapq.heappush(self._heap, (0, 0, share))

    def remove(self, entry: Entry) -> None:
        share = entry.sequence.share
        del self._fresh[share][entry.number]
        if not self._fresh[share]:
            del self._fresh[share]

    def head(self, served: dict[str, int]) -> Entry | None:
        if self.resumed:
            return self.resumed[0]
        top = self._top(served)
        return next(iter(self._fresh[top[2]].values())) if top else None

    def level(self, served: dict[str, int]) -> int | None:
        """How much the least served share here was served."""
        top = self._top(served)
        return top[0] if top else None

    def _top(self, served: dict[str, int]) -> tuple[int, int, str] | None:
        while self._heap:
            key = self._heap[0]
            share = key[2]
            if share not in self._fresh:
                heapq.heappop(self._heap)
                self._in_heap.discard(share)
                continue
            current = (served[share], next(iter(self._fresh[share])), share)
            if key == current:
                return key
            heapq.heapreplace(self._heap, current)
        return None


def _number(entry: Entry) -> int:
    return entry.number
