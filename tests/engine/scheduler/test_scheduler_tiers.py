"""What tiers promise, case by case and as numbers: targets, floors, bounded preemption, fairness, who pays for what.
The House audits every step beside what each test looks at."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.costs import Costs, load_of
from engine.simulate.bounds import fairness_bound, starvation_bound_steps
from engine.step import Sequence, Step
from support.engine.scheduler_auditor import House

LONG_MS = 3_600_000.0
EXAMPLES = int(os.environ.get("LANEWAY_SCHEDULE_EXAMPLES", "40"))


def tiers_of(*changes: dict[str, Any]) -> tuple[Tier, ...]:
    """Tiers named a, b, c … from high to low, without floors and with targets that never bind, unless changed."""
    patient = {"inter_token_ms": LONG_MS, "ttft_base_ms": LONG_MS}
    return tuple(
        Tier(name=name, service_tier=name, **(patient | change)) for name, change in zip("abcd", changes, strict=False)
    )


def counts(step: Step | None) -> dict[int, int]:
    assert step is not None
    return {chunk.sequence.handle: chunk.count for chunk in step.chunks}


def teach(house: House, token_s: float) -> None:
    """Let the cost model see what a token of prefill takes, and nothing else take anything."""
    for tokens in (8, 3, 17, 5, 21, 2, 13, 9):
        house.submit(tokens, 1, tier=house.tiers[0].name)
        assert house.schedule()
        house.complete(seconds=token_s * tokens)


# ---- targets


@pytest.mark.parametrize(("decoding", "tokens"), [("a", range(10, 21)), ("b", range(40, 41))])
def test_a_lower_tiers_target_does_not_shrink_a_higher_ones_prefill(decoding: str, tokens: range) -> None:
    """A token of prefill takes 10 ms, of which the model may take a part to be attention's."""
    tiers = tiers_of({"inter_token_ms": 200.0}, {"inter_token_ms": 30.0})
    house = House(tiers=tiers, step_tokens_max=64, pages=200)
    teach(house, 0.010)
    house.submit(8, 40, tier=decoding)
    assert house.schedule()
    house.complete(seconds=0.080)
    urgent = house.submit(40, 2, tier="a")
    assert counts(house.schedule())[urgent.handle] in tokens


def test_prefill_leaves_a_request_that_is_still_to_come_half_its_target() -> None:
    tiers = tiers_of({"ttft_base_ms": 400.0}, {})
    for steps_ahead, expected in ((0, 20), (1, 10)):
        house = House(tiers=tiers, step_tokens_max=64, pages=200, steps_ahead=steps_ahead)
        teach(house, 0.010)
        low = house.submit(60, 2, tier="b")
        assert counts(house.schedule())[low.handle] in (expected - 1, expected)
        house.complete()
        own = house.submit(60, 2, tier="a")
        assert counts(house.schedule())[own.handle] == 60, "its own tier's is as long as it likes"


def test_decodes_of_lower_tiers_wait_a_step_for_a_higher_ones_prefill() -> None:
    """And never two in a row."""
    tiers = tiers_of({}, {"floor": 0.2})
    house = House(tiers=tiers, step_tokens_max=20, prefill_tokens_min=4, sequences_max=16, pages=400)
    low = [house.submit(4, 40, tier="b") for _ in range(12)]
    house.run(6)
    assert all(sequence.output_ids for sequence in low)
    urgent = house.submit(49, 2, tier="a")
    planned = [counts(house.schedule())]
    for _ in range(3):
        house.complete()
        planned.append(counts(house.schedule()))
    assert [step[urgent.handle] for step in planned] == [20, 8, 20, 1]
    assert [len(step) for step in planned] == [1, 13, 1, 13]
    assert not any(sequence.preemptions for sequence in low)
    house.complete()
    house.run()
    house.check_the_end()


