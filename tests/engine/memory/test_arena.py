"""The arena's books: every page has one owner, and a mistake is found, not carried on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.arena import Arena
from engine.memory.prefix_cache import PrefixCache
from engine.protocol.page_names import Chain


def cached_page(arena: Arena, cache: PrefixCache, first: int, namespace: str = "ns") -> int:
    """An idle cached page whose ids begin with `first`."""
    (page,) = arena.allocate(1, "a")
    cache.publish(Chain("m", None, namespace, 2), lambda start, stop: [first, first + 1][start:stop], 0, page)
    arena.release([page], "a")
    return page


def test_pages_are_handed_out_once_and_come_back() -> None:
    arena = Arena(4, 64)
    first, second = arena.allocate(3, "a"), arena.allocate(1, "b")
    assert len({*first, *second}) == 4
    assert arena.available() == arena.free_pages() == 0
    assert (arena.held("a"), arena.held("b"), arena.held("nobody")) == (3, 1, 0)
    arena.release(first, "a")
    assert arena.available() == 3
    arena.check_integrity(dict.fromkeys(second, 1))


def test_a_cached_page_is_shared_and_then_idle() -> None:
    arena = Arena(3, 64)
    cache = PrefixCache(arena)
    page = cached_page(arena, cache, 1)
    assert arena.available() == 3
    assert arena.free_pages() == 2
    arena.retain([page], "a")
    arena.retain([page], "a")
    arena.retain([page], "b")
    assert arena.held("a") == 1, "distinct pages"
    assert arena.references(page) == 3
    assert arena.available() == 2
    arena.check_integrity({page: 3})
    for holder in "aba":
        arena.release([page], holder)
    assert arena.available() == 3


def test_allocate_evicts_idle_cached_pages_only_when_none_is_free() -> None:
    arena = Arena(3, 64)
    cache = PrefixCache(arena)
    old, new = cached_page(arena, cache, 1), cached_page(arena, cache, 2)
    arena.allocate(1, "a")
    assert cache.pages() == 2
    assert arena.allocate(1, "a") == [old], "least recently used first"
    assert cache.pages() == 1
    assert arena.allocate(1, "a") == [new]
    arena.check_integrity()


def test_adapter_pages_are_held_and_given_back() -> None:
    arena = Arena(4, 64)
    pages = arena.allocate_adapter(2)
    assert (arena.adapter_pages(), arena.idle_adapter_pages(), arena.available()) == (2, 2, 2)
    arena.retain(pages, "premium")
    arena.retain(pages, "batch")
    assert arena.held("premium") == arena.held("batch") == 2
    assert arena.idle_adapter_pages() == 0
    arena.release(pages, "premium")
    arena.release(pages, "batch")
    assert arena.idle_adapter_pages() == 2
    assert arena.available() == 2, "not free until the table gives them back"
    arena.free_adapter(pages)
    assert arena.available() == 4
    arena.check_integrity({})


def test_mistakes_are_asserted() -> None:
    arena = Arena(3, 64)
    (page,) = arena.allocate(1, "a")
    with pytest.raises(AssertionError, match="available"):
        arena.allocate(3, "a")
    with pytest.raises(AssertionError, match="private"):
        arena.retain([page], "b")
    with pytest.raises(AssertionError, match="does not hold"):
        arena.release([page], "b")
    with pytest.raises(AssertionError, match="not ADAPTER"):
        arena.free_adapter([page])
    arena.release([page], "a")
    with pytest.raises(AssertionError, match="does not hold"):
        arena.release([page], "a")
    with pytest.raises(AssertionError, match="is free"):
        arena.retain([page], "a")
    held = arena.allocate_adapter(1)
    arena.retain(held, "a")
    with pytest.raises(AssertionError, match="while held"):
        arena.free_adapter(held)


@pytest.mark.parametrize(("pages", "page_bytes"), [(0, 1), (1, 0), (-1, 1)])
def test_an_empty_arena_is_refused(pages: int, page_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        Arena(pages, page_bytes)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda arena, page: arena._free.append(page), "free at once"),
        (lambda arena, page: arena._free.append(arena._free[-1]), "twice in the free list"),
        (lambda arena, page: arena._free.pop(), "or neither"),
        (lambda arena, page: arena._references.__setitem__(page, 2), "2 references"),
        (lambda arena, page: arena._held["a"].pop(page), "1 references"),
        (lambda arena, page: setattr(arena, "_adapter_pages", 1), "adapter pages"),
    ],
)
def test_check_integrity_finds_what_is_wrong(damage, found: str) -> None:
    arena = Arena(3, 64)
    (page,) = arena.allocate(1, "a")
    arena.check_integrity({page: 1})
    damage(arena, page)
    with pytest.raises(AssertionError, match=found):
        arena.check_integrity()


def test_check_integrity_compares_with_the_holders() -> None:
    arena = Arena(3, 64)
    (page,) = arena.allocate(1, "a")
    with pytest.raises(AssertionError, match="1 references, the sequences count 0"):
        arena.check_integrity({})
    with pytest.raises(AssertionError, match="the sequences count 2"):
        arena.check_integrity({page: 2})


@settings(max_examples=200, deadline=None)
@given(data=st.data(), size=st.integers(1, 12))
def test_any_order_of_operations_keeps_the_books(data: st.DataObject, size: int) -> None:
    """Against a ledger of the test's own: private pages, shared pages by holder, adapter pages."""
    arena = Arena(size, 1)
    cache = PrefixCache(arena)
    private: dict[int, str] = {}
    shared: list[tuple[int, str]] = []
    adapters: list[int] = []
    named: dict[int, int] = {}  # id that names it → page
    for serial in range(data.draw(st.integers(1, 40))):
        holder = data.draw(st.sampled_from("ab"))
        match data.draw(st.sampled_from(["allocate", "publish", "retain", "release", "adapter", "back"])):
            case "allocate" if arena.available():
                (page,) = arena.allocate(1, holder)
                assert page not in {*private, *(p for p, _ in shared), *adapters}
                named = {name: other for name, other in named.items() if other != page}
                private[page] = holder
            case "publish" if private:
                page = data.draw(st.sampled_from(sorted(private)))
                chain = Chain("m", None, "ns", 1)
                cache.publish(chain, lambda start, stop, serial=serial: [serial], 0, page)
                named[serial] = page
                shared.append((page, private.pop(page)))
            case "retain" if named:
                name = data.draw(st.sampled_from(sorted(named)))
                found = cache.match(Chain("m", None, "ns", 1), lambda start, stop, name=name: [name], 1)
                if found:  # else it was evicted for an adapter
                    assert found == [named[name]]
                    arena.retain(found, holder)
                    shared.append((found[0], holder))
            case "release" if private or shared:
                page, owner = data.draw(st.sampled_from([*private.items(), *shared]))
                arena.release([page], owner)
                if page in private:
                    del private[page]
                else:
                    shared.remove((page, owner))
            case "adapter" if arena.available():
                adapters += arena.allocate_adapter(1)
            case "back" if adapters:
                arena.free_adapter([adapters.pop()])
        references = dict.fromkeys(private, 1)
        for page, _ in shared:
            references[page] = references.get(page, 0) + 1
        arena.check_integrity(references)
        cache.check_integrity()
        assert arena.available() == size - len(references) - len(adapters)
        for owner in "ab":
            held = {p for p, o in [*private.items(), *shared] if o == owner}
            assert arena.held(owner) == len(held)
