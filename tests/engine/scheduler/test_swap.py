"""Swap to host memory: what is copied, when it is worth it, and what comes back. The auditor's memory betrays any slot
or page that was overwritten meanwhile."""

from __future__ import annotations

import pytest

from engine.memory.arena import Arena
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.cost_model import CostModels
from engine.scheduler.swap import Swap
from engine.step import Sequence
from support.engine.scheduler_auditor import House, uninterrupted

TIERS = (Tier(name="premium", service_tier="p", preemptible=False), SHIPPED_TIERS[2])


def evicting(**changes: object) -> House:
    """One place and 12 pages of 4 tokens: what a preempted batch request leaves is evicted by the one that follows."""
    return House(**({"pages": 12, "sequences_max": 1, "tiers": TIERS, "host_slots": 12} | changes))  # type: ignore[arg-type]


def preempt(house: House, tokens: int = 44) -> Sequence:
    """By a premium request of so many tokens, which has run its first step then."""
    urgent = house.submit(tokens, 2, tier="premium")
    while urgent.started_at is None:
        assert house.run(1)
    return urgent


def test_what_was_evicted_comes_back_and_is_not_computed_again() -> None:
    house = evicting()
    first = house.submit(16, 8, tier="batch")
    house.run(3)
    assert first.computed == 18
    preempt(house)
    assert house.slots.copied_out == 5, "its last page is half full"
    assert house.scheduler.swap.free_slots() == 7
    house.run()
    assert first.preemptions == 1
    assert (first.swapped_tokens, first.recomputed_tokens) == (18, 0)
    assert first.output_ids == uninterrupted(first)
    house.check_the_end()


def test_the_prefix_cache_comes_first() -> None:
    house = evicting(pages=200)
    first = house.submit(18, 10, tier="batch")
    house.run(4)
    preempt(house, tokens=18)
    house.run()
    assert (house.slots.copied_out, house.slots.copied_in) == (6, 1), "five full pages were still there"
    assert (first.swapped_tokens, first.recomputed_tokens) == (1, 0)
    house.check_the_end()


def test_only_what_nobody_shares_is_copied() -> None:
    house = House(pages=40, sequences_max=2, tiers=TIERS, host_slots=40)
    prompt = list(range(20))
    stays = house.submit([*prompt, 1], 30, tier="batch")
    house.run(1)
    goes = house.submit([*prompt, 2, 3, 4], 30, tier="batch")
    house.run(3)
    assert goes.pages[:5] == stays.pages[:5]
    preempt(house, tokens=4)
    assert (stays.preemptions, goes.preemptions) == (0, 1)
    assert house.slots.copied_out == 2, "of its 7 pages, 5 are shared"
    house.run()
    assert goes.recomputed_tokens == 0
    house.check_the_end()


def test_what_follows_on_a_page_that_is_gone_is_computed_again() -> None:
    """Shared when it was preempted, its first pages were not copied; then they were evicted."""
    house = House(pages=14, sequences_max=2, tiers=TIERS, host_slots=14)
    prompt = list(range(8))
    other = house.submit([*prompt, 1], 6, tier="batch")
    house.run(1)
    goes = house.submit([*prompt, 2, 3, 4, 5], 6, tier="batch")
    house.run(2)
    preempt(house, tokens=4)
    assert (other.preemptions, goes.preemptions) == (0, 1)
    assert house.slots.copied_out == 2
    house.abort(other)
    preempt(house, tokens=45)
    assert goes.pages == []
    house.run()
    assert (goes.swapped_tokens, house.slots.copied_in) == (0, 0)
    assert goes.recomputed_tokens > 8
    assert goes.output_ids == uninterrupted(goes)
    house.check_the_end()