def test_decodes_of_lower_tiers_wait_so_that_a_first_token_comes_in_time() -> None:
    """A step of eight decodes takes 80 ms, and the first token of a prompt should come after one of at most 60."""
    tiers = tiers_of({"ttft_base_ms": 120.0}, {})
    house = House(tiers=tiers, step_tokens_max=64, prefill_tokens_min=4, sequences_max=16, pages=400)
    low = [house.submit(4, 80, tier="b") for _ in range(8)]
    for _ in range(40):
        step = house.schedule()
        assert step
        house.complete(seconds=0.010 * len(step.chunks))
        if len(house.books) < 30:  # steps of several sizes, for the cost model
            house.submit(2, 2, tier="b")
    urgent = house.submit(20, 2, tier="a")
    planned = counts(house.schedule())
    assert planned[urgent.handle] == 20
    waiting = [sequence for sequence in low if sequence.handle not in planned]
    assert 2 <= len(waiting) <= 6
    assert waiting == low[-len(waiting) :], "the youngest"
    house.complete()
    assert len(counts(house.schedule())) >= 9
    house.complete()
    house.run()
    house.check_the_end()


def beside_decodes(low: int) -> tuple[House, Callable[[], dict[int, int]]]:
    """So many of the lowest of three tiers decode, and what steps take is known. A call takes one, and says how many
    tokens of each handle were in it."""
    tiers = tiers_of({"ttft_base_ms": 400.0}, {}, {})
    house = House(tiers=tiers, step_tokens_max=64, prefill_tokens_min=4, sequences_max=16, pages=400)
    costs = Costs(prefill_token_s=0.010, sequence_s=0.010)

    def take() -> dict[int, int]:
        step = house.schedule()
        assert step
        house.complete(seconds=costs.step_seconds(load_of(step)))
        return counts(step)

    for _ in range(low):
        house.submit(4, 90, tier="c")
    for number in range(40):  # steps of several sizes, for the cost model
        take()
        house.submit(2 + number % 5, 1, tier="b")
    while len(house.live()) > low:
        take()
    return house, take


def test_decodes_of_lower_tiers_wait_for_a_prefill_that_a_still_higher_tier_keeps_short() -> None:
    """What the highest tier's patience leaves of a step is the middle one's first: 200 ms are 20 tokens, or 12 beside
    eight decodes."""
    house, take = beside_decodes(8)
    middle = house.submit(57, 2, tier="b")
    planned = [take() for _ in range(4)]
    assert [len(step) for step in planned] == [1, 9, 1, 9]
    assert [step[middle.handle] for step in planned] == pytest.approx([20, 12, 20, 5], abs=3)
    house.run()
    house.check_the_end()


def test_decodes_of_lower_tiers_wait_for_a_prefill_behind_a_higher_tiers() -> None:
    """Of 200 ms the highest tier's prompt takes 90 and ten decodes 100: these wait for the middle's prefill, not twice
    in a row."""
    house, take = beside_decodes(10)
    middle = house.submit(57, 2, tier="b")
    for tokens, rows in [(10, 2), (0, 11)] * 2:
        high = house.submit(8, 1, tier="a")
        step = take()
        assert step[high.handle] == 8
        assert step.get(middle.handle, 0) == pytest.approx(tokens, abs=1)
        assert len(step) == rows
    house.run()
    house.check_the_end()


def test_decodes_of_a_tier_that_cannot_be_preempted_wait_for_nobody() -> None:
    tiers = tiers_of({}, {"preemptible": False})
    house = House(tiers=tiers, step_tokens_max=20, prefill_tokens_min=4, sequences_max=16, pages=400)
    for _ in range(12):
        house.submit(4, 40, tier="b")
    house.run(6)
    urgent = house.submit(33, 2, tier="a")
    assert counts(house.schedule())[urgent.handle] == 8


@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_a_floor_is_a_share_of_prefill_too(floor: float) -> None:
    """The higher tier has more to prefill than any step holds, always."""
    tiers = tiers_of({}, {"floor": floor})
    house = House(tiers=tiers, step_tokens_max=40, prefill_tokens_min=8, sequences_max=8, pages=4000)
    low = [house.submit(200, 1, tier="b") for _ in range(20)]
    prefilled: Counter[str] = Counter()
    for _ in range(300):
        while sum(1 for s in house.live() if s.tier == "a") < 3:
            house.submit(300, 1, tier="a")
        step = house.schedule()
        assert step
        for chunk in step.chunks:
            prefilled[chunk.sequence.tier] += chunk.count
        house.complete()
    share = prefilled["b"] / prefilled.total()
    assert share == pytest.approx(floor, abs=0.02)
    assert any(sequence.output_ids for sequence in low) == bool(floor)


