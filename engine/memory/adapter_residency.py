"""Which adapters are in the arena, and which are loaded towards it: requested while requests wait, placed when a
request joins, in use while a request runs, evicted least recently used.

It decides pages and order; the AdapterTable moves the bytes.
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

# Holder of pinned adapters' pages; not a tier's name.
PINNED = ":pinned"
# Pinned adapters may take this part of the arena.
PINNED_PART_MAX = 0.5
# Deferred loads that are requested again before each step.
DEFERRED_MAX = 16
# Loads that are remembered until `take_loads`.
LOADS_MAX = 10_000

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class AdapterCounts:
    """Since the start."""

    hits: dict[str, int]  # requests by their adapter's location on arrival: device, host, disk
    evicted_device: int
    evicted_host: int
    failures: int  # loads that failed


class AdapterResidency:
    def __init__(self, table: AdapterTable, arena: Arena, sequences_max: int = 1, floor_pages: int = 0) -> None:
        """`floor_pages`: pages that the tiers' floors guarantee together; pinned adapters may not take them."""
        self._evictions = 0
        self._hits = Counter(device=0, host=0, disk=0)  # requests by their adapter's location on arrival
        self._failures = 0
        self._loads: list[tuple[str, float]] = []  # source, seconds
        self._table = table
        self._arena = arena
        self.sequences_max = sequences_max
        self._pinned_pages_max = min(int(PINNED_PART_MAX * arena.pages), arena.pages - floor_pages)
        is_limited_by_floors = self._pinned_pages_max < int(PINNED_PART_MAX * arena.pages)
        self._pin_limit_reason = f", as floors promise {floor_pages} of {arena.pages}" if is_limited_by_floors else ""
        self._pages: dict[str, list[int]] = {}  # resident digest → pages with its tiles, shared pages included
        self._users: Counter[str] = Counter()  # digest → running requests that use it
        self._pinned: set[str] = set()  # pinned digests
        self._pinned_to_load: dict[str, None] = {}  # pinned digests to be loaded without a request
        self._idle: OrderedDict[str, int] = OrderedDict()  # resident and not in use → the arena's time since
        self._waiting: dict[str, Counter[int]] = {}  # digest → waiting requests by their tier's rank
        self._deferred: dict[str, None] = {}  # waited for, and not requested yet: host memory was full
        self._hidden = False  # a step is in flight
        self._not_ready: set[str] = set()  # not ready since the last `poll_loads`; the table is queried once

    def is_known(self, digest: str, model: str) -> bool:
        return self._table.is_known(digest, model)

    def pages_needed(self, digest: str | None) -> int:
        """Free pages that are needed to place the adapter now; 0 if it is resident."""
        return self._table.pages_needed(digest) if digest is not None else 0

    def footprint(self, digest: str | None) -> int:
        """Pages to count for the adapter in the scheduler's limits, resident or not. A resident adapter counts with all
        pages that have its tiles. An adapter may take fewer new pages, because its tiles also fill free bytes in other
        adapters' pages; after an eviction these bytes may be taken. So it counts with at least the pages that it needs
        in an arena without other adapters."""
        if digest is None:
            return 0
        return max(self._table.pages_alone(digest), len(self._pages.get(digest, ())))

    def pages_to_retain(self, digest: str | None, holder: str) -> int:
        """Resident pages of the adapter that `holder` does not hold yet, and will hold when a request of the adapter
        joins."""
        pages = self._pages.get(digest, ()) if digest is not None else ()
        return len(pages) - self._arena.held_of(pages, holder) if pages else 0

    def pages_min(self, digest: str | None) -> int:
        """Pages that the adapter takes in an otherwise empty arena. The pages of a pinned adapter remain as they
        are."""
        if digest is None:
            return 0
        return self.footprint(digest) if digest in self._pinned else self._table.pages_alone(digest)

    def pinned_pages(self, other_than: str | None) -> int:
        """Pages of all pinned adapters, resident or not, except `other_than`."""
        return sum(self.footprint(digest) for digest in self._pinned if digest != other_than)

    def in_use(self, digest: str | None) -> bool:
        """A running request uses the adapter, so that another request adds no adapter to a step. True without an
        adapter."""
        return digest is None or self._users[digest] > 0

    # ---- loads

    def add_waiting(self, digest: str | None, rank: int, *, new: bool) -> None:
        """Count a waiting request of a tier, and request the adapter's load. `new`: the request has just been
        queued."""
        if digest is None:
            return
        self._waiting.setdefault(digest, Counter())[rank] += 1
        if new:
            self._hits[self._table.adapter_location(digest)] += 1
        if not self._table.request_load(digest):
            self._deferred[digest] = None

    def remove_waiting(self, digest: str | None, rank: int) -> None:
        """Undo one `add_waiting`. A load that no request needs any more is cancelled."""
        if digest is None:
            return
        ranks = self._waiting[digest]
        assert ranks[rank] > 0, f"no request of tier {rank} waits for {digest}"
        ranks[rank] -= 1
        if not ranks[rank]:
            del ranks[rank]
        if not ranks:
            del self._waiting[digest]
            self._deferred.pop(digest, None)
            self._cancel_unneeded_load(digest)

    def recount(self, digest: str | None, waiting: Counter[int]) -> None:
        """Set the numbers of waiting requests by rank, after a request was torn down."""
        if digest is None:
            return
        if waiting:
            self._waiting[digest] = waiting
        elif self._waiting.pop(digest, None) is not None:
            self._deferred.pop(digest, None)
            self._cancel_unneeded_load(digest)

    def is_adapter_ready(self, digest: str | None) -> bool:
        """The adapter can be placed without a wait. Holds until the next `poll_loads`, unless the adapter is
        evicted."""
        if digest is None or digest in self._pages:
            return True
        if digest not in self._not_ready and not self._table.is_adapter_ready(digest, hidden=self._hidden):
            self._not_ready.add(digest)
        return digest not in self._not_ready

    def poll_loads(self, *, hidden: bool, unpromised: Callable[[], int] | None = None) -> dict[str, str]:
        """Take in the loads that completed; before each step. Returns digest → reason for the loads that failed.
        `hidden`: a step is in flight. `unpromised`: pages that a pinned adapter may take before a request needs it;
        None: all available pages."""
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
        """An exception in the block fails the adapter for the requests that wait for it now; it is logged and
        counted."""
        try:
            yield
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - only the adapter's requests end; the others continue
            _log.error("adapter.failed", exc_info=error, extra={"fields": {"digest": digest}})
            self._failures += 1
            self._deferred.pop(digest, None)
            failed[digest] = f"internal error: {type(error).__name__}"

    @property
    def has_background_loads(self) -> bool:
        """A pinned adapter is being loaded without a request: `poll_loads` continues it."""
        return bool(self._pinned_to_load)

    def _load_pinned(self, spare: int, failed: dict[str, str]) -> None:
        """Load pinned adapters one after another, into at most `spare` pages. If they are too few, the adapter is
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
        """Make the adapter resident and in use by one more running request. `pages_needed` pages must be available;
        `holder` holds the adapter's pages."""
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
        """Undo one `acquire_adapter`. The adapter remains resident until its pages are needed."""
        if digest is None:
            return
        assert self._users[digest] > 0, f"adapter {digest} is not in use"
        self._users[digest] -= 1
        self._arena.release(self._pages[digest], holder)
        if not self._users[digest]:
            del self._users[digest]
            self._idle[digest] = self._arena.now

    def evict_adapter(self, keep: str | None, rank: int = 0, before: int | None = None) -> bool:
        """Evict the least recently used adapter that is not in use, not pinned, not `keep`, and not waited for by a
        tier above `rank`. `before`: only if it was last used before this time of the arena. False: there is none."""
        for digest, since in self._idle.items():
            if before is not None and since >= before:
                return False
            if digest != keep and digest not in self._pinned and min(self._waiting.get(digest, (rank,))) >= rank:
                self._remove(digest)
                self._evictions += 1
                return True
        return False

    def evictable_pages(self, rank: int) -> int:
        """Upper bound of the pages that `evict_adapter` can free for this tier."""
        waited = (digest for digest, ranks in self._waiting.items() if digest in self._idle and min(ranks) < rank)
        kept = {page for digest in waited if digest not in self._pinned for page in self._pages[digest]}
        return self._arena.idle_adapter_pages() - sum(1 for page in kept if not self._arena.references(page))

    def evict_idle(self, pages: int, keep: str | None, rank: int) -> None:
        """Before `pages` pages are allocated: evict idle adapters that were used less recently than the cached prefixes
        that would be evicted instead."""
        arena = self._arena
        while arena.free_pages() < pages and (oldest := arena.oldest_cached()) is not None:
            if not self.evict_adapter(keep, rank, before=oldest):
                return

    def pin_adapter(self, digest: str, pinned: bool) -> str:
        """A pinned adapter is loaded without a request, and never evicted. Returns why it cannot be pinned, or ""."""
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
        """Evict an adapter that is not in use, pinned or not."""
        self.pin_adapter(digest, False)
        if digest in self._pages:
            self._remove(digest)

    def forget_model(self, model: str) -> None:
        """`forget_adapter` for all adapters of a model, except those in use by another model's requests."""
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
        """Resident digest → pages with its tiles. Not to be modified."""
        return self._pages

    def adapter_locations(self, limit: int) -> tuple[list[tuple[str, str, int]], int]:
        """See AdapterTable."""
        return self._table.adapter_locations(limit)

    def digests_in_use(self) -> list[str]:
        return list(self._users)

    def digests_waited_for(self) -> list[str]:
        return list(self._waiting)

    def counts(self) -> AdapterCounts:
        return AdapterCounts(dict(self._hits), self._evictions, self._table.evictions(), self._failures)

    def take_loads(self) -> list[tuple[str, float]]:
        """(source, seconds) of each load since the last call."""
        loads, self._loads = self._loads, []
        return loads

    # ---- integrity

    def held_pages(self) -> Counter[int]:
        """Page → times held for requests and pins, for integrity checks."""
        held = Counter(page for digest, users in self._users.items() for page in self._pages[digest] * users)
        held.update(page for digest in self._pinned for page in self._pages.get(digest, ()))
        return held

    def check_integrity(self, waiting: Counter[tuple[str, int]], running: Counter[str] | None = None) -> None:
        """Raises AssertionError. `waiting`: (digest, rank) → requests; `running`: digest → requests."""
        assert running is None or +self._users == running, "the users differ from the running requests"
        found = Counter({(digest, rank): n for digest, ranks in self._waiting.items() for rank, n in ranks.items()})
        assert found == waiting, "the counted waiting requests differ from the scheduler's"
        assert set(self._deferred) <= set(self._waiting)
        resident = set(self._table.resident())
        assert set(self._pinned_to_load) <= self._pinned - resident
        assert resident == set(self._pages)
        used = {digest for digest, users in self._users.items() if users}
        assert set(self._idle) == resident - used, "the idle adapters are not those without users"
