"""Which adapters lie in the arena and which come nearer: asked for while requests wait, placed when one joins, pinned
while one runs, evicted least recently used.

It decides pages and order. It must never know what an adapter's bytes are: the adapter table moves those.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from engine.memory.arena import Arena
from engine.step import AdapterTable, DeviceLost

# On whose account the pages of pinned adapters are held: the name of no tier.
PINNED = ":pinned"
# All pinned adapters together take at most so much of the arena.
PINNED_PART_MAX = 0.5
# Of those who could not be brought nearer at once, so many are asked for again before a step.
DEFERRED_MAX = 16
# Loads whose seconds are kept until somebody takes them.
LOADS_MAX = 10_000

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class AdapterCounts:
    """Since the start."""

    hits: dict[str, int]  # requests that came, by where their adapter was: device, host, disk
    evicted_device: int
    evicted_host: int
    failures: int  # loads that failed


class AdapterResidency:
    def __init__(self, table: AdapterTable, arena: Arena, sequences_max: int = 1, floor_pages: int = 0) -> None:
        """`floor_pages`: pages that the tiers' floors promise together; pinned adapters may not take them."""
        self._evictions = 0
        self._hits = Counter(device=0, host=0, disk=0)  # where a request's adapter was when it came
        self._failures = 0
        self._loads: list[tuple[str, float]] = []  # from where, and the seconds; for whoever takes them
        self._table = table
        self._arena = arena
        self.sequences_max = sequences_max
        self._pinned_pages_max = min(int(PINNED_PART_MAX * arena.pages), arena.pages - floor_pages)
        is_limited_by_floors = self._pinned_pages_max < int(PINNED_PART_MAX * arena.pages)
        self._pin_limit_reason = f", as floors promise {floor_pages} of {arena.pages}" if is_limited_by_floors else ""
        self._pages: dict[str, list[int]] = {}  # resident digest → pages with its tiles, also shared ones
        self._users: Counter[str] = Counter()  # digest → running requests that use it
        self._pinned: set[str] = set()  # digests that are pinned for good
        self._pinned_to_load: dict[str, None] = {}  # of those, that are to come into the arena before anybody asks
        self._idle: OrderedDict[str, int] = OrderedDict()  # resident, used by nobody → the arena's time since
        self._waiting: dict[str, Counter[int]] = {}  # digest → waiting requests by their tier's rank
        self._deferred: dict[str, None] = {}  # of the waiting: for which there was no room yet on their way
        self._hidden = False  # a step is in flight
        self._not_ready: set[str] = set()  # those that were not ready since the last `poll`: asked for once

    def is_known(self, digest: str, model: str) -> bool:
        return self._table.is_known(digest, model)

    def pages_needed(self, digest: str | None) -> int:
        return self._table.pages_needed(digest) if digest is not None else 0

    def footprint(self, digest: str | None) -> int:
        """Pages to count for the adapter: those it lies in, but no fewer than it needs without other adapters. Fewer
        would be too low once it is placed again without room in their pages."""
        if digest is None:
            return 0
        return max(self._table.pages_alone(digest), len(self._pages.get(digest, ())))

    def pages_to_retain(self, digest: str | None, holder: str) -> int:
        """Resident pages that `holder` does not hold yet, and will hold when a request of this adapter joins."""
        pages = self._pages.get(digest, ()) if digest is not None else ()
        return len(pages) - self._arena.held_of(pages, holder) if pages else 0

    def pages_min(self, digest: str | None) -> int:
        """Pages that it takes in an otherwise empty arena. A pinned adapter stays where it is."""
        if digest is None:
            return 0
        return self.footprint(digest) if digest in self._pinned else self._table.pages_alone(digest)

    def pinned_pages(self, other_than: str | None) -> int:
        """Pages of all pinned adapters, resident or not, except `other_than`."""
        return sum(self.footprint(digest) for digest in self._pinned if digest != other_than)

    def in_use(self, digest: str | None) -> bool:
        """A running request has it already, so that one more adds no adapter to a step; so does one without any."""
        return digest is None or self._users[digest] > 0

    # ---- coming nearer

    def add_waiting(self, digest: str | None, rank: int, *, new: bool) -> None:
        """One more request of a tier waits that will use it; a `new` one has just come."""
        if digest is None:
            return
        self._waiting.setdefault(digest, Counter())[rank] += 1
        if new:
            self._hits[self._table.adapter_location(digest)] += 1
        if not self._table.request_load(digest):
            self._deferred[digest] = None

    def remove_waiting(self, digest: str | None, rank: int) -> None:
        """Undo one `waits`. What is under way for nobody ends."""
        if digest is None:
            return
        ranks = self._waiting[digest]
        assert ranks[rank] > 0, f"nobody of tier {rank} waits for {digest}"
        ranks[rank] -= 1
        if not ranks[rank]:
            del ranks[rank]
        if not ranks:
            del self._waiting[digest]
            self._deferred.pop(digest, None)
            self._cancel_unneeded_load(digest)

    def recount(self, digest: str | None, waiting: Counter[int]) -> None:
        """Set the numbers of waiting requests by tier's rank, after a request was torn down."""
        if digest is None:
            return
        if waiting:
            self._waiting[digest] = waiting
        elif self._waiting.pop(digest, None) is not None:
            self._deferred.pop(digest, None)
            self._cancel_unneeded_load(digest)

    def is_adapter_ready(self, digest: str | None) -> bool:
        """Until the next `poll`, and while it is not evicted: `join` would wait for nothing."""
        if digest is None or digest in self._pages:
            return True
        if digest not in self._not_ready and not self._table.is_adapter_ready(digest, hidden=self._hidden):
            self._not_ready.add(digest)
        return digest not in self._not_ready

    def poll_loads(self, *, hidden: bool, unpromised: Callable[[], int] | None = None) -> dict[str, str]:
        """Take in the loads that completed since the last call; returns digest → reason for those that failed. Call it
        before each step. `hidden`: a step is in flight. `unpromised`: pages that a pinned adapter may take before any
        request asks for it; None: all available pages."""
        self._hidden = hidden
        self._not_ready.clear()
        failed = {}
        for move in self._table.poll_adapters():
            if move.error:
                self._failures += 1
                failed[move.digest] = move.error
                if move.digest in self._pinned_to_load:
                    del self._pinned_to_load[move.digest]
                    self._cancel_unneeded_load(move.digest)
            elif len(self._loads) < LOADS_MAX:
                self._loads.append((move.source, move.seconds))
        for digest in list(islice(self._deferred, DEFERRED_MAX)):
            with self._contain_fault(digest, failed):
                if self._table.request_load(digest):
                    del self._deferred[digest]
        if self._pinned_to_load:
            self._load_pinned(self._arena.available() if unpromised is None else unpromised(), failed)
        return failed

    @contextmanager
    def _contain_fault(self, digest: str, failed: dict[str, str]) -> Iterator[None]:
        """An exception in the block fails the adapter for requests that wait for it now; it is logged and counted."""
        try:
            yield
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - the adapter's edge: its requests end, the others go on
            _log.error("adapter.failed", exc_info=error, extra={"fields": {"digest": digest}})
            self._failures += 1
            self._deferred.pop(digest, None)
            failed[digest] = f"internal error: {type(error).__name__}"

    @property
    def has_background_loads(self) -> bool:
        """A pinned one is on its way, for no request: `poll` goes on with it."""
        return bool(self._pinned_to_load)

    def _load_pinned(self, spare: int, failed: dict[str, str]) -> None:
        """Load pinned adapters one after another, into at most `spare` pages. If that is not enough, the adapter is
        loaded with its first request, like others."""
        digest = next(iter(self._pinned_to_load))
        with self._contain_fault(digest, failed):
            if not self._table.request_load(digest) or not self._table.is_adapter_ready(digest, hidden=False):
                return
            if self._table.has_room() and spare >= self._table.pages_needed(digest):
                self._place_adapter(digest)
                self._idle[digest] = self._arena.now
        self._pinned_to_load.pop(digest, None)
        self._cancel_unneeded_load(digest)

    def _cancel_unneeded_load(self, digest: str) -> None:
        if digest not in self._waiting and digest not in self._pinned_to_load:
            self._table.cancel_load(digest)

    # ---- in the arena

    def acquire_adapter(self, digest: str | None, holder: str) -> None:
        """Make it resident, `pages_needed` being available, and pin it for one running request of `holder`, on whose
        account its pages are held too."""
        if digest is None:
            return
        if digest not in self._pages:
            while not self._table.has_room():
                assert self.evict_adapter(keep=digest), "more adapters run at once than the table has rows for"
            self._place_adapter(digest)
        self._idle.pop(digest, None)
        self._users[digest] += 1
        self._arena.retain(self._pages[digest], holder)

    def _place_adapter(self, digest: str) -> None:
        pages = self._arena.allocate_adapter(self._table.pages_needed(digest))
        try:
            self._table.place_adapter(digest, pages)
        except Exception:
            self._arena.free_adapter(pages)
            raise
        self._pages[digest] = self._table.pages_of(digest)
        self._pinned_to_load.pop(digest, None)
        if digest in self._pinned:
            self._arena.retain(self._pages[digest], PINNED)

    def release_adapter(self, digest: str | None, holder: str) -> None:
        """Undo one `join`. It stays resident until its pages are wanted."""
        if digest is None:
            return
        assert self._users[digest] > 0, f"adapter {digest} is not pinned"
        self._users[digest] -= 1
        self._arena.release(self._pages[digest], holder)
        if not self._users[digest]:
            del self._users[digest]
            self._idle[digest] = self._arena.now

    def evict_adapter(self, keep: str | None, rank: int = 0, before: int | None = None) -> bool:
        """Drop the least recently used adapter that no running request uses, except `keep`, those that stay, and those
        that requests of tiers above `rank` wait for; with `before`, if it was last used before that time of the
        arena's. False: there is none."""
        for digest, since in self._idle.items():
            if before is not None and since >= before:
                return False
            if digest != keep and digest not in self._pinned and min(self._waiting.get(digest, (rank,))) >= rank:
                self._remove(digest)
                self._evictions += 1
                return True
        return False

    def evictable_pages(self, rank: int) -> int:
        """No more pages than these could be freed by `evict`."""
        waited = (digest for digest, ranks in self._waiting.items() if digest in self._idle and min(ranks) < rank)
        kept = {page for digest in waited if digest not in self._pinned for page in self._pages[digest]}
        return self._arena.idle_adapter_pages() - sum(1 for page in kept if not self._arena.references(page))

    def evict_idle(self, pages: int, keep: str | None, rank: int) -> None:
        """Before `pages` pages are taken: idle adapters go in the place of cached prefixes that were used later."""
        arena = self._arena
        while arena.free_pages() < pages and (oldest := arena.oldest_cached()) is not None:
            if not self.evict_adapter(keep, rank, before=oldest):
                return

    def pin_adapter(self, digest: str, pinned: bool) -> str:
        """Whether it comes before anybody asks, and is never evicted. Why that cannot be, or ""."""
        if pinned and digest not in self._pinned:
            pages, limit = self.footprint(digest) + self.pinned_pages(other_than=digest), self._pinned_pages_max
            if pages > limit:
                return f"pinned adapters would take {pages} pages; their limit is {limit}{self._pin_limit_reason}"
            rows = self._table.adapters_max
            if rows is not None and len(self._pinned) >= rows - self.sequences_max:
                return f"{len(self._pinned)} adapters are pinned; the limit is {rows - self.sequences_max}"
        if pinned != (digest in self._pinned) and digest in self._pages:
            retain_or_release = self._arena.retain if pinned else self._arena.release
            retain_or_release(self._pages[digest], PINNED)
        if pinned and digest not in self._pinned | self._pages.keys():
            self._pinned_to_load[digest] = None
        if pinned:
            self._pinned.add(digest)
        else:
            self._pinned.discard(digest)
            if digest in self._pinned_to_load:
                del self._pinned_to_load[digest]
                self._cancel_unneeded_load(digest)
        self._table.pin_adapter(digest, pinned)
        return ""

    def forget_adapter(self, digest: str) -> None:
        """Drop it from the arena, pinned or not. Nobody running uses it."""
        self.pin_adapter(digest, False)
        if digest in self._pages:
            self._remove(digest)

    def forget_model(self, model: str) -> None:
        """`forget` all of a model, but for those that run for another one."""
        for digest in [
            digest for digest in {**self._pages, **dict.fromkeys(self._pinned)} if self.is_known(digest, model)
        ]:
            if not self._users[digest]:
                self.forget_adapter(digest)

    def _remove(self, digest: str) -> None:
        assert not self._users[digest], f"adapter {digest} is in use"
        pages = self._table.evict_adapter(digest)
        del self._pages[digest]
        del self._idle[digest]
        self._arena.free_adapter(pages)

    # ---- counts

    def pages(self) -> Mapping[str, Ordered[int]]:
        """By resident digest, the pages with its tiles. Do not modify."""
        return self._pages

    def adapter_locations(self, limit: int) -> tuple[list[tuple[str, str, int]], int]:
        """See AdapterTable."""
        return self._table.adapter_locations(limit)

    def digests_in_use(self) -> list[str]:
        """Digests that running requests use."""
        return list(self._users)

    def digests_waited_for(self) -> list[str]:
        """Digests that waiting requests will use."""
        return list(self._waiting)

    def counts(self) -> AdapterCounts:
        return AdapterCounts(dict(self._hits), self._evictions, self._table.evictions(), self._failures)

    def take_loads(self) -> list[tuple[str, float]]:
        """Of each load since last asked: from where, and its seconds."""
        loads, self._loads = self._loads, []
        return loads

    # ---- integrity

    def held_pages(self) -> Counter[int]:
        """Page → times held through pins, for integrity checks."""
        held = Counter(page for digest, users in self._users.items() for page in self._pages[digest] * users)
        held.update(page for digest in self._pinned for page in self._pages.get(digest, ()))
        return held

    def check_integrity(self, waiting: Counter[tuple[str, int]], running: Counter[str] | None = None) -> None:
        """Raises AssertionError. `waiting`: (digest, rank) of all waiting requests that use an adapter; `running`:
        digests of the running ones."""
        assert running is None or +self._users == running, "the pins differ from the adapters of the running requests"
        found = Counter({(digest, rank): n for digest, ranks in self._waiting.items() for rank, n in ranks.items()})
        assert found == waiting, "it knows of other waiting requests than there are"
        assert set(self._deferred) <= set(self._waiting)
        resident = set(self._table.resident())
        assert set(self._pinned_to_load) <= self._pinned - resident
        assert resident == set(self._pages)
        used = {digest for digest, users in self._users.items() if users}
        assert set(self._idle) == resident - used, "the idle adapters are not those that nobody uses"