# ---- places


def test_a_floor_is_a_share_of_the_places_too() -> None:
    tiers = tiers_of({"preemptible": False}, {"floor": 0.25})
    house = House(tiers=tiers, sequences_max=8, pages=400, step_tokens_max=100)
    for _ in range(12):
        house.submit(8, 20, tier="a")
    house.run(1)
    assert house.scheduler.running == 6, "the highest leaves the other's places alone, which it could not give back"
    low = [house.submit(8, 20, tier="b") for _ in range(3)]
    house.run(1)
    assert [bool(sequence.pages) for sequence in low] == [True, True, False]
    house.run()
    assert not any(sequence.preemptions for sequence in low)
    house.check_the_end()


def test_a_place_that_is_freed_for_nobody_is_not_freed() -> None:
    """The one place that batch has belongs to standard's floor, which premium could not give back."""
    house = House(tiers=SHIPPED_TIERS, sequences_max=16, pages=400, step_tokens_max=200)
    low = house.submit(8, 40, tier="batch")
    house.run(1)
    for _ in range(16):
        house.submit(8, 20, tier="premium")
    house.run(3)
    assert house.scheduler.running == 16
    assert not low.preemptions
    house.run()
    house.check_the_end()


# ---- bounded preemption


def flooded(preemptions_max: int, *, floor: float = 0.25, floods: int = 12) -> tuple[House, Sequence]:
    """Two requests of the lower tier, the second the cheaper victim, and again and again one of the higher that takes
    all pages but the floor's."""
    tiers = tiers_of({"preemptible": False}, {"floor": floor, "preemptions_max": preemptions_max})
    house = House(tiers=tiers, pages=40, sequences_max=8, step_tokens_max=200, prefill_tokens_min=16)
    other = house.submit(28, 60, tier="b", share="other")
    low = house.submit(8, 33, tier="b")
    for _ in range(floods):
        house.run(3)
        if house.books[low.handle].ending is None:
            house.submit(112, 1, tier="a", namespace=f"{len(house.books)}")
    house.run()
    assert other.output_ids
    return house, low


def test_a_request_is_preempted_at_most_so_often() -> None:
    house, low = flooded(1000)
    assert low.preemptions > 2
    house.check_the_end()
    for most in (1, 2):
        house, low = flooded(most)
        assert low.preemptions == most
        house.check_the_end()


def test_one_that_does_not_fit_its_floor_is_not_owed_a_run() -> None:
    house, low = flooded(1, floor=0.15)
    assert low.preemptions > 1
    house.check_the_end()


def test_who_is_owed_a_run_waits_for_the_floor_and_others_go_on() -> None:
    """The floor, 10 pages and 2 places, is promised to one; the next that is owed its run waits for it, and newcomers,
    who may borrow, do not."""
    tiers = tiers_of({"preemptible": False}, {"floor": 0.25, "preemptions_max": 1})
    house = House(tiers=tiers, pages=40, sequences_max=8, step_tokens_max=200, prefill_tokens_min=16)
    third = house.submit(40, 40, tier="b")
    first, second = (house.submit(16, 20, tier="b") for _ in range(2))
    house.run(2)
    house.submit(116, 1, tier="a")
    house.run(1)
    assert (first.preemptions, second.preemptions, third.preemptions) == (1, 1, 0)
    newcomer = house.submit(8, 4, tier="b")
    house.run(2)
    assert first.pages
    assert not second.pages, "9 of the floor's 10 pages are the first's"
    assert newcomer.output_ids
    house.run()
    assert (first.preemptions, second.preemptions) == (1, 1)
    house.check_the_end()


