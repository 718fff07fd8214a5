"""Who gives way in the arena, by tier and by use; what stays, and what nobody asks for any more."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.fake.runner import FakeAdapters
from engine.memory.adapter_residency import AdapterResidency
from engine.memory.arena import Arena
from engine.memory.prefix_cache import PrefixCache
from engine.protocol.page_names import Chain
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from support.engine.scheduler_auditor import House, uninterrupted


@pytest.fixture
def adapters() -> FakeAdapters:
    table = FakeAdapters(pages_each=1, rows_max=2)
    table.models = dict.fromkeys("abcd", "m")
    return table


def test_a_full_table_evicts_the_least_recently_used_that_nobody_uses(adapters: FakeAdapters) -> None:
    arena = Arena(pages=10, page_bytes=1)
    residency = AdapterResidency(adapters, arena)
    residency.acquire_adapter("a", "tier")
    residency.acquire_adapter("b", "tier")
    residency.release_adapter("b", "tier")
    residency.acquire_adapter("c", "tier")
    assert adapters.resident() == ["a", "c"]
    assert arena.adapter_pages() == 2
    residency.release_adapter("a", "tier")
    residency.acquire_adapter("d", "tier")
    assert adapters.resident() == ["c", "d"]
    assert residency.counts().evicted_device == 2
    arena.check_integrity(residency.held_pages())
    residency.check_integrity(Counter())


def test_more_running_adapters_than_rows_is_our_own_mistake(adapters: FakeAdapters) -> None:
    residency = AdapterResidency(adapters, Arena(pages=10, page_bytes=1))
    residency.acquire_adapter("a", "tier")
    residency.acquire_adapter("b", "tier")
    with pytest.raises(AssertionError, match="table has rows for"):
        residency.acquire_adapter("c", "tier")


def used(residency: AdapterResidency, *digests: str) -> None:
    for digest in digests:
        residency.acquire_adapter(digest, "tier")
        residency.release_adapter(digest, "tier")


def test_an_adapter_that_a_higher_tier_waits_for_gives_way_to_no_lower_one() -> None:
    table = FakeAdapters(pages_each=1)
    table.models = dict.fromkeys("abc", "m")
    residency = AdapterResidency(table, Arena(pages=10, page_bytes=1))
    used(residency, "a", "b", "c")
    residency.add_waiting("a", 0, new=True)
    residency.add_waiting("b", 1, new=True)
    assert residency.evict_adapter(None, rank=2)
    assert table.resident() == ["a", "b"], "c was used last, and is the only one"
    assert not residency.evict_adapter(None, rank=2)
    assert residency.evict_adapter(None, rank=1)
    assert table.resident() == ["a"], "its own tier's gives way"
    residency.remove_waiting("a", 0)
    assert residency.evict_adapter(None, rank=2)
    residency.check_integrity(Counter({("b", 1): 1}))


def test_pinned_adapters_stay_and_leave_half_of_the_arena(adapters: FakeAdapters) -> None:
    adapters.adapters_max = 3
    arena = Arena(pages=4, page_bytes=1)
    residency = AdapterResidency(adapters, arena, sequences_max=1)
    assert residency.pin_adapter("a", True) == ""
    used(residency, "a", "b")
    assert residency.pin_adapter("b", True) == ""
    assert residency.pin_adapter("b", True) == ""
    assert residency.pin_adapter("c", True) == "pinned adapters would take 3 pages; their limit is 2"
    assert not residency.evict_adapter(None)
    arena.check_integrity(residency.held_pages())
    assert arena.idle_adapter_pages() == 0
    assert residency.pin_adapter("a", False) == ""
    assert residency.evict_adapter(None)
    assert adapters.resident() == ["b"]
    residency.forget_adapter("b")
    assert arena.free_pages() == 4
    adapters.adapters_max = 1
    assert residency.pin_adapter("a", True) == "0 adapters are pinned; the limit is 0"


def test_prefixes_and_adapters_go_in_the_order_in_which_they_were_used_last() -> None:
    table = FakeAdapters(pages_each=2)
    table.models = dict.fromkeys("ab", "m")
    arena = Arena(pages=8, page_bytes=1)
    cache = PrefixCache(arena, namespace_quota=1.0)
    residency = AdapterResidency(table, arena)

    def cached(name: str) -> int:
        chain = Chain("m", None, name, tokens_per_page=1)
        (page,) = arena.allocate(1, "tier")
        cache.publish(chain, lambda start, stop: list(range(start, stop)), 0, page)
        arena.release([page], "tier")
        return page

    first = cached("first")
    used(residency, "a")
    second = cached("second")
    used(residency, "b")
    assert arena.free_pages() == 2
    residency.evict_idle(3, None, rank=0)
    assert table.resident() == ["a", "b"], "the first prefix is older"
    taken = arena.allocate(3, "tier")
    assert first in taken
    residency.evict_idle(2, None, rank=0)
    assert table.resident() == ["b"], "a is older than the second prefix"
    taken += arena.allocate(2, "tier")
    residency.evict_idle(1, None, rank=0)
    assert table.resident() == ["b"]
    taken += arena.allocate(1, "tier")
    assert second in taken
    residency.evict_idle(1, None, rank=0)
    assert table.resident() == ["b"], "without any prefix nothing is traded"
    arena.check_integrity()


# ---- pinned


def test_a_pinned_one_comes_before_anybody_asks_one_after_another(adapters: FakeAdapters) -> None:
    adapters.adapters_max = 5
    arena = Arena(pages=10, page_bytes=1)
    residency = AdapterResidency(adapters, arena)
    assert not residency.has_background_loads
    for digest in "ab":
        assert residency.pin_adapter(digest, True) == ""
    assert residency.has_background_loads
    residency.poll_loads(hidden=False)
    assert adapters.resident() == ["a"]
    residency.poll_loads(hidden=False)
    assert adapters.resident() == ["a", "b"]
    assert not residency.has_background_loads
    assert not residency.evict_adapter(None)
    arena.check_integrity(residency.held_pages())
    residency.check_integrity(Counter())


def test_a_pinned_one_takes_the_pages_of_nobody_who_uses_them(adapters: FakeAdapters) -> None:
    """A full arena: it waits for a request, and stays from then on."""
    arena = Arena(pages=4, page_bytes=1)
    residency = AdapterResidency(adapters, arena)
    pages = arena.allocate(4, "tier")
    assert residency.pin_adapter("a", True) == ""
    residency.poll_loads(hidden=False)
    assert adapters.resident() == []
    assert not residency.has_background_loads
    arena.release(pages[:1], "tier")
    used(residency, "a")
    assert not residency.evict_adapter(None)
    residency.check_integrity(Counter())


def test_one_that_is_pinned_no_more_is_not_brought(adapters: FakeAdapters) -> None:
    residency = AdapterResidency(adapters, Arena(pages=4, page_bytes=1))
    residency.pin_adapter("a", True)
    residency.add_waiting("a", 0, new=True)
    residency.pin_adapter("a", False)
    assert not residency.has_background_loads
    residency.check_integrity(Counter({("a", 0): 1}))
    residency.remove_waiting("a", 0)
    residency.pin_adapter("b", True)
    residency.forget_adapter("b")
    assert not residency.has_background_loads
    residency.poll_loads(hidden=False)
    assert adapters.resident() == []


# ---- through the scheduler

FOUR = dict.fromkeys("abcd", ("base", 4))


def test_while_an_adapter_comes_others_pass_and_it_joins_when_it_is_there() -> None:
    house = House(adapters=FOUR, adapter_polls=3)
    first = house.submit(8, 4, adapter="a")
    then = [house.submit(8, 4) for _ in range(2)]
    house.run(2)
    assert first.started_at is None
    assert all(other.started_at is not None for other in then)
    house.run()
    assert first.output_ids == uninterrupted(first)
    assert house.scheduler.residency.counts().hits == {"device": 0, "host": 0, "disk": 1}
    again = house.submit(8, 4, adapter="a")
    house.run()
    assert again.output_ids == uninterrupted(again)
    assert house.scheduler.residency.counts().hits["device"] == 1
    house.check_the_end()


def test_a_load_that_failed_ends_all_who_wait_and_nobody_else() -> None:
    house = House(adapters=FOUR, adapter_polls=2)
    house.table.failing.add("a")
    lost = [house.submit(8, 4, adapter="a", tier=tier) for tier in ("premium", "batch")]
    kept = [house.submit(8, 4, adapter="b"), house.submit(8, 4)]
    house.run()
    for sequence in lost:
        ending = house.books[sequence.handle].ending
        assert ending is not None
        assert (ending.reason, ending.message) == ("error", "its adapter cannot be loaded: made to fail")
    assert all(sequence.output_ids == uninterrupted(sequence) for sequence in kept)
    assert house.scheduler.residency.counts().failures == 1
    house.check_the_end()


def test_one_place_on_the_way_goes_to_the_higher_tier_and_then_to_the_lower() -> None:
    house = House(adapters=FOUR, adapter_polls=2, adapter_places=1, sequences_max=2)
    low = house.submit(8, 2, adapter="a", tier="batch")
    high = house.submit(8, 2, adapter="b", tier="premium")
    while not low.started_at and not high.started_at:
        house.clock.now += 0.01
        house.schedule()
    house.run()
    assert [sequence.output_ids for sequence in (low, high)] == [uninterrupted(low), uninterrupted(high)]
    house.check_the_end()


# ---- distinct adapters are a resource

CALM = (Tier(name="calm", service_tier="c", ttft_base_ms=1000.0),)


def test_a_place_goes_to_whose_adapter_is_in_the_batch_while_the_first_has_hardly_waited() -> None:
    house = House(adapters=FOUR, tiers=CALM, sequences_max=2, pages=200)
    house.submit(4, 60, adapter="a")
    house.submit(4, 2, adapter="b")
    house.run(1)
    passed = house.submit(4, 20, adapter="c")
    friend = house.submit(4, 20, adapter="a")
    house.run(3)
    assert friend.started_at is not None
    assert passed.started_at is None
    house.clock.now += 0.25
    other = house.submit(4, 2, adapter="a")
    while passed.started_at is None:
        assert house.run(1)
    assert other.started_at is None, "it has waited a quarter of its target: nobody passes it now"
    house.run()
    house.check_the_end()


def test_the_shipped_tiers_pass_nobody_for_longer_than_a_quarter_of_their_target() -> None:
    assert all(0.25 * tier.ttft_base_ms / 1000 < tier.ageing_s for tier in SHIPPED_TIERS)


def test_a_lone_request_waits_with_its_copy_and_one_beside_others_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    house, seen = House(adapters=FOUR), list[bool]()
    ready = house.table.is_adapter_ready

    def asked(digest: str, *, hidden: bool) -> bool:
        seen.append(hidden)
        return ready(digest, hidden=hidden)

    monkeypatch.setattr(house.table, "is_adapter_ready", asked)
    house.submit(8, 2, adapter="a")
    house.run(1)
    assert seen[0], "nobody else waits for its copy"
    house.run()
    seen.clear()
    house.submit(8, 2, adapter="b")
    house.submit(8, 2)
    house.run(1)
    assert not seen[0]
