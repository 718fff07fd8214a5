"""The waiting requests of one tier, and who of them is next: the share that was served least, by Virtual Token
Counter (Sheng et al., OSDI 2024), or one that got nothing for too long; inside a share, who came first. It must never
know pages, nor what other tiers do.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from engine.protocol.tiers import Tier
from engine.scheduler.crowding import Crowding
from engine.scheduler.entry import Entry
from engine.scheduler.queue_rate import QueueRate

# Shares whose counters are remembered; beyond it those that were served least are forgotten, which costs others least.
SHARES_MAX = 10_000
# A share served fewer weighted tokens lately does not crowd a tier whose other shares were served next to nothing.
LIGHT_TOKENS_MIN = 1000.0
NOBODY: frozenset[str] = frozenset()
# Behind so many that are not ready, nobody is looked for.
PASSED_MAX = 256
Ready = Callable[[Entry], bool]


def _always(_: Entry) -> bool:
    return True


class TierQueue:
    """Requests of several models wait in one tier; a step asks for the head of its own model. Preempted requests come
    before all others, the oldest first; then a share none of whose requests started for the tier's `ageing_s`; last
    those of shares that crowd the tier."""

    def __init__(self, tier: Tier, clock: Callable[[], float]) -> None:
        self._tier = tier
        self._clock = clock
        self._drain = QueueRate()
        self._crowding = Crowding(LIGHT_TOKENS_MIN)
        self._counted: dict[str, float] = {}  # share → its `_served` when last reported to the crowding
        self._present: Counter[str] = Counter()  # share → its requests in the tier, running or waiting
        self._running: Counter[str] = Counter()  # share → its running requests
        self._first: dict[str, Entry] = {}  # share → its first request, while that waits
        self.newest_first = 0  # number of the last request that became first
        self._served: dict[str, float] = {}  # share → weighted tokens, lifted when it comes back after a pause
        self._waiting: Counter[str] = Counter()  # share → its requests that wait and never ran
        self._lines: dict[str, _Line] = {}  # by model
        self._suspended: frozenset[str] = frozenset()  # models
        self._last_left: str | None = None  # the share whose leaving emptied the queue
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_entry(self, entry: Entry) -> None:
        """A new request. A share that had nothing waiting starts level with the least served: a pause earns nothing."""
        share, now = entry.sequence.share, self._clock()
        if not self._waiting[share]:
            self._lift(share)
        self._waiting[share] += 1
        if self._tier.crowd_part < 1:
            self._crowding.note_request(share)
        if not self._present[share]:
            entry.first = True
            self._first[share] = entry
            self.newest_first = entry.number
        self._present[share] += 1
        line = self._line(entry)
        line.add_entry(entry, now)
        if entry.sequence.model not in self._suspended:
            line.drain.note_waiting(now)
        self._drain.note_waiting(now)
        self._count += 1

    def put_back(self, entry: Entry) -> None:
        """A preempted request."""
        line = self._line(entry)
        bisect.insort(line.owed if entry.owed else line.resumed, entry, key=_number)
        self._count += 1
        _less(self._running, entry.sequence.share)
        if entry.first and not entry.owed and not self.runs(entry.sequence.share):
            self._first[entry.sequence.share] = entry

    def owed(self, model: str, ready: Ready = _always) -> Entry | None:
        """The oldest of those that run inside the tier's floor next, having been preempted often enough."""
        line = self._lines.get(model)
        return next(filter(ready, line.owed), None) if line else None

    def revoke_owed(self, entry: Entry) -> None:
        """A waiting request is no longer owed its run: it waits like other preempted requests."""
        line = self._line(entry)
        line.owed.remove(entry)
        entry.owed = False
        bisect.insort(line.resumed, entry, key=_number)

    def head(self, model: str, ready: Ready = _always) -> Entry | None:
        """Who is next of all but the owed, and of the first PASSED_MAX that are not `ready`."""
        line, now = self._lines.get(model), self._clock()
        if line is None:
            return None
        head = line.head(self._served, now - self._tier.ageing_s, self._crowd(now), ready)
        if head is None or not (self._first and head.sequence.preemptions and self.runs(head.sequence.share)):
            return head
        # A first request precedes a preempted one whose share runs others and was served more.
        first = self.first(model, ready)
        return first if first and self.served(first.sequence.share) < self.served(head.sequence.share) else head

    def beside(self, head: Entry, slack: float, fits: Ready) -> Entry | None:
        """Who may join in the place of `head`, having come after it: of a share that was served at most `slack` more,
        and crowds the tier no more than its own."""
        line, crowd = self._line(head), NOBODY if self.crowds(head) else self._crowd(self._clock())
        limit = self._served[head.sequence.share] + slack
        entries = (
            entry
            for share, own in line.shares()
            if self._served[share] <= limit and share not in crowd
            for entry in own
        )
        return next(filter(fits, islice(entries, PASSED_MAX)), None)

    def joined(self, entry: Entry) -> None:
        """It runs now."""
        now, fresh = self._clock(), not entry.sequence.preemptions
        self._remove(entry)
        self._running[entry.sequence.share] += 1
        if fresh:
            line = self._line(entry)
            line.started(entry.sequence.share, now)
            line.drain.note_start(now, still_waiting=line.waits())
            self._drain.note_start(now, still_waiting=bool(self._waiting))

    def left(self, entry: Entry) -> None:
        """It has ended without running again."""
        self._remove(entry)
        _less(self._present, entry.sequence.share)
        line = self._line(entry)
        if not line.waits():
            line.drain.note_empty()
        if not self._waiting:
            self._drain.note_empty()
        self._promote(entry.sequence.share)

    def discard(self, entry: Entry, running: Iterable[Entry]) -> None:
        """Remove a request that was torn down, if it is here, and recount. `running`: the tier's running requests."""
        line, share = self._line(entry), entry.sequence.share
        for row in (line.owed, line.resumed):
            if entry in row:
                row.remove(entry)
        if line.has(entry):
            line.remove_entry(entry)
            self._waiting[share] -= 1
            self._waiting += Counter()  # without those at 0
        if self._first.get(share) is entry:
            del self._first[share]
        preempted = [other for own in self._lines.values() for other in (*own.owed, *own.resumed)]
        self._count = sum(self._waiting.values()) + len(preempted)
        self._running = Counter(other.sequence.share for other in running)
        self._present = self._waiting + self._running + Counter(other.sequence.share for other in preempted)
        self._promote(share)

    def note_ending(self, entry: Entry) -> None:
        """A running request has ended."""
        _less(self._running, entry.sequence.share)
        _less(self._present, entry.sequence.share)
        self._promote(entry.sequence.share)

    def first(self, model: str, ready: Ready = _always) -> Entry | None:
        """The model's waiting first request whose share was served least. Shares that crowd are left out, and shares
        that run another request by now, because a preempted one joined again."""
        if not self._first:
            return None
        own = [entry for share, entry in self._first.items() if not self.runs(share)]
        entries = [entry for entry in own if entry.sequence.model == model]
        entries.sort(key=lambda entry: (self.served(entry.sequence.share), entry.number))
        return next((entry for entry in entries if not self.crowds(entry) and ready(entry)), None)

    def _promote(self, share: str) -> None:
        """A request of the share has ended. If the share runs no other, its oldest waiting request becomes its first.
        Otherwise a request queued beside the first, and all later ones of the share, would wait until a request of
        another share ends."""
        if self.runs(share) or share in self._first or not self._waiting.get(share):
            return
        waiting = [entry for line in self._lines.values() if (entry := line.oldest(share))]
        if waiting:  # empty only if a fault left the counts ahead of the lines
            entry = min(waiting, key=_number)
            entry.first = True
            self._first[share] = entry
            self.newest_first = entry.number

    def first_is_next(self, share: str) -> bool:
        """Whether a new request of the share would be its first, beside a share that runs several."""
        return not self._present.get(share) and any(count > 1 for count in self._running.values())

    def runs(self, share: str) -> bool:
        return share in self._running

    def charge(self, entry: Entry, computed: int) -> None:
        """Charge the share for the request's tokens up to `computed`, each once, by kind and the share's weight:
        recomputing them is free."""
        if computed > entry.charged:
            sequence = entry.sequence
            prompt = max(0, min(computed, len(sequence.prompt_ids)) - entry.charged)
            made = computed - entry.charged - prompt
            cost = (self._tier.prefill_weight * prompt + self._tier.decode_weight * made) / sequence.weight
            self._served[sequence.share] = self._served.get(sequence.share, 0.0) + cost
            entry.charged = computed

    def crowds(self, entry: Entry) -> bool:
        """Its share was served far more than others lately, and nothing of it is kept waiting for too long."""
        share, now = entry.sequence.share, self._clock()
        return share in self._crowd(now) and not self._line(entry).aged(share, now - self._tier.ageing_s)

    def crowds_heavily(self, entry: Entry) -> bool:
        """`crowds`, also if only sizeable shares are counted (crowding.py)."""
        return self.crowds(entry) and entry.sequence.share in self._crowding.heavy(self._clock())

    def served(self, share: str) -> float:
        return self._served.get(share, 0.0)

    def wait_s(self, share: str, model: str | None = None) -> float:
        """The predicted wait of a new request of `share`: of every other share as many go before it as it has itself,
        and it. Of one `model`: in its line, at the pace at which that drained while its weights were there."""
        if model is not None:
            return line.wait_s(share, self._clock()) if (line := self._lines.get(model)) else 0.0
        ahead = _ahead(share, self._waiting, self._count - sum(self._waiting.values()))
        return self._drain.wait_seconds(ahead, self._clock()) if ahead else 0.0

    def suspend(self, models: frozenset[str]) -> None:
        """Nobody of these, and of no others, can start: their weights are not there, which says nothing of the pace."""
        for model in models ^ self._suspended:
            if line := self._lines.get(model):
                if model in models:
                    line.drain.note_empty()
                elif line.waits():
                    line.drain.note_waiting(self._clock())
        self._suspended = models

    def forget_queue(self, model: str) -> None:
        """Nobody waits for it."""
        line = self._lines.pop(model, None)
        assert line is None or not (line.owed or line.resumed or line.waits())

    def place_s(self) -> float:
        """Until one of those who wait has started."""
        return self._drain.wait_seconds(1, self._clock())

    def displaced_by(self, share: str) -> Entry | None:
        """Who must go from a full queue for a new request of `share`: the newest of the share that has most waiting, if
        that is more than `share` will have."""
        if not self._waiting:
            return None
        largest = max(self._waiting, key=self._waiting.__getitem__)
        if self._waiting[largest] <= self._waiting.get(share, 0) + 1:
            return None
        newest = (line.newest(largest) for line in self._lines.values())
        return max((entry for entry in newest if entry), key=_number)

    def _crowd(self, now: float) -> frozenset[str]:
        if self._tier.crowd_part == 1:
            return NOBODY
        if self._crowding.due(now):
            self._count_served()
        return self._crowding.shares(now)

    def _count_served(self) -> None:
        """Report to the crowding what its shares were served since the last report."""
        served = {share: self._served.get(share, 0.0) for share in self._crowding.known_shares()}
        for share, now in served.items():
            self._crowding.note_served(share, now - self._counted.get(share, now))
        self._counted = served

    def _lift(self, share: str) -> None:
        """A share without waiting requests starts level with the least served; the crowding does not count the lift."""
        before = self._served.get(share, 0.0)
        after = self._served[share] = max(before, self._level())
        self._counted[share] = self._counted.get(share, before) + after - before
        if len(self._served) > SHARES_MAX:
            self._forget_shares()

    def _remove(self, entry: Entry) -> None:
        line = self._line(entry)
        self._count -= 1
        if self._first.get(entry.sequence.share) is entry:
            del self._first[entry.sequence.share]
        if entry.sequence.preemptions:
            (line.owed if entry.owed else line.resumed).remove(entry)
            return
        share = entry.sequence.share
        line.remove_entry(entry)
        self._waiting[share] -= 1
        if not self._waiting[share]:
            del self._waiting[share]
            if not self._waiting:
                self._last_left = share

    def _level(self) -> float:
        if not self._waiting:
            return self._served.get(self._last_left, 0.0) if self._last_left is not None else 0.0
        levels = [line.level(self._served) for line in self._lines.values()]
        return min(level for level in levels if level is not None)

    def _line(self, entry: Entry) -> _Line:
        return self._lines.setdefault(entry.sequence.model, _Line())

    def _forget_shares(self) -> None:
        idle = sorted((served, share) for share, served in self._served.items() if share not in self._waiting)
        for _, share in idle[: SHARES_MAX // 10]:
            del self._served[share]
            self._counted.pop(share, None)


class _Line:
    """The waiting requests of one tier and model, in two rows: of shares that crowd the tier, and of all others."""

    def __init__(self) -> None:
        self.owed: list[Entry] = []  # oldest first
        self.resumed: list[Entry] = []  # oldest first
        self.drain = QueueRate()
        self._fresh: dict[str, OrderedDict[int, Entry]] = {}  # share → number → request
        self._since: OrderedDict[str, float] = OrderedDict()  # share → its last start, or when it came; in that order
        self._crowd = NOBODY  # as it was when the rows were made
        self._others, self._crowding = _Row(self._fresh), _Row(self._fresh)

    def add_entry(self, entry: Entry, now: float) -> None:
        share = entry.sequence.share
        self._fresh.setdefault(share, OrderedDict())[entry.number] = entry
        self._since.setdefault(share, now)
        (self._crowding if share in self._crowd else self._others).add_share(share)

    def remove_entry(self, entry: Entry) -> None:
        share = entry.sequence.share
        del self._fresh[share][entry.number]
        if not self._fresh[share]:
            del self._fresh[share]
            del self._since[share]

    def has(self, entry: Entry) -> bool:
        """Whether it waits here and never ran."""
        return entry.number in self._fresh.get(entry.sequence.share, ())

    def started(self, share: str, now: float) -> None:
        """One of the share's requests runs now; others of it may wait."""
        if share in self._since:
            self._since[share] = now
            self._since.move_to_end(share)

    def waits(self) -> bool:
        """Somebody who never ran."""
        return bool(self._fresh)

    def wait_s(self, share: str, now: float) -> float:
        """See TierQueue."""
        ahead = _ahead(
            share, {other: len(own) for other, own in self._fresh.items()}, len(self.owed) + len(self.resumed)
        )
        return self.drain.wait_seconds(ahead, now) if ahead else 0.0

    def aged(self, share: str, aged_before: float) -> bool:
        """Some of its requests wait, and none has started since."""
        return self._since.get(share, aged_before) < aged_before

    def shares(self) -> Iterator[tuple[str, Iterable[Entry]]]:
        """Each with its fresh requests, oldest first."""
        return ((share, entries.values()) for share, entries in self._fresh.items())

    def head(self, served: dict[str, float], aged_before: float, crowd: frozenset[str], ready: Ready) -> Entry | None:
        return next(filter(ready, islice(self._in_order(served, aged_before, crowd), PASSED_MAX)), None)

    def _in_order(self, served: dict[str, float], aged_before: float, crowd: frozenset[str]) -> Iterator[Entry]:
        """All but the owed. Some come twice."""
        yield from (entry for entry in self.resumed if entry.sequence.share not in crowd)
        longest = next(iter(self._since), None)
        if longest is not None and self._since[longest] < aged_before:
            yield from self._fresh[longest].values()
        self._sort_out(crowd)
        yield from self._others.in_order(served)
        yield from (entry for entry in self.resumed if entry.sequence.share in crowd)
        yield from self._crowding.in_order(served)

    def oldest(self, share: str) -> Entry | None:
        entries = self._fresh.get(share)
        return next(iter(entries.values())) if entries else None

    def newest(self, share: str) -> Entry | None:
        entries = self._fresh.get(share)
        return next(reversed(entries.values())) if entries else None

    def level(self, served: dict[str, float]) -> float | None:
        """How much the least served share here was served."""
        tops = (row.top(served) for row in (self._others, self._crowding))
        return min((top[0] for top in tops if top), default=None)

    def _sort_out(self, crowd: frozenset[str]) -> None:
        if crowd is self._crowd:
            return
        self._crowd = crowd
        self._others, self._crowding = _Row(self._fresh), _Row(self._fresh)
        for share in self._fresh:
            (self._crowding if share in crowd else self._others).add_share(share)


class _Row:
    """Shares with waiting requests in a heap by (served, head's number). Its keys may be out of date, but only too low,
    as both grow: a key is set right when it comes to the top."""

    def __init__(self, fresh: dict[str, OrderedDict[int, Entry]]) -> None:
        self._fresh = fresh
        self._heap: list[tuple[float, int, str]] = []
        self._in_heap: set[str] = set()

    def add_share(self, share: str) -> None:
        if share not in self._in_heap:
            self._in_heap.add(share)
            heapq.heappush(self._heap, (0.0, 0, share))

    def top(self, served: dict[str, float]) -> tuple[float, int, str] | None:
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

    def in_order(self, served: dict[str, float]) -> Iterator[Entry]:
        """What is not the first share's is seldom asked for, and sorted then."""
        first = self.top(served)
        if first is None:
            return
        yield from self._fresh[first[2]].values()
        shares = self._in_heap & self._fresh.keys() - {first[2]}
        for _, _, share in sorted((served[share], next(iter(self._fresh[share])), share) for share in shares):
            yield from self._fresh[share].values()


def _ahead(share: str, waiting: Mapping[str, int], resumed: int) -> int:
    """Of every other share as many go before a new request of `share` as it has waiting itself, and one."""
    own = waiting.get(share, 0)
    return resumed + own + sum(min(count, own + 1) for other, count in waiting.items() if other != share)


def _less(counts: Counter[str], share: str) -> None:
    counts[share] -= 1
    if not counts[share]:
        del counts[share]


def _number(entry: Entry) -> int:
    return entry.number
