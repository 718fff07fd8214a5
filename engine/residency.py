"""Which adapters lie in the arena: placed when a request joins, pinned while one runs, evicted least recently used.

It decides pages and order. It must never know what an adapter's bytes are: the adapter table places those.
"""

from __future__ import annotations

from collections import Counter

from engine.arena import Arena
from engine.step import AdapterTable


class Residency:
    def __init__(self, table: AdapterTable, arena: Arena) -> None:
        self._table = table
        self._arena = arena
        self._pages: dict[str, list[int]] = {}  # resident digest → pages that were allocated for it
        self._pins: Counter[str] = Counter()  # digest → running requests that use it

    def known(self, digest: str, model: str) -> bool:
        return self._table.known(digest, model)

    def pages_needed(self, digest: str | None) -> int:
        return self._table.pages_needed(digest) if digest is not None else 0

    def footprint(self, digest: str | None) -> int:
        """Pages that it needs or that were allocated for it. A little less than it needs alone, when it found room in
        pages of others."""
        return max(self.pages_needed(digest), len(self._pages.get(digest, ()))) if digest is not None else 0

    def join(self, digest: str | None, holder: str) -> None:
        """Make it resident, `pages_needed` being available, and pin it for one running request of `holder`, on whose
        account its pages are held too."""
        if digest is None:
            return
        if digest not in self._pages:
            while not self._table.has_room():
                assert self.evict(keep=digest), "more adapters run at once than the table has rows for"
            self._pages[digest] = self._arena.allocate_adapter(self._table.pages_needed(digest))
            self._table.place(digest, self._pages[digest])
        self._pins[digest] += 1
        self._arena.retain(self._pages[digest], holder)

    def leave(self, digest: str | None, holder: str) -> None:
        """Undo one `join`. It stays resident until its pages are wanted."""
        if digest is None:
            return
        assert self._pins[digest] > 0, f"adapter {digest} is not pinned"
        self._pins[digest] -= 1
        if not self._pins[digest]:
            del self._pins[digest]
        self._arena.release(self._pages[digest], holder)

    def evict(self, keep: str | None) -> bool:
        """Drop the least recently used adapter that no running request uses, except `keep`. False: there is none."""
        for digest in self._table.resident():
            if digest != keep and not self._pins[digest]:
                self.remove(digest)
                return True
        return False

    def remove(self, digest: str) -> None:
        """Drop it from the arena. Nobody running uses it."""
        assert not self._pins[digest], f"adapter {digest} is in use"
        if self._pages.pop(digest, None) is not None:
            self._arena.free_adapter(self._table.remove(digest))

    def held_pages(self) -> Counter[int]:
        """Page → times held through pins, for integrity checks."""
        return Counter(page for digest, pins in self._pins.items() for page in self._pages[digest] * pins)
