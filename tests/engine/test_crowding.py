"""Which shares crowd a tier, and what that changes: how much of a step their prefill takes."""

from __future__ import annotations

import pytest
from scheduler_auditor import House

from engine.crowding import HALF_LIFE_S, Crowding
from engine.step import Step
from engine.tiers import Tier

QUIET = ("b", "c", "d", "e")


def served(tokens: dict[str, float]) -> Crowding:
    crowding = Crowding()
    for share, count in tokens.items():
        crowding.serve(share, count)
    return crowding


@pytest.mark.parametrize(
    ("tokens", "crowd"),
    [
        ({}, ""),
        ({"a": 1000}, ""),  # alone
        ({"a": 1000, "b": 1}, ""),  # as good as alone
        ({"a": 1000, "b": 1000}, ""),
        ({"a": 3900, "b": 1000, "c": 1000, "d": 1000}, "a"),  # over 2 x 1,725
        ({"a": 2900, "b": 1000, "c": 1000, "d": 1000}, ""),  # not over 2 x 1,475
        ({"a": 3900, "b": 3900, **{f"s{i}": 100 for i in range(10)}}, "ab"),
    ],
)
def test_a_share_crowds_that_had_over_twice_the_mean(tokens: dict[str, float], crowd: str) -> None:
    assert served(tokens).shares(1.0) == frozenset(crowd)


def test_what_was_long_ago_is_forgotten() -> None:
    crowding = served({"a": 64_000, **dict.fromkeys(QUIET, 1000)})
    assert crowding.shares(1.0) == {"a"}
    now = 1.0
    while crowding.shares(now):
        for share in QUIET:
            crowding.serve(share, 1000)
        now += HALF_LIFE_S
    assert now < 6 * HALF_LIFE_S
    assert not crowding.shares(now + 100 * HALF_LIFE_S)
    assert not crowding._recent, "or it would grow with every share there ever was"


def counts(step: Step | None) -> dict[str, int]:
    assert step is not None
    return {chunk.sequence.share: chunk.count for chunk in step.chunks}


def crowded(step_tokens_max: int = 64, prefill_tokens_min: int = 4, **changes: float) -> House:
    """A house in which share `a` was served ten times as much as the others."""
    patient = {"inter_token_ms": 3_600_000.0, "ttft_base_ms": 3_600_000.0}
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
    running = [entry.sequence.share for entry in house.scheduler._room.running[0]]
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


def test_a_share_that_is_alone_prefills_whole_steps() -> None:
    house = crowded()
    house.clock.now += 100 * HALF_LIFE_S
    house.submit(200, 1, share="a")
    for expected in (64, 64, 64, 8):
        assert counts(house.schedule()) == {"a": expected}
        house.complete()
    house.check_the_end()