@pytest.mark.parametrize(("slots", "copied"), [(4, 0), (5, 5)])
def test_all_of_it_goes_or_nothing(slots: int, copied: int) -> None:
    house = evicting(host_slots=slots)
    first = house.submit(16, 8, tier="batch")
    house.run(3)
    preempt(house)
    assert house.slots.copied_out == copied
    house.run()
    assert bool(first.recomputed_tokens) == (not copied)
    house.check_the_end()


def test_an_ending_frees_the_slots() -> None:
    house = evicting()
    first = house.submit(16, 8, tier="batch")
    house.run(3)
    urgent = preempt(house)
    assert house.scheduler.swap.free_slots() == 7
    house.abort(first)
    assert house.scheduler.swap.free_slots() == 12
    house.run()
    assert urgent.output_ids == uninterrupted(urgent)
    assert house.slots.copied_in == 0
    house.check_the_end()


def test_it_goes_out_and_comes_back_as_often_as_it_is_preempted() -> None:
    house = evicting()
    first = house.submit(16, 24, tier="batch")
    for _ in range(3):
        house.run(3)
        preempt(house)
        while not first.pages:
            assert house.run(1)
    house.run()
    assert first.preemptions == 3
    assert first.recomputed_tokens == 0
    assert first.swapped_tokens > 3 * 16
    assert first.output_ids == uninterrupted(first)
    house.check_the_end()


def test_a_step_in_flight_is_copied_too() -> None:
    """The id that it draws is known only after the copy was begun; its KV is computed on return."""
    house = evicting(steps_ahead=1)
    first = house.submit(16, 8, tier="batch")
    house.run(3)  # a fourth is in flight
    preempt(house)
    house.run()
    assert (first.swapped_tokens, first.recomputed_tokens) == (19, 0)
    assert first.output_ids == uninterrupted(first)
    house.check_the_end()


def test_who_ends_with_the_step_in_flight_is_not_copied() -> None:
    house = evicting(steps_ahead=1)
    first = house.submit(16, 2, tier="batch")
    house.run(1)  # the second step draws its last id
    preempt(house)
    house.run()
    assert first.preemptions == 1
    assert house.slots.copied_out == 0
    house.check_the_end()


@pytest.mark.parametrize(("copy_ms", "copied"), [(0.1, 5), (20.0, 0)])
def test_what_is_sooner_computed_again_is_not_copied(copy_ms: float, copied: int) -> None:
    house = evicting(page_copy_s=copy_ms / 1000, step_tokens_max=40)
    house.submit(16, 8, tier="batch")
    for tokens in (1, 32, 7, 24, 2, 30):  # two milliseconds a token of prefill, from now on known
        house.submit(tokens + 1, 1, tier="premium")
        step = house.schedule()
        assert step is not None
        house.complete(0.005 + 0.002 * sum(chunk.count for chunk in step.chunks if chunk.count > 1))
    before = house.slots.copied_out
    while not any(sequence.tier == "batch" and sequence.computed > 16 for sequence in house.running()):
        assert house.run(1)
    preempt(house)
    assert house.slots.copied_out - before == copied
    house.run()
    house.check_the_end()


def test_while_no_step_was_measured_nothing_is_copied() -> None:
    house = evicting(page_copy_s=1e-6, steps_ahead=1)
    first = house.submit(16, 8, tier="batch")
    house.schedule()
    house.submit(44, 2, tier="premium")
    house.schedule()
    assert (first.preemptions, house.slots.copied_out) == (1, 0)
    house.run()
    house.check_the_end()


def test_the_books_of_slots_are_checked() -> None:
    house = evicting()
    house.submit(16, 8, tier="batch")
    house.run(3)
    preempt(house)
    house.scheduler.swap._free.pop()
    with pytest.raises(AssertionError, match="a slot has two owners, or none"):
        house.scheduler.check_integrity()


def test_without_a_pool_there_are_no_slots() -> None:
    swap = Swap(None, Arena(4, 1), CostModels())
    assert (swap.slots, swap.free_slots()) == (0, 0)
    swap.check_integrity([])
