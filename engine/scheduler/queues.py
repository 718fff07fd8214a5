"""The waiting requests of one tier, and their order: the share that was served least is next, by Virtual Token Counter
(Sheng et al., OSDI 2024), or a share that started nothing for `ageing_s`; inside a share the oldest request.

Bound: two shares of weight 1 that always have requests waiting differ by at most `bounds.fairness_bound` weighted
tokens. This module knows neither pages nor other tiers.
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

# Shares whose counters are kept. Beyond it the least served shares are forgotten, which affects the others least.
SHARES_MAX = 10_000
# A share that was recently served fewer weighted tokens crowds only if it crowds heavily (crowding.py).
LIGHT_TOKENS_MIN = 1000.0
NO_SHARES: frozenset[str] = frozenset()
# Requests that are examined to find a ready request.
PASSED_MAX = 256
Ready = Callable[[Entry], bool]


def _always(_: Entry) -> bool:
    return True


class TierQueue:
    """One tier holds requests of several models; a step asks for the head of its own model. The order: preempted and
    resumed requests, oldest first; then a share that started no request for the tier's `ageing_s`; then by served
    tokens; last the shares that crowd the tier."""

    def __init__(self, tier: Tier, clock: Callable[[], float]) -> None:
        self._tier = tier
        self._clock = clock
        self._rate = QueueRate()
        self._crowding = Crowding(LIGHT_TOKENS_MIN)
        self._counted: dict[str, float] = {}  # share → its `_served` at the last report to the crowding
        self._present: Counter[str] = Counter()  # share → its requests in the tier, running or waiting
        self._running: Counter[str] = Counter()  # share → its running requests
        self._first_requests: dict[str, Entry] = {}  # share → its first request, while that request waits
        self.newest_first = 0  # number of the request that became first last
        self._served: dict[str, float] = {}  # share → weighted tokens, lifted after a pause
        self._waiting: Counter[str] = Counter()  # share → its waiting requests that never ran
        self._model_queues: dict[str, _ModelQueue] = {}  # by model
        self._suspended: frozenset[str] = frozenset()  # models
        self._last_left: str | None = None  # the share whose last request emptied the queue
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_entry(self, entry: Entry) -> None:
        """Queue a request that was submitted. A share without waiting requests starts level with the least served: a
        pause earns nothing."""
        share, now = entry.sequence.share, self._clock()
        if not self._waiting[share]:
            self._lift_counter(share)
        if self._tier.crowd_part < 1:
            self._crowding.note_request(share)
        if not self._present[share]:
            entry.first = True
            self._first_requests[share] = entry
            self.newest_first = entry.number
        self._present[share] += 1
        self._count += 1
        waiting_queue = self._model_queue(entry)
        if entry.has_run:  # on another engine
            bisect.insort(waiting_queue.resumed, entry, key=_number)
            return
        self._waiting[share] += 1
        waiting_queue.add_entry(entry, now)
        if entry.sequence.model not in self._suspended:
            waiting_queue.rate.note_waiting(now)
        self._rate.note_waiting(now)

    def requeue(self, entry: Entry) -> None:
        """Queue a preempted request again."""
        entry.has_run = True
        waiting_queue = self._model_queue(entry)
        bisect.insort(waiting_queue.owed if entry.owed else waiting_queue.resumed, entry, key=_number)
        self._count += 1
        _decrement(self._running, entry.sequence.share)
        if entry.first and not entry.owed and not self.has_running(entry.sequence.share):
            self._first_requests[entry.sequence.share] = entry

    def oldest_owed(self, model: str, ready: Ready = _always) -> Entry | None:
        """The oldest `ready` request of the model that is owed its run."""
        waiting_queue = self._model_queues.get(model)
        return next(filter(ready, waiting_queue.owed), None) if waiting_queue else None

    def revoke_owed(self, entry: Entry) -> None:
        """A waiting request is no longer owed its run: it waits like other preempted requests."""
        waiting_queue = self._model_queue(entry)
        waiting_queue.owed.remove(entry)
        entry.owed = False
        bisect.insort(waiting_queue.resumed, entry, key=_number)

    def head(self, model: str, ready: Ready = _always) -> Entry | None:
        """The next `ready` request of the model that is not owed its run, among the first PASSED_MAX of the order."""
        waiting_queue, now = self._model_queues.get(model), self._clock()
        if waiting_queue is None:
            return None
        head = waiting_queue.next_entry(self._served, now - self._tier.ageing_s, self._crowd(now), ready)
        if head is None or not (self._first_requests and head.has_run and self.has_running(head.sequence.share)):
            return head
        # A first request precedes a preempted one whose share runs others and was served more.
        first_request = self.first_request(model, ready)
        return (
            first_request
            if first_request
            and self.served_tokens(first_request.sequence.share) < self.served_tokens(head.sequence.share)
            else head
        )

    def next_beside(self, head: Entry, slack: float, accept: Ready) -> Entry | None:
        """A request that `accept` accepts and that may join before `head`, although it is behind it: its share was
        served at most `slack` more tokens, and crowds the tier no more than head's."""
        waiting_queue, crowd = self._model_queue(head), NO_SHARES if self.crowds(head) else self._crowd(self._clock())
        limit = self._served[head.sequence.share] + slack
        entries = (
            entry
            for share, own in waiting_queue.shares()
            if self._served[share] <= limit and share not in crowd
            for entry in own
        )
        return next(filter(accept, islice(entries, PASSED_MAX)), None)

    def note_joined(self, entry: Entry) -> None:
        """A waiting request joined the batch."""
        now, is_first_start = self._clock(), not entry.has_run
        self._remove(entry)
        self._running[entry.sequence.share] += 1
        if is_first_start:
            waiting_queue = self._model_queue(entry)
            waiting_queue.note_started(entry.sequence.share, now)
            waiting_queue.rate.note_start(now, still_waiting=waiting_queue.has_new())
            self._rate.note_start(now, still_waiting=bool(self._waiting))

    def remove_ended(self, entry: Entry) -> None:
        """A waiting request ended."""
        self._remove(entry)
        _decrement(self._present, entry.sequence.share)
        waiting_queue = self._model_queue(entry)
        if not waiting_queue.has_new():
            waiting_queue.rate.note_empty()
        if not self._waiting:
            self._rate.note_empty()
        self._promote(entry.sequence.share)

    def discard(self, entry: Entry, running: Iterable[Entry]) -> None:
        """Remove a request that was torn down, if it is here, and recount. `running`: the tier's running requests."""
        waiting_queue, share = self._model_queue(entry), entry.sequence.share
        for row in (waiting_queue.owed, waiting_queue.resumed):
            if entry in row:
                row.remove(entry)
        if waiting_queue.has_new_entry(entry):
            waiting_queue.remove_entry(entry)
            self._waiting[share] -= 1
            self._waiting += Counter()  # drops zero counts
        if self._first_requests.get(share) is entry:
            del self._first_requests[share]
        preempted = [other for own in self._model_queues.values() for other in (*own.owed, *own.resumed)]
        self._count = sum(self._waiting.values()) + len(preempted)
        self._running = Counter(other.sequence.share for other in running)
        self._present = self._waiting + self._running + Counter(other.sequence.share for other in preempted)
        self._promote(share)

    def note_ending(self, entry: Entry) -> None:
        """A running request ended."""
        _decrement(self._running, entry.sequence.share)
        _decrement(self._present, entry.sequence.share)
        self._promote(entry.sequence.share)

    def first_request(self, model: str, ready: Ready = _always) -> Entry | None:
        """The model's waiting first request whose share was served least. Left out: shares that crowd the tier, and
        shares that run another request because a preempted one joined again."""
        if not self._first_requests:
            return None
        own = [entry for share, entry in self._first_requests.items() if not self.has_running(share)]
        entries = [entry for entry in own if entry.sequence.model == model]
        entries.sort(key=lambda entry: (self.served_tokens(entry.sequence.share), entry.number))
        return next((entry for entry in entries if not self.crowds(entry) and ready(entry)), None)

    def _promote(self, share: str) -> None:
        """A request of the share ended. If the share runs no other, its oldest waiting request becomes its first.
        Otherwise a request queued beside the first, and all later ones of the share, would wait until a request of
        another share ends."""
        if self.has_running(share) or share in self._first_requests or not self._waiting.get(share):
            return
        waiting = [entry for waiting_queue in self._model_queues.values() if (entry := waiting_queue.oldest(share))]
        if waiting:  # empty only if a fault left the counts ahead of the queues
            entry = min(waiting, key=_number)
            entry.first = True
            self._first_requests[share] = entry
            self.newest_first = entry.number

    def first_is_next(self, share: str) -> bool:
        """Whether a new request of the share would be its first, while another share runs several."""
        return not self._present.get(share) and any(count > 1 for count in self._running.values())

    def has_running(self, share: str) -> bool:
        return share in self._running

    def charge(self, entry: Entry, computed: int) -> None:
        """Charge the share for the request's tokens up to `computed`: prefill_weight · prompt tokens + decode_weight ·
        other tokens, divided by the share's weight. Each token is charged once; recomputing it is free."""
        if computed > entry.charged:
            sequence = entry.sequence
            prompt = max(0, min(computed, len(sequence.prompt_ids)) - entry.charged)
            made = computed - entry.charged - prompt
            cost = (self._tier.prefill_weight * prompt + self._tier.decode_weight * made) / sequence.weight
            self._served[sequence.share] = self._served.get(sequence.share, 0.0) + cost
            entry.charged = computed

    def crowds(self, entry: Entry) -> bool:
        """The request's share crowds the tier (crowding.py), and has not waited longer than `ageing_s`."""
        share, now = entry.sequence.share, self._clock()
        return share in self._crowd(now) and not self._model_queue(entry).is_aged(share, now - self._tier.ageing_s)

    def crowds_heavily(self, entry: Entry) -> bool:
        """`crowds`, also if only sizeable shares are counted (crowding.py)."""
        return self.crowds(entry) and entry.sequence.share in self._crowding.heavy(self._clock())

    def served_tokens(self, share: str) -> float:
        """Weighted tokens of the share, lifted after pauses."""
        return self._served.get(share, 0.0)

    def wait_s(self, share: str, model: str | None = None) -> float:
        """Predicted wait of a new request of `share`. Of every other share as many requests count as the share has
        waiting itself, plus one. `model`: only the model's requests, at the rate at which they started while its
        weights were resident."""
        if model is not None:
            return (
                waiting_queue.wait_s(share, self._clock()) if (waiting_queue := self._model_queues.get(model)) else 0.0
            )
        ahead = _requests_ahead(share, self._waiting, self._count - sum(self._waiting.values()))
        return self._rate.wait_seconds(ahead, self._clock()) if ahead else 0.0

    def new_share_wait_s(self, *, needs_slot: bool) -> float:
        """Predicted wait of a request of a share without requests in the tier. `needs_slot`: it waits for one more
        start, because no slot is free."""
        if any(count > 1 for count in self._running.values()):
            return 0.0  # it would be its share's first request
        ahead = self._count - sum(self._waiting.values()) + len(self._waiting) + needs_slot
        return self._rate.wait_seconds(ahead, self._clock()) if ahead else 0.0

    def suspend(self, models: frozenset[str]) -> None:
        """No request of exactly these models can start, because their weights are absent. The time does not count in
        their rates."""
        for model in models ^ self._suspended:
            if waiting_queue := self._model_queues.get(model):
                if model in models:
                    waiting_queue.rate.note_empty()
                elif waiting_queue.has_new():
                    waiting_queue.rate.note_waiting(self._clock())
        self._suspended = models

    def forget_queue(self, model: str) -> None:
        """The model has no waiting request."""
        waiting_queue = self._model_queues.pop(model, None)
        assert waiting_queue is None or not (waiting_queue.owed or waiting_queue.resumed or waiting_queue.has_new())

    def next_start_s(self) -> float:
        """Predicted seconds until the next waiting request starts."""
        return self._rate.wait_seconds(1, self._clock())

    def displaced_by(self, share: str) -> Entry | None:
        """The request that a full queue drops for a new request of `share`: the newest of the share with most waiting
        requests, if it has more of them than `share` will have. None: the new request is refused."""
        if not self._waiting:
            return None
        largest = max(self._waiting, key=self._waiting.__getitem__)
        if self._waiting[largest] <= self._waiting.get(share, 0) + 1:
            return None
        newest = (waiting_queue.newest(largest) for waiting_queue in self._model_queues.values())
        return max((entry for entry in newest if entry), key=_number)

    def _crowd(self, now: float) -> frozenset[str]:
        if self._tier.crowd_part == 1:
            return NO_SHARES
        if self._crowding.due(now):
            self._count_served()
        return self._crowding.shares(now)

    def _count_served(self) -> None:
        """Report to the crowding what each share was served since the last report."""
        served_tokens = {share: self._served.get(share, 0.0) for share in self._crowding.known_shares()}
        for share, now in served_tokens.items():
            self._crowding.note_served(share, now - self._counted.get(share, now))
        self._counted = served_tokens

    def _lift_counter(self, share: str) -> None:
        """A share without waiting requests starts level with the least served; the crowding does not count the
        difference."""
        before = self._served.get(share, 0.0)
        after = self._served[share] = max(before, self._least_served())
        self._counted[share] = self._counted.get(share, before) + after - before
        if len(self._served) > SHARES_MAX:
            self._forget_shares()

    def _remove(self, entry: Entry) -> None:
        waiting_queue = self._model_queue(entry)
        self._count -= 1
        if self._first_requests.get(entry.sequence.share) is entry:
            del self._first_requests[entry.sequence.share]
        if entry.has_run:
            (waiting_queue.owed if entry.owed else waiting_queue.resumed).remove(entry)
            return
        share = entry.sequence.share
        waiting_queue.remove_entry(entry)
        self._waiting[share] -= 1
        if not self._waiting[share]:
            del self._waiting[share]
            if not self._waiting:
                self._last_left = share

    def _least_served(self) -> float:
        if not self._waiting:
            return self._served.get(self._last_left, 0.0) if self._last_left is not None else 0.0
        levels = [waiting_queue.least_served(self._served) for waiting_queue in self._model_queues.values()]
        return min(level for level in levels if level is not None)

    def _model_queue(self, entry: Entry) -> _ModelQueue:
        return self._model_queues.setdefault(entry.sequence.model, _ModelQueue())

    def _forget_shares(self) -> None:
        idle = sorted(
            (served_tokens, share) for share, served_tokens in self._served.items() if share not in self._waiting
        )
        for _, share in idle[: SHARES_MAX // 10]:
            del self._served[share]
            self._counted.pop(share, None)


class _ModelQueue:
    """The waiting requests of one tier and model. Requests that never ran are in two heaps of shares: the shares that
    crowd the tier, and all others."""

    def __init__(self) -> None:
        self.owed: list[Entry] = []  # oldest first
        self.resumed: list[Entry] = []  # oldest first
        self.rate = QueueRate()
        self._new: dict[str, OrderedDict[int, Entry]] = {}  # share → number → request that never ran
        self._since: OrderedDict[str, float] = OrderedDict()  # share → its last start, or its arrival; in this order
        self._crowd = NO_SHARES  # the crowding shares when the heaps were built
        self._quiet_shares, self._crowding_shares = _ShareHeap(self._new), _ShareHeap(self._new)

    def add_entry(self, entry: Entry, now: float) -> None:
        share = entry.sequence.share
        self._new.setdefault(share, OrderedDict())[entry.number] = entry
        self._since.setdefault(share, now)
        (self._crowding_shares if share in self._crowd else self._quiet_shares).add_share(share)

    def remove_entry(self, entry: Entry) -> None:
        share = entry.sequence.share
        del self._new[share][entry.number]
        if not self._new[share]:
            del self._new[share]
            del self._since[share]

    def has_new_entry(self, entry: Entry) -> bool:
        """The request is in this queue and never ran."""
        return entry.number in self._new.get(entry.sequence.share, ())

    def note_started(self, share: str, now: float) -> None:
        """A request of the share started; others of it may wait."""
        if share in self._since:
            self._since[share] = now
            self._since.move_to_end(share)

    def has_new(self) -> bool:
        """A request that never ran is waiting."""
        return bool(self._new)

    def wait_s(self, share: str, now: float) -> float:
        """See TierQueue."""
        waiting = {other: len(entries) for other, entries in self._new.items()}
        ahead = _requests_ahead(share, waiting, len(self.owed) + len(self.resumed))
        return self.rate.wait_seconds(ahead, now) if ahead else 0.0

    def is_aged(self, share: str, aged_before: float) -> bool:
        """Requests of the share wait, and no request of it has started since `aged_before`."""
        return self._since.get(share, aged_before) < aged_before

    def shares(self) -> Iterator[tuple[str, Iterable[Entry]]]:
        """Each share with its requests that never ran, oldest first."""
        return ((share, entries.values()) for share, entries in self._new.items())

    def next_entry(
        self, served: dict[str, float], aged_before: float, crowd: frozenset[str], ready: Ready
    ) -> Entry | None:
        return next(filter(ready, islice(self._in_order(served, aged_before, crowd), PASSED_MAX)), None)

    def _in_order(self, served: dict[str, float], aged_before: float, crowd: frozenset[str]) -> Iterator[Entry]:
        """All requests that are not owed their run, in the queue's order. A request may be yielded twice."""
        yield from (entry for entry in self.resumed if entry.sequence.share not in crowd)
        longest = next(iter(self._since), None)
        if longest is not None and self._since[longest] < aged_before:
            yield from self._new[longest].values()
        self._split_shares(crowd)
        yield from self._quiet_shares.in_order(served)
        yield from (entry for entry in self.resumed if entry.sequence.share in crowd)
        yield from self._crowding_shares.in_order(served)

    def oldest(self, share: str) -> Entry | None:
        entries = self._new.get(share)
        return next(iter(entries.values())) if entries else None

    def newest(self, share: str) -> Entry | None:
        entries = self._new.get(share)
        return next(reversed(entries.values())) if entries else None

    def least_served(self, served: dict[str, float]) -> float | None:
        """Weighted tokens of the least served share in this queue."""
        tops = (row.top(served) for row in (self._quiet_shares, self._crowding_shares))
        return min((top[0] for top in tops if top), default=None)

    def _split_shares(self, crowd: frozenset[str]) -> None:
        if crowd is self._crowd:
            return
        self._crowd = crowd
        self._quiet_shares, self._crowding_shares = _ShareHeap(self._new), _ShareHeap(self._new)
        for share in self._new:
            (self._crowding_shares if share in crowd else self._quiet_shares).add_share(share)


class _ShareHeap:
    """Shares with waiting requests, in a heap by (served tokens, number of the oldest request). Keys may be out of
    date, but only too low, since both only grow: a key is corrected when it reaches the top."""

    def __init__(self, new: dict[str, OrderedDict[int, Entry]]) -> None:
        self._new = new
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
            if share not in self._new:
                heapq.heappop(self._heap)
                self._in_heap.discard(share)
                continue
            current = (served[share], next(iter(self._new[share])), share)
            if key == current:
                return key
            heapq.heapreplace(self._heap, current)
        return None

    def in_order(self, served: dict[str, float]) -> Iterator[Entry]:
        """Requests of the least served share first. The other shares are rarely needed, and sorted on demand."""
        first = self.top(served)
        if first is None:
            return
        yield from self._new[first[2]].values()
        shares = self._in_heap & self._new.keys() - {first[2]}
        for _, _, share in sorted((served[share], next(iter(self._new[share])), share) for share in shares):
            yield from self._new[share].values()


def _requests_ahead(share: str, waiting: Mapping[str, int], resumed: int) -> int:
    """Requests that count as being ahead of a new request of `share`: preempted ones, the share's own, and of every
    other share at most as many as the share has waiting, plus one."""
    own = waiting.get(share, 0)
    return resumed + own + sum(min(count, own + 1) for other, count in waiting.items() if other != share)


def _decrement(counts: Counter[str], share: str) -> None:
    counts[share] -= 1
    if not counts[share]:
        del counts[share]


def _number(entry: Entry) -> int:
    return entry.number
