"""The prefix cache: full pages of KV, found by the names of `engine.protocol.page_names`.

It knows neither a sequence's state nor the tenant of a namespace.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol

from engine.memory.arena import Arena
from engine.protocol.page_names import Chain

# A namespace with more than this part of the arena has its idle pages evicted first.
NAMESPACE_QUOTA = 0.25


class PageObserver(Protocol):
    """Is notified of every change of the cached names. It must not call the cache."""

    def note_added(self, name: bytes) -> None: ...

    def note_removed(self, name: bytes) -> None: ...


class PrefixCache:
    """Names of the arena's cached pages. A cached page is immutable. Held pages are shared; idle pages can be evicted:
    first the pages of a namespace over its quota, then the least recently used."""

    def __init__(self, arena: Arena, namespace_quota: float = NAMESPACE_QUOTA) -> None:
        if not 0 <= namespace_quota <= 1:
            raise ValueError(f"a namespace's quota is a part of the arena between 0 and 1, not {namespace_quota:g}")
        self.observer: PageObserver | None = None
        self.queries = 0  # prompt tokens looked up
        self.hits = 0  # prompt tokens found
        self.queries_of_model: Counter[str] = Counter()
        self.hits_of_model: Counter[str] = Counter()
        self._arena = arena
        self._quota = int(namespace_quota * arena.pages)
        self._pages: dict[bytes, int] = {}
        self._names: dict[int, tuple[bytes, str]] = {}  # page → name, namespace
        self._idle: OrderedDict[int, int] = OrderedDict()  # page → the arena's time since; least recently used first
        self._idle_of: dict[str, OrderedDict[int, int]] = {}  # namespace → page → the arena's time since
        self._count_of: dict[str, int] = {}  # namespace → its pages, held or idle
        self.labels = array("H", bytes(2 * arena.pages))  # page → label of the chain that published it
        self._labelled: Counter[int] = Counter()  # label → pages
        self._over: dict[str, None] = {}  # namespaces over their quota: fewer than 1 / quota
        arena.attach(self)

    def match(self, chain: Chain, tokens: Callable[[int, int], list[int]], pages_max: int) -> list[int]:
        """The cached pages of the longest known prefix, at most `pages_max`. The caller retains them before any other
        call."""
        found: list[int] = []
        while len(found) < pages_max:
            page = self._pages.get(chain.name(len(found), tokens))
            if page is None:
                break
            found.append(page)
        return found

    def looked_up(self, model: str, tokens: int, found: int) -> None:
        """Count a prompt of `tokens` tokens, `found` of them cached."""
        self.queries += tokens
        self.hits += found
        self.queries_of_model[model] += tokens
        self.hits_of_model[model] += found

    def publish(self, chain: Chain, tokens: Callable[[int, int], list[int]], index: int, page: int) -> None:
        """Enter `page`, whose KV is computed and whose ids are known, as page `index` of the chain. If an equal page is
        cached, `page` remains private."""
        name = chain.name(index, tokens)
        if name in self._pages:
            return
        self._arena.publish(page)
        self._pages[name] = page
        self._names[page] = (name, chain.namespace)
        self.labels[page] = chain.label
        self._labelled[chain.label] += 1
        self._count_pages(chain.namespace, 1)
        if self.observer is not None:
            self.observer.note_added(name)

    def page_names(self) -> list[bytes]:
        """The names of all cached pages."""
        return list(self._pages)

    def pages(self) -> int:
        """Cached pages, held or idle."""
        return len(self._names)

    def idle_pages(self) -> int:
        return len(self._idle)

    # ---- the arena's Evictor

    def became_idle(self, page: int) -> None:
        self._idle[page] = self._arena.now
        self._idle_of.setdefault(self._names[page][1], OrderedDict())[page] = self._arena.now

    def became_held(self, page: int) -> None:
        del self._idle[page]
        namespace = self._names[page][1]
        pages = self._idle_of[namespace]
        del pages[page]
        if not pages:
            del self._idle_of[namespace]

    def evict(self) -> int:
        page = next(iter(self._victims()))
        self._forget_page(page)
        return page

    def oldest(self) -> int | None:
        victims = self._victims()
        return 0 if victims is not self._idle else next(iter(victims.values()), None)

    def forget_label(self, label: int) -> None:
        """Free the idle pages of a label. Held pages remain: requests of an equal content share them."""
        pages = [page for page in self._idle if self.labels[page] == label]
        for page in pages:
            self._forget_page(page)
        self._arena.free_cached(pages)

    def labelled(self, label: int) -> int:
        """Pages with this label."""
        return self._labelled[label]

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        assert +self._labelled == Counter(self.labels[page] for page in self._names)
        assert {page: name for name, page in self._pages.items()} == {p: n for p, (n, _) in self._names.items()}
        assert all(self._arena.is_cached(page) for page in self._names), "a named page is not cached"
        idle = {page for page in self._names if not self._arena.references(page)}
        assert set(self._idle) == idle, "the idle pages are not those without a holder"
        by_namespace = {page for pages in self._idle_of.values() for page in pages}
        assert by_namespace == idle, "the namespaces' idle pages are not the idle pages"
        assert self._count_of == Counter(namespace for _, namespace in self._names.values())
        assert set(self._over) == {n for n, count in self._count_of.items() if count > self._quota}

    def _forget_page(self, page: int) -> None:
        self.became_held(page)
        name, namespace = self._names.pop(page)
        del self._pages[name]
        self._labelled[self.labels[page]] -= 1
        self._count_pages(namespace, -1)
        if self.observer is not None:
            self.observer.note_removed(name)

    def _victims(self) -> OrderedDict[int, int]:
        """The idle pages to evict from, least recently used first."""
        for namespace in self._over:
            if namespace in self._idle_of:
                return self._idle_of[namespace]
        return self._idle

    def _count_pages(self, namespace: str, change: int) -> None:
        count = self._count_of.get(namespace, 0) + change
        self._count_of[namespace] = count
        if count > self._quota:
            self._over[namespace] = None
        else:
            self._over.pop(namespace, None)
        if not count:
            del self._count_of[namespace]
