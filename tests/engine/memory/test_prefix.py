"""Names of pages, who may find them, and in which order they are evicted."""

from __future__ import annotations

import itertools

import pytest

from engine.memory.arena import Arena
from engine.memory.prefix_cache import PrefixCache
from engine.protocol.page_names import Chain

PAGE_TOKENS = 4


def chain(namespace: str = "ns", adapter: str | None = None, model: str = "m") -> Chain:
    return Chain(model, adapter, namespace, PAGE_TOKENS)


class House:
    def __init__(self, pages: int = 16, quota: float = 1.0) -> None:
        self.arena = Arena(pages, 1)
        self.cache = PrefixCache(self.arena, quota)

    def put(self, ids: list[int], names: Chain) -> list[int]:
        """Publish all full pages of `ids`, and let go of them."""
        pages = self.arena.allocate(len(ids) // PAGE_TOKENS, "a")
        for index, page in enumerate(pages):
            self.cache.publish(names, lambda start, stop: ids[start:stop], index, page)
        self.arena.release(reversed(pages), "a")
        self.cache.check_integrity()
        return pages

    def find(self, ids: list[int], names: Chain, pages_max: int = 99) -> list[int]:
        pages_max = min(pages_max, len(ids) // PAGE_TOKENS)
        return self.cache.match(names, lambda start, stop: ids[start:stop], pages_max)


def ids(start: int, pages: int) -> list[int]:
    return list(range(start, start + pages * PAGE_TOKENS))


def test_the_longest_known_prefix_is_found() -> None:
    house = House()
    pages = house.put(ids(0, 3), chain())
    assert house.find(ids(0, 3), chain()) == pages
    assert house.find(ids(0, 5), chain()) == pages
    assert house.find(ids(0, 2), chain()) == pages[:2]
    assert house.find(ids(0, 3), chain(), pages_max=1) == pages[:1]
    assert house.find(ids(0, 1) + ids(90, 2), chain()) == pages[:1]
    assert house.find(ids(1, 3), chain()) == []


def test_equal_pages_after_different_beginnings_are_different() -> None:
    house = House()
    house.put(ids(0, 1) + ids(50, 1), chain())
    assert house.find(ids(8, 1) + ids(50, 1), chain()) == []
    assert house.find(ids(50, 1), chain()) == []


def test_nothing_is_shared_across_models_adapters_or_namespaces() -> None:
    house = House(pages=64)
    roots = list(itertools.product(["m", "n"], [None, "d1", "d2"], ["x", "y"]))
    pages = [house.put(ids(0, 2), Chain(*root, PAGE_TOKENS)) for root in roots]
    assert len({page for found in pages for page in found}) == 2 * len(roots)
    for root, expected in zip(roots, pages, strict=True):
        assert house.find(ids(0, 2), Chain(*root, PAGE_TOKENS)) == expected


def test_a_root_cannot_be_forged_by_moving_a_border() -> None:
    one, other = Chain("m", "ab", "c", PAGE_TOKENS), Chain("m", "a", "bc", PAGE_TOKENS)
    names = [c.name(0, lambda start, stop: ids(0, 1)) for c in (one, other)]
    assert names[0] != names[1]


def test_an_equal_page_stays_private() -> None:
    house = House()
    first = house.put(ids(0, 1), chain())
    second = house.put(ids(0, 1), chain())
    assert second != first
    assert house.find(ids(0, 1), chain()) == first
    assert house.arena.free_pages() == 15, "the second was freed, not kept"


def test_eviction_takes_the_least_recently_used_and_a_chain_from_its_end() -> None:
    house = House(pages=4)
    first, second = house.put(ids(0, 2), chain()), house.put(ids(50, 2), chain())
    house.arena.retain(first, "a")  # used again
    house.arena.release(reversed(first), "a")
    taken = [page for _ in range(4) for page in house.arena.allocate(1, "a")]
    assert taken == [second[1], second[0], first[1], first[0]]
    assert house.cache.pages() == 0


def test_held_pages_are_never_evicted() -> None:
    house = House(pages=2)
    (page,) = house.put(ids(0, 1), chain())
    house.arena.retain([page], "a")
    house.arena.allocate(1, "b")
    assert house.arena.available() == 0
    assert house.find(ids(0, 1), chain()) == [page]


@pytest.mark.parametrize(("quota", "evicted"), [(0.5, "noisy"), (1.0, "quiet")])
def test_a_namespace_over_its_quota_is_evicted_first(quota: float, evicted: str) -> None:
    house = House(pages=8, quota=quota)
    quiet = house.put(ids(0, 2), chain("quiet"))  # used least recently
    noisy = house.put(ids(50, 6), chain("noisy"))
    assert house.arena.allocate(1, "a")[0] in {"noisy": noisy, "quiet": quiet}[evicted]
    house.arena.allocate(1, "a")
    house.cache.check_integrity()
    # Back at its quota, it is treated like everybody else.
    assert house.arena.allocate(1, "a")[0] in (quiet if quota == 0.5 else noisy)


def test_a_quota_is_a_share() -> None:
    with pytest.raises(ValueError, match="part of the arena"):
        PrefixCache(Arena(4, 1), 1.5)


def test_only_full_pages_have_names() -> None:
    with pytest.raises(AssertionError, match="full pages"):
        chain().name(0, lambda start, stop: [1, 2, 3])


def test_check_integrity_finds_a_page_freed_behind_its_back() -> None:
    house = House()
    (page,) = house.put(ids(0, 1), chain())
    house.cache._idle.pop(page)
    with pytest.raises(AssertionError, match="idle"):
        house.cache.check_integrity()
