"""The owner of each page of the arena: a sequence's KV, a cached prefix, an adapter, or none.

Bookkeeping of page numbers: it touches no bytes, and knows no token, tier or adapter.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Protocol


class PageKind(enum.IntEnum):
    FREE = 0
    KV = 1  # private to one sequence, which still writes it
    CACHED = 2  # named by the prefix cache, immutable; shared by its holders, idle when there are none
    ADAPTER = 3  # owned by the adapter table; held by running requests and pins


class Evictor(Protocol):
    """Orders the idle cached pages for eviction: the prefix cache."""

    def became_idle(self, page: int) -> None: ...

    def became_held(self, page: int) -> None: ...

    def evict(self) -> int:
        """Remove one idle page from the cache and return it. There must be one."""
        ...

    def idle_pages(self) -> int: ...

    def oldest(self) -> int | None:
        """The arena's time at which the page that `evict` would return became idle; 0 for a page over its namespace's
        quota; None: no page is idle."""
        ...


class Arena:
    """`pages` pages of `page_bytes` bytes. A holder is any string on whose account a page is held. A holder may hold a
    page several times; `held` counts the page once."""

    def __init__(self, pages: int, page_bytes: int) -> None:
        if pages < 1 or page_bytes < 1:
            raise ValueError(f"an arena of {pages} pages of {page_bytes} bytes cannot hold anything")
        self.pages = pages
        self.page_bytes = page_bytes
        self._kind = [PageKind.FREE] * pages
        self._references = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # a stack: lowest page first, then the last freed
        self._held: dict[str, dict[int, int]] = {}  # holder → page → times
        self._adapter_pages = 0
        self._idle_adapter_pages = 0  # of them, without a holder
        self.now = 0  # counts releases: the clock of "least recently used"
        self._evictor: Evictor | None = None

    def attach(self, evictor: Evictor) -> None:
        assert self._evictor is None, "an arena has one prefix cache"
        self._evictor = evictor

    # ---- counts

    def free_pages(self) -> int:
        return len(self._free)

    def available(self) -> int:
        """Pages that `allocate` can return: free ones and idle cached ones."""
        return len(self._free) + (self._evictor.idle_pages() if self._evictor else 0)

    def oldest_cached(self) -> int | None:
        """See Evictor.oldest."""
        return self._evictor.oldest() if self._evictor else None

    def held(self, holder: str) -> int:
        """Distinct pages of `holder`."""
        return len(self._held.get(holder, ()))

    def held_of(self, pages: Iterable[int], holder: str) -> int:
        """The number of `pages` that `holder` holds."""
        account = self._held.get(holder, {})
        return sum(page in account for page in pages)

    def adapter_pages(self) -> int:
        return self._adapter_pages

    def idle_adapter_pages(self) -> int:
        """Adapter pages without a holder: an upper bound of the pages that the table could free now."""
        return self._idle_adapter_pages

    def references(self, page: int) -> int:
        return self._references[page]

    def is_cached(self, page: int) -> bool:
        return self._kind[page] is PageKind.CACHED

    def kinds(self) -> bytes:
        """The PageKind of each page, one byte per page."""
        return bytes(self._kind)

    # ---- KV pages

    def allocate(self, count: int, holder: str) -> list[int]:
        """`count` private KV pages, after evicting idle cached ones as needed. At least `count` must be available."""
        pages = self._take_pages(count, PageKind.KV)
        self.retain(pages, holder)
        return pages

    def retain(self, pages: Iterable[int], holder: str) -> None:
        """Hold each page once more. KV pages are private: only cached and adapter pages have several holders."""
        account = self._held.setdefault(holder, {})
        for page in pages:
            kind = self._kind[page]
            assert kind is not PageKind.FREE, f"page {page} is free and cannot be held"
            assert kind is not PageKind.KV or not self._references[page], f"page {page} is private and cannot be shared"
            if kind is PageKind.CACHED and not self._references[page]:
                assert self._evictor is not None
                self._evictor.became_held(page)
            if kind is PageKind.ADAPTER and not self._references[page]:
                self._idle_adapter_pages -= 1
            self._references[page] += 1
            account[page] = account.get(page, 0) + 1

    def release(self, pages: Iterable[int], holder: str) -> None:
        """Undo one `retain` or `allocate` of each page. A KV page becomes free, a cached one idle."""
        account = self._held.get(holder, {})
        self.now += 1
        for page in pages:
            times = account.get(page, 0)
            assert times > 0, f"{holder} does not hold page {page}"
            if times == 1:
                del account[page]
            else:
                account[page] = times - 1
            self._references[page] -= 1
            if not self._references[page]:
                self._became_unheld(page)

    def publish(self, page: int) -> None:
        """A private page becomes a cached one: it is no longer written, and may have several holders."""
        assert self._kind[page] is PageKind.KV, f"page {page} is {self._kind[page].name}, not KV"
        self._kind[page] = PageKind.CACHED

    def free_cached(self, pages: Iterable[int]) -> None:
        """Free idle cached pages that the prefix cache has forgotten."""
        for page in pages:
            assert self._kind[page] is PageKind.CACHED, f"page {page} is {self._kind[page].name}, not CACHED"
            self._make_free(page)

    # ---- adapter pages

    def allocate_adapter(self, count: int) -> list[int]:
        """Pages for the adapter table, without a holder."""
        self._adapter_pages += count
        self._idle_adapter_pages += count
        return self._take_pages(count, PageKind.ADAPTER)

    def free_adapter(self, pages: Iterable[int]) -> None:
        """Free pages that the adapter table gave back. They must have no holder."""
        for page in pages:
            assert self._kind[page] is PageKind.ADAPTER, f"page {page} is {self._kind[page].name}, not ADAPTER"
            assert not self._references[page], f"adapter page {page} is given back while held"
            self._adapter_pages -= 1
            self._idle_adapter_pages -= 1
            self._make_free(page)

    # ---- integrity

    def check_integrity(self, references: Mapping[int, int] | None = None) -> None:
        """Raises AssertionError: a page with two owners or none, or counts that do not add up. `references` (page →
        times held): the holders' own count, compared if given. Takes O(pages): for idle moments and tests."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is twice in the free list"
        holds = [0] * self.pages
        for account in self._held.values():
            for page, times in account.items():
                assert times > 0, f"page {page} is held {times} times"
                holds[page] += times
        idle = adapters = idle_adapters = 0
        for page, (kind, count) in enumerate(zip(self._kind, self._references, strict=True)):
            assert (kind is PageKind.FREE) == (page in free), f"page {page} is {kind.name} and free at once, or neither"
            assert holds[page] == count, f"page {page}: {count} references, but its holders count {holds[page]}"
            assert kind is not PageKind.FREE or count == 0, f"page {page} is free and held"
            assert kind is not PageKind.KV or count == 1, f"private page {page} is held {count} times"
            if references is not None:
                expected = references.get(page, 0)
                assert expected == count, f"page {page}: {count} references, the sequences count {expected}"
            idle += kind is PageKind.CACHED and count == 0
            adapters += kind is PageKind.ADAPTER
            idle_adapters += kind is PageKind.ADAPTER and count == 0
        assert adapters == self._adapter_pages, f"{adapters} adapter pages, {self._adapter_pages} counted"
        assert idle_adapters == self._idle_adapter_pages, f"{idle_adapters} adapter pages are idle, not as counted"
        known_idle = self._evictor.idle_pages() if self._evictor else 0
        assert idle == known_idle, f"{idle} cached pages are idle, the prefix cache counts {known_idle}"

    # ---- inside

    def _take_pages(self, count: int, kind: PageKind) -> list[int]:
        assert 0 <= count <= self.available(), f"{count} pages asked for, {self.available()} available"
        pages = []
        for _ in range(count):
            if not self._free:
                assert self._evictor is not None
                self._make_free(self._evictor.evict())
            page = self._free.pop()
            self._kind[page] = kind
            pages.append(page)
        return pages

    def _became_unheld(self, page: int) -> None:
        kind = self._kind[page]
        if kind is PageKind.KV:
            self._make_free(page)
        elif kind is PageKind.CACHED:
            assert self._evictor is not None
            self._evictor.became_idle(page)
        else:  # owned by the adapter table until it frees the page
            self._idle_adapter_pages += 1

    def _make_free(self, page: int) -> None:
        assert not self._references[page], f"page {page} is freed while held"
        self._kind[page] = PageKind.FREE
        self._free.append(page)
