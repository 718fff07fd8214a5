"""Requests that are owed their run, because they were preempted as often as their tier allows: such a request can join
and grow inside its tier's floor, whatever adapters, pins and other tiers hold."""

from __future__ import annotations

import msgspec
import pytest

from engine.protocol.tiers import Tier, check_tiers
from engine.step import Sequence
from support.engine.scheduler_auditor import House


def pair(floor: float) -> tuple[Tier, ...]:
    return (
        Tier(name="a", service_tier="priority", preemptible=False),
        Tier(name="b", service_tier="default", floor=floor, preemptions_max=1),
    )


def three(*floors: float) -> tuple[Tier, ...]:
    top, middle = pair(0.0)
    return (
        msgspec.structs.replace(top, floor=floors[0]),
        msgspec.structs.replace(middle, floor=floors[1]),
        Tier(name="c", service_tier="flex", floor=floors[2]),
    )


@pytest.mark.parametrize(("prompt", "made", "other", "first"), [(100, 10, 28, 8), (104, 10, 12, 5)])
def test_an_owed_request_runs_although_its_adapter_takes_more_pages_than_before(
    prompt: int, made: int, other: int, first: int
) -> None:
    """Its adapter shared a page with another one; both are evicted, and alone it needs its own page."""
    adapters = {"big": ("base", 3), "small": ("base", 1)}
    house = House(tiers=pair(0.25), pages=40, step_tokens_max=200, prefill_tokens_min=16, adapters=adapters)
    house.submit(8, 2, tier="b", adapter="big")
    house.submit(other, 60, tier="b", share="other")
    low = house.submit(8, 33, tier="b", adapter="small")
    house.run(first)
    house.submit(prompt, made, tier="a", namespace="f")
    house.run(400)
    assert low.preemptions
    assert len(low.output_ids) == 33
    house.check_the_end()


def test_pinned_adapters_leave_what_the_floors_promise() -> None:
    house = House(tiers=three(0.0, 0.5, 0.5), pages=40, adapters={"p": ("base", 40)})
    message = house.scheduler.pin_adapter("p", True)
    assert message == "pinned adapters would take 10 pages; their limit is 0, as floors promise 40 of 40"
    house = House(tiers=three(0.0, 0.4, 0.4), pages=40, adapters={"p": ("base", 32), "q": ("base", 4)})
    assert house.scheduler.pin_adapter("p", True) == ""
    assert "their limit is 8" in house.scheduler.pin_adapter("q", True)


def test_a_pinned_adapter_does_not_come_into_pages_that_a_floor_lacks() -> None:
    house = House(tiers=three(0.0, 0.4, 0.4), pages=40, adapters={"p": ("base", 32)}, step_tokens_max=200)
    house.submit(29, 4, tier="a")  # takes the 8 pages that no floor promises
    house.run(1)
    house.pin("p", True)
    house.run(2)
    assert house.table.resident() == []
    house.run()
    house.submit(4, 1, adapter="p", tier="b")
    house.run()
    assert house.table.resident() == ["p"]


def test_a_request_that_could_never_fit_beside_the_pinned_adapters_is_refused() -> None:
    house = House(tiers=three(0.0, 0.2, 0.2), pages=40, adapters={"p": ("base", 40)})
    fits = house.sequence(119, 2, tier="c")  # 30 pages
    assert house.offer(fits) is None
    house.abort(fits)
    house.pin("p", True)
    assert house.offer(house.sequence(119, 2, tier="c")) is None
    refusal = house.offer(house.sequence(123, 2, tier="c"))
    assert refusal is not None
    assert refusal.message == "the request needs 31 pages; its tier can have 30"
    own = house.offer(house.sequence(119, 2, tier="c", adapter="p"))
    assert own is None, "its adapter's pages are not counted twice"


@pytest.mark.parametrize("wait", [20, 24, 28])
def test_an_owed_request_takes_pages_of_adapters_that_higher_tiers_wait_for(wait: int) -> None:
    tiers = three(0.4, 0.4, 0.2)
    adapters = dict.fromkeys(("q1", "q2", "q3"), ("base", 28))
    house = House(
        tiers=tiers, pages=40, sequences_max=12, step_tokens_max=200, prefill_tokens_min=16, adapters=adapters
    )
    other = house.submit(88, 30, tier="b", share="o")
    low = house.submit(8, 56, tier="b")
    house.run(3)
    house.submit(40, 1, tier="a", namespace="f")
    house.run(2)
    house.abort(other)
    house.run(2)
    for name in adapters:
        house.submit(4, 1, tier="c", adapter=name)
        house.run(2)
    for step in range(60):
        if step >= wait and low.pages and low.computed == len(low.pages) * 4:
            for name in house.table.resident():
                house.submit(8, 1, tier="a", adapter=name)
            break
        house.run(1)
    house.run()
    assert low.preemptions
    assert len(low.output_ids) == 56
    house.check_the_end()


def test_an_owed_request_waits_once_more_for_pages_that_a_higher_tier_shared_with_its_own() -> None:
    """Tier b's floor counted pages of a prefix that tier a, which cannot be preempted, holds too. When b's other
    request has ended, only a holds them."""
    house = House(tiers=three(0.0, 0.5, 0.0), pages=20, step_tokens_max=200, prefill_tokens_min=16)
    prefix = list(range(20))  # 5 pages

    def submit(tail: int, made: int, tier: str, share: str) -> Sequence:
        return house.submit([*prefix, tail], made, tier=tier, share=share, namespace="n")

    submit(0, 1, "b", "x")
    house.run()
    shared = submit(1, 8, "b", "x")
    owed = house.submit(4, 16, tier="b", share="y", namespace="m")
    house.run(2)
    long = submit(2, 16, "a", "z")
    house.run(1)
    house.submit(4, 20, tier="a", namespace="q")
    house.run()
    for sequence in (shared, owed, long):
        assert len(sequence.output_ids) == sequence.max_tokens
    house.check_the_end()


def test_a_tier_that_could_never_run_takes_no_requests() -> None:
    """The floors take all places, so a tier without a floor that cannot be preempted gets none."""
    rigid = Tier(name="c", service_tier="flex", preemptible=False)
    house = House(tiers=(*three(0.2, 0.8, 0.0)[:2], rigid), pages=8, sequences_max=5)
    refusal = house.offer(house.sequence(1, 1, tier="c"))
    assert refusal is not None
    assert refusal.message == "tier c cannot run: the floors of other tiers take all sequence slots"


def test_floors_that_add_up_to_one_but_for_rounding() -> None:
    floors = (0.05, 0.55, 0.3, 0.1)
    assert sum(floors) > 1
    check_tiers([Tier(name=name, service_tier=name, floor=floor) for name, floor in zip("abcd", floors, strict=True)])
    with pytest.raises(ValueError, match="add up to"):
        check_tiers(three(0.7, 0.2, 0.11))