@pytest.mark.parametrize("steps_ahead", [0, 1])
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    low=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=6),
    flood=st.lists(st.tuples(st.integers(1, 160), st.integers(1, 40)), min_size=1, max_size=8),
    pauses=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    most=st.integers(1, 3),
    together=st.booleans(),
)
# Regression: a preempted first request joined again while a step in flight still wrote its old pages.
@example(
    low=[(14, 19), (13, 1), (17, 20), (19, 18)],
    flood=[(53, 36), (86, 1), (86, 38), (1, 1), (30, 16), (89, 1), (61, 13), (1, 1)],
    pauses=[3],
    most=1,
    together=True,
)
def test_nobody_starves_in_a_tier_with_a_floor(
    steps_ahead: int,
    low: list[tuple[int, int]],
    flood: list[tuple[int, int]],
    pauses: list[int],
    most: int,
    together: bool,
) -> None:
    """However the higher tiers flood, for as long as it takes."""
    tiers = tiers_of({"preemptible": False}, {}, {"floor": 0.2, "preemptions_max": most})
    house = House(
        tiers=tiers, pages=65, sequences_max=6, step_tokens_max=30, prefill_tokens_min=8, steps_ahead=steps_ahead
    )
    requests = [house.submit(tokens, more, tier="c") for tokens, more in low]
    bound = starvation_bound_steps(tiers[2], len(low), 49, 20, prefill_tokens_min=8)
    begun = house.steps
    turn = 0
    while any(house.books[request.handle].ending is None for request in requests):
        assert house.steps - begun <= bound
        while sum(1 for s in house.live() if s.tier != "c") < (6 if together else 2):
            tokens, more = flood[turn % len(flood)]
            house.submit(tokens, more, tier="ab"[turn % 2])
            turn += 1
        house.run(1 + pauses[turn % len(pauses)])
    assert all(request.preemptions <= most for request in requests)
    house.run()
    house.check_the_end()


def test_a_tier_without_a_floor_has_no_bound() -> None:
    with pytest.raises(ValueError, match="has no floor"):
        starvation_bound_steps(Tier(name="batch", service_tier="flex"), 1, 10, 10, 8)


# ---- fairness


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
    sequences_max=st.integers(1, 6),
    weights=st.sampled_from([(1.0, 1.0), (1.0, 2.0), (2.0, 0.5)]),
    adapters=st.sampled_from(["", "abc", "abcdefgh"]),
)
@example(sizes=[(1, 1), (3, 1)], seed=0, sequences_max=5, weights=(1.0, 1.0), adapters="")
def test_shares_that_wait_are_served_alike_to_within_the_theorems_bound(
    sizes: list[tuple[int, int]], seed: int, sequences_max: int, weights: tuple[float, float], adapters: str
) -> None:
    """Without prefix hits, and without the rare preemption for a share whose last running request ended. Served is what
    was computed, by the auditor's own count. With adapters, those that are in the batch may go first: to within twice
    the bound."""
    (tier,) = tiers_of({"prefill_weight": weights[0], "decode_weight": weights[1], "queue_max": 100, "ageing_s": 9e4})
    dice = random.Random(seed)
    house = House(
        tiers=(tier,), pages=1000, sequences_max=sequences_max, step_tokens_max=sequences_max + 20, namespace_quota=0.0,
        adapters=dict.fromkeys(adapters, ("base", 4)),
    )  # fmt: skip
    served: Counter[str] = Counter()
    gaps = []
    for _ in range(150):
        for share in "xyz":
            # More than could all begin at once: one of each share still waits when the step is put together.
            while sum(1 for s in house.live() if s.share == share and not s.pages) <= sequences_max:
                tokens, more = dice.choice(sizes)
                ids = [dice.randrange(97) for _ in range(tokens)]
                adapter = dice.choice(adapters) if adapters else None
                house.submit(ids, more, tier="a", share=share, namespace=f"{len(house.books)}", adapter=adapter)
        step = house.schedule()
        assert step
        for chunk in step.chunks:
            prompt = len(chunk.sequence.prompt_ids)
            of_prompt = max(0, min(chunk.start + chunk.count, prompt) - chunk.start)
            cost = weights[0] * of_prompt + weights[1] * (chunk.count - of_prompt)
            served[chunk.sequence.share] += cost  # type: ignore[assignment]
        house.complete()
        gaps.append(tuple(served[a] - served[b] for a, b in ("xy", "yz", "xz")))
    assume(not house.scheduler.preemptions)
    bound = fairness_bound(tier, sequences_max * max(tokens + more for tokens, more in sizes))
    for series in zip(*gaps, strict=True):
        assert max(series) - min(series) <= (2 * bound if adapters else bound)


