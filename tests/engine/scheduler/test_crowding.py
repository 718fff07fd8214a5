"""Which shares crowd a tier, and what that changes: how much of a step their prefill takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from engine.protocol.tiers import Tier
from engine.scheduler.crowding import HALF_LIFE_S, Crowding
from engine.step import Step
from support.engine.scheduler_auditor import House

QUIET = ("b", "c", "d", "e")


def served(tokens: dict[str, float]) -> Crowding:
    crowding = Crowding()
    for share, count in tokens.items():
        crowding.note_served(share, count)
    return crowding


@pytest.mark.parametrize(
    ("tokens", "crowd"),
    [
        ({}, ""),
        ({"a": 1000}, ""),  # alone
        ({"a": 99, "b": 1}, "a"),  # over nine tenths of all, as two shares cannot have twice their mean
        ({"a": 98, "b": 1, "c": 1}, "a"),
        ({"a": 80, "b": 20}, ""),
        ({"a": 950, **{f"s{i}": 5 for i in range(10)}}, "a"),  # each of the ten has half a hundredth
        ({"a": 1000, "b": 1000}, ""),
        ({"a": 3900, "b": 1000, "c": 1000, "d": 1000}, "a"),  # over 2 x 1,725
        ({"a": 2900, "b": 1000, "c": 1000, "d": 1000}, ""),  # not over 2 x 1,475
        ({"a": 3900, "b": 3900, **{f"s{i}": 100 for i in range(10)}}, "ab"),
    ],
)
def test_a_share_crowds_that_had_over_twice_the_mean(tokens: dict[str, float], crowd: str) -> None:
    assert served(tokens).shares(1.0) == frozenset(crowd)


def test_a_share_that_asks_counts_though_nothing_of_it_was_served() -> None:
    crowding = served({"a": 2000})
    assert not crowding.shares(1.0), "it is alone"
    crowding.note_request("b")
    assert crowding.shares(1.1) == {"a"}, "found before the next second"
    assert not crowding.heavy(1.1)
    assert not crowding.shares(1.0 + 3 * HALF_LIFE_S), "b has not asked since"


def test_many_requests_do_not_make_a_share_look_served() -> None:
    crowding = served({"a": 100})
    for _ in range(10_000):
        crowding.note_request("b")
    assert crowding.shares(1.0) == {"a"}


def test_shares_that_only_ask_do_not_make_others_crowd_heavily() -> None:
    """Beside shares of under a hundredth a crowding share loses few places: a tenant cannot take most places of a
    larger one with tiny requests."""
    light = served({"a": 700, "b": 295, "c": 5})
    assert light.shares(1.0) == {"a"}
    assert not light.heavy(1.0)
    assert served({"a": 700, "b": 150, "c": 150}).heavy(1.0) == {"a"}


def test_what_was_long_ago_is_forgotten() -> None:
    crowding = served({"a": 64_000, **dict.fromkeys(QUIET, 1000)})
    assert crowding.shares(1.0) == {"a"}
    now = 1.0
    while crowding.shares(now):
        for share in QUIET:
            crowding.note_served(share, 1000)
        now += HALF_LIFE_S
    assert now < 6 * HALF_LIFE_S
    assert not crowding.shares(now + 100 * HALF_LIFE_S)
    assert not crowding._recent, "or it would grow with every share there ever was"


def counts(step: Step | None) -> dict[str, int]:
    assert step is not None
    return {chunk.sequence.share: chunk.count for chunk in step.chunks}


def crowded(step_tokens_max: int = 64, prefill_tokens_min: int = 4, **changes: float) -> House:
    """A house in which share `a` was served ten times as much as the others."""
    patient: dict[str, Any] = {"inter_token_ms": 3_600_000.0, "ttft_base_ms": 3_600_000.0}
    tier = Tier(name="t", service_tier="t", floor=0.5, **(patient | changes))
    house = House(
        tiers=(tier,),
        step_tokens_max=step_tokens_max,
        prefill_tokens_min=prefill_tokens_min,
        pages=400,
        sequences_max=8,
    )
    for share in ("a", *QUIET):
        house.submit(200 if share == "a" else 20, 1, share=share)
    house.run()
    house.clock.now += 2.0
    return house


def test_a_share_that_crowds_prefills_a_quarter_of_a_step_and_others_all_of_it() -> None:
    house = crowded()
    house.submit(200, 1, share="a")
    assert counts(house.schedule()) == {"a": 16}
    house.complete()
    house.submit(100, 1, share="b")
    assert counts(house.schedule()) == {"b": 64}, "before it, and the quarter is taken"
    house.complete()
    assert counts(house.schedule()) == {"b": 36}
    house.complete()
    house.submit(10, 1, share="c")
    assert counts(house.schedule()) == {"c": 10, "a": 6}
    house.complete()
    house.run()
    house.check_the_end()


def test_a_tier_may_keep_nothing_from_a_share_that_crowds_it() -> None:
    house = crowded(crowd_part=1.0)
    house.submit(200, 1, share="a")
    assert counts(house.schedule()) == {"a": 64}
    house.complete()
    house.run()
    house.check_the_end()


def test_a_share_that_crowds_prefills_at_least_what_the_floor_promises_its_tier() -> None:
    house = crowded(prefill_tokens_min=50)
    house.submit(200, 1, share="a")
    assert counts(house.schedule()) == {"a": 25}, "half of 50"
    house.complete()
    house.run()
    house.check_the_end()


def test_shares_that_crowd_have_a_quarter_of_the_places_and_nobody_waits_behind_them() -> None:
    house = crowded()
    for _ in range(4):
        house.submit(5, 20, share="a")
    house.submit(30, 20, share="b")
    assert counts(house.schedule()) == {"b": 30}, "it came last, and is first: a's prefill has a quarter of the step"
    house.complete()
    for _ in range(3):
        house.schedule()
        house.complete()
    running = [entry.sequence.share for entry in house.scheduler._capacity.running[0]]
    assert sorted(running) == ["a", "a", "b"], "two of eight places"
    house.run()
    house.check_the_end()


def test_a_share_that_waited_too_long_takes_a_place_beyond_the_quarter() -> None:
    house = crowded(ageing_s=50.0)
    for _ in range(3):
        house.submit(5, 1000, share="a")
    for _ in range(3):
        house.schedule()
        house.complete()
    assert house.scheduler.running == 2
    house.clock.now += 51.0
    assert house.scheduler._queues[0]._crowding.shares(house.clock.now) == {"a"}, "it still crowds"
    house.schedule()
    house.complete()
    assert house.scheduler.running == 3
    house.run()
    house.check_the_end()


def test_decodes_of_a_share_that_crowds_wait_a_step_for_prefill_of_others_and_never_two() -> None:
    house = crowded()
    house.submit(5, 20, share="a")
    house.schedule()
    house.complete()
    house.submit(150, 20, share="b")
    assert counts(house.schedule()) == {"b": 64}
    house.complete()
    assert counts(house.schedule()) == {"a": 1, "b": 63}, "left out once"
    house.complete()
    assert counts(house.schedule()) == {"b": 23}
    house.complete()
    assert counts(house.schedule()) == {"a": 1, "b": 1}
    house.complete()
    house.submit(10, 1, share="a")
    assert counts(house.schedule())["a"] == 10
    house.complete()
    house.run()
    house.check_the_end()


def eight_places(crowd_part: float, **changes: Any) -> House:
    tier = Tier(
        name="t", service_tier="t", floor=0.5, crowd_part=crowd_part, inter_token_ms=3.6e6, ttft_base_ms=3.6e6,
        **changes,
    )  # fmt: skip
    return House(tiers=(tier,), pages=2000, sequences_max=8, step_tokens_max=64)


def fill(house: House) -> None:
    for _ in range(16):
        house.submit(8, 300, share="noisy")
    house.run(3)
    assert house.scheduler.running == 8


def filled(crowd_part: float = 0.25, **changes: object) -> House:
    """A tier whose eight places are all taken by long requests of one tenant, which has eight more waiting."""
    house = eight_places(crowd_part, **changes)
    fill(house)
    return house


def runs(house: House) -> dict[str, int]:
    return dict(Counter(sequence.share for sequence in house.running()))


@pytest.mark.parametrize("crowd_part", [0.25, 1.0])
def test_the_first_request_of_a_share_does_not_wait_for_the_share_that_fills_its_tier(crowd_part: float) -> None:
    house = filled(crowd_part)
    youngest = house.running()[-1]
    quiet = house.submit(8, 3, share="quiet")
    house.run(1)
    assert len(quiet.output_ids) == 1
    assert youngest.preemptions == 1
    assert runs(house) == {"noisy": 7, "quiet": 1}
    second = house.submit(8, 3, share="quiet")
    house.run(1)
    assert not second.pages, "only the first request of a share preempts"
    for books in house.books.values():
        if books.sequence.share == "noisy":
            house.abort(books.sequence)
    house.run()
    assert youngest.preemptions == 1
    assert set(youngest.recomputed) <= {"t"}, "on the account of the tier whose request caused it"
    house.check_the_end()


@pytest.mark.parametrize("crowd_part", [0.25, 1.0])
def test_a_client_that_sends_one_short_request_after_the_other_preempts_once(crowd_part: float) -> None:
    house = filled(crowd_part)
    for _ in range(30):
        quiet = house.submit(8, 2, share="quiet")
        house.run(2)
        assert len(quiet.output_ids) == 2
    assert house.scheduler.preemptions == 1


def test_a_request_is_preempted_for_first_ones_at_most_so_often() -> None:
    """Each tenant sends one request, after the last tenant's reserved place has expired."""
    house = filled(1.0)
    for index in range(60):
        house.submit(8, 2, share=f"quiet-{index}")
        house.run(2)
        house.idle(2.0)
    assert 1 <= max(sequence.preemptions for sequence in house.live()) <= 3