def test_a_quiet_shares_prompt_goes_before_the_chunks_of_a_noisy_one() -> None:
    (tier,) = tiers_of({})
    house = House(tiers=(tier,), pages=1000, sequences_max=8, step_tokens_max=40)
    for _ in range(6):
        house.submit(300, 2, tier="a", share="noisy")
    house.run(4)
    quiet = house.submit(50, 2, tier="a", share="quiet")
    house.run(4)
    assert quiet.output_ids, "turn by turn with the one that had begun"
    house.run()
    house.check_the_end()


def test_a_heavier_share_is_served_more() -> None:
    (tier,) = tiers_of({})
    house = House(tiers=(tier,), pages=400, sequences_max=2, step_tokens_max=40)
    for index in range(30):
        house.submit(8, 4, tier="a", share="light", namespace=f"l{index}")
        house.submit(8, 4, tier="a", share="heavy", namespace=f"h{index}", weight=3.0)
    house.run(60)
    ended = Counter(books.sequence.share for books in house.books.values() if books.ending)
    assert ended["heavy"] / ended["light"] == pytest.approx(3.0, rel=0.35)


# ---- admission


def test_a_full_queue_has_a_place_for_a_share_with_less() -> None:
    tiers = (msgspec.structs.replace(SHIPPED_TIERS[2], queue_max=4),)
    house = House(tiers=tiers, sequences_max=1)
    running = house.submit(8, 30, share="noisy")
    house.run(1)
    noisy = [house.submit(8, 2, share="noisy") for _ in range(4)]
    refused = house.offer(house.sequence(share="noisy"))
    assert refused is not None
    assert refused.code == "queue_full"
    quiet = house.submit(8, 2, share="quiet")
    ((displaced, refusal),) = house.scheduler.take_displaced()
    assert displaced is noisy[-1]
    assert refusal.code == "queue_full"
    assert refusal.retry_after_s is not None
    del house.books[displaced.handle]
    assert house.scheduler.take_displaced() == []
    house.run()
    assert quiet.output_ids
    assert running.output_ids
    house.check_the_end()


def test_a_noisy_shares_queue_does_not_refuse_a_quiet_one() -> None:
    tiers = tiers_of({"queue_target_ms": 1000.0, "queue_max": 100})
    house = House(tiers=tiers, sequences_max=1, pages=400)
    noisy = [house.submit(8, 10, tier="a", share="noisy") for _ in range(40)]
    house.run(200)
    assert sum(1 for sequence in noisy if sequence.output_ids) > 10
    refused = house.offer(house.sequence(tier="a", share="noisy"))
    assert refused is not None, "29 before it, each 0.1 s"
    assert "its limit is 1000 ms" in refused.message
    assert house.offer(house.sequence(tier="a", share="quiet")) is None
    house.run()
    house.check_the_end()


# ---- accounts


def test_what_is_computed_again_is_on_the_account_of_who_caused_it() -> None:
    house = House(pages=32, sequences_max=8, step_tokens_max=60)
    flood = [house.submit(20, 20, tier="batch") for _ in range(6)]
    house.run(8)
    urgent = house.submit(60, 4, tier="premium")
    house.run()
    again = [sequence for sequence in flood if sequence.recomputed]
    assert again
    assert {tier for sequence in again for tier in sequence.recomputed} <= {"premium", "batch"}
    caused = [sequence.recomputed["premium"] for sequence in again if "premium" in sequence.recomputed]
    assert sum(r.tokens for r in caused) > 0
    assert all(r.device_s > 0 for r in caused)
    assert not urgent.recomputed
    house.check_the_end()