@pytest.mark.parametrize("crowd_part", [0.25, 1.0])
@pytest.mark.parametrize("gone", ["ended", "aborted"])
def test_the_next_request_of_a_share_that_runs_none_any_more_does_not_wait(crowd_part: float, gone: str) -> None:
    """The share's first request had a free place, or was aborted while it waited. Its next requests were queued beside
    it, behind a request that was preempted for another share."""
    house = eight_places(crowd_part)
    if gone == "ended":
        first = house.submit(8, 6, share="quiet")
    fill(house)
    house.submit(8, 300, share="other")
    house.run(1)
    assert house.scheduler.preemptions == 1
    if gone == "aborted":
        first = house.submit(8, 6, share="quiet")
    second, third = (house.submit(8, 4, share="quiet") for _ in range(2))
    if gone == "aborted":
        house.abort(first)
    house.run(12)
    assert (len(second.output_ids), len(third.output_ids)) == (4, 4)
    assert house.scheduler.preemptions <= 2


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 4.0)])
def test_two_shares_that_flood_a_tier_do_not_preempt_each_other(weights: tuple[float, float]) -> None:
    house = filled(1.0)
    for step in range(400):
        for share, weight in zip(("noisy", "other"), weights, strict=True):
            while sum(1 for s in house.live() if s.share == share and not s.pages) < 4:
                house.submit(8, 20, share=share, weight=weight)
        house.run(1)
        if step == 5:
            assert house.scheduler.preemptions == 1, "the other's first"
    assert house.scheduler.preemptions == 1


def test_a_share_that_was_served_more_for_its_weight_preempts_nobody() -> None:
    house = filled(1.0)
    house.submit(100, 2, share="light", weight=0.01)
    house.run(4)
    assert runs(house) == {"noisy": 7}
    house.idle(2.0)
    house.run(1)
    assert runs(house) == {"noisy": 8}
    house.submit(8, 2, share="light", weight=0.01)
    house.run(1)
    assert runs(house) == {"noisy": 8}, "its 100 tokens count as 10,000"


def test_a_share_that_is_alone_prefills_whole_steps() -> None:
    house = crowded()
    house.clock.now += 100 * HALF_LIFE_S
    house.submit(200, 1, share="a")
    for expected in (64, 64, 64, 8):
        assert counts(house.schedule()) == {"a": expected}
        house.complete()
    house.check_the_end()
