"""Several base models under one scheduler: whose step is next, and whose weights are on the device. On the auditor's
house (scheduler_auditor), whose steps here take what a cost model says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from engine.memory.eviction import EvictionValue, by_use, least_recently_used
from engine.memory.weight_residency import DRAIN_PART, RESIDENCE_LOADS_MIN
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.costs import Costs
from engine.simulate.bounds import turn_bound_steps
from engine.step import StepResult
from support.engine.scheduler_auditor import House
from support.engine.timed_house import Timed, budget, here, large, loads

TWO = {"base": 2, "other": 2}


# ---- turns


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("tier", ["premium", "standard"])
def test_a_stream_on_one_model_keeps_its_target_while_another_prefills(tier: str, steps_ahead: int) -> None:
    house = large(models=("base", "other", "third"), steps_ahead=steps_ahead)
    timed = Timed(house)
    for model in ("base", "other", "third"):
        house.submit(40, 10, model=model)
    timed.run()
    streams = [house.submit(20, 50, model=model, tier=tier) for model in ("base", "third")]
    timed.run(lambda: all(len(stream.output_ids) > 5 for stream in streams))
    prompts = [house.submit(500, 3, model="other", tier=tier) for _ in range(4)]
    timed.run()
    for stream in streams:
        assert max(timed.gaps(stream)[6:]) < 0.1 + 1e-9, "the tier's target"
    assert all(timed.ttft(prompt) < 4 * 500 * 1e-3 * 1.6 for prompt in prompts), "prefill had what the streams left"
    house.check_the_end()


def test_a_stream_keeps_its_target_though_its_model_prefills_too() -> None:
    """What another model's prefill leaves it is time for its own step as that will be: with the least of prefill."""
    house = large()
    timed = Timed(house)
    for model in ("base", "other"):
        house.submit(40, 10, model=model)
    timed.run()
    stream = house.submit(20, 60, model="base")
    timed.run(lambda: len(stream.output_ids) > 5)
    house.submit(1500, 2, model="base", tier="batch")
    for _ in range(4):
        house.submit(400, 2, model="other")
    timed.run()
    assert max(timed.gaps(stream)[6:]) < 0.1, "the tier's target"
    house.check_the_end()


def test_a_lower_tiers_stream_does_not_shorten_a_higher_ones_prefill() -> None:
    house = large()
    timed = Timed(house)
    for model in ("base", "other"):
        house.submit(40, 10, model=model)
    timed.run()
    house.submit(20, 200, tier="batch", model="base")
    timed.run(seconds=0.3)
    urgent = house.submit(600, 2, tier="premium", model="other")
    timed.run(lambda: urgent.first_token_at is not None)
    prefill = [chunk.count for step in timed.steps for chunk in step.chunks if chunk.sequence is urgent]
    assert max(prefill) > 250, "no more than its own patience allows"
    timed.run()
    house.check_the_end()


def test_a_stream_that_is_due_goes_before_the_first_tokens_of_its_tier() -> None:
    slow = Costs(base_s=40e-3, prefill_token_s=1e-4)
    house = large()
    timed = Timed(house, {"base": slow, "other": slow})
    for model in ("base", "other"):
        house.submit(40, 10, model=model)
    timed.run()
    stream = house.submit(20, 40, model="base")
    timed.run(lambda: len(stream.output_ids) > 3)
    for _ in range(6):
        house.submit(100, 2, model="other")
        timed.run(seconds=0.05)
    timed.run()
    # 40 ms and 40 ms are 80; a second step in between would be 120.
    assert max(timed.gaps(stream)[4:]) < 0.1
    house.check_the_end()


def test_first_tokens_go_before_streams_of_their_tier_and_not_before_those_of_a_higher() -> None:
    house = large()
    timed = Timed(house)
    for model in ("base", "other"):
        house.submit(40, 10, model=model)
    timed.run()
    house.submit(20, 60, model="base", tier="standard")
    timed.run(seconds=0.2)
    house.submit(20, 2, model="other", tier="standard")
    step = house.schedule()
    assert step
    assert step.model == "other"
    timed.run()
    house.submit(20, 60, model="base", tier="premium")
    timed.run(seconds=0.2)
    house.submit(20, 2, model="other", tier="batch")
    step = house.schedule()
    assert step
    assert step.model == "base"
    timed.run()
    house.check_the_end()


def test_a_stream_that_is_due_goes_behind_first_tokens_of_a_higher_tier() -> None:
    """Nor before its streams, unless those have time."""
    house = large()
    costs = {"base": Costs(base_s=64e-3, prefill_token_s=1e-4), "other": Costs(base_s=25e-3, prefill_token_s=1e-4)}
    timed = Timed(house, costs)
    for model in ("base", "other"):
        house.submit(40, 10, model=model)
    timed.run()
    house.submit(20, 40, model="base", tier="standard")
    timed.run(seconds=0.5)
    urgent = house.submit(20, 3, model="other", tier="premium")
    models = []
    for _ in range(2):
        step = house.schedule()
        assert step
        models.append(step.model)
        timed.run(until=lambda: not house.flights)
    assert models == ["other", "base"], "its first token, then the stream that is due, then its second"
    timed.run()
    assert len(urgent.output_ids) == 3
    house.check_the_end()


def test_models_are_served_by_the_shares_that_use_them() -> None:
    """Three tenants on one model and one on the other, with enough to do: each has a quarter of the device."""
    tiers = (
        Tier(name="only", service_tier="default", inter_token_ms=10_000.0, ttft_base_ms=100_000.0, crowd_part=1.0),
    )
    house = large(tiers=tiers, sequences_max=8)
    timed = Timed(house)
    for share in ("a", "b", "c"):
        house.submit(16, 150, share=share, tier="only")
    house.submit(16, 100, share="d", model="other", tier="only")
    timed.run(seconds=2.0)
    assert timed.device_s["base"] / timed.device_s["other"] == pytest.approx(3, rel=0.15)
    timed.run()
    house.check_the_end()


def test_a_pause_earns_a_model_nothing() -> None:
    tiers = (Tier(name="only", service_tier="default", inter_token_ms=10_000.0, ttft_base_ms=100_000.0),)
    house = large(tiers=tiers)
    timed = Timed(house)
    house.submit(16, 500, tier="only", share="a")
    timed.run(seconds=4.0)
    house.submit(16, 200, tier="only", model="other", share="b")
    timed.steps.clear()
    timed.run(seconds=1.0)
    models = Counter(step.model for step in timed.steps)
    assert abs(models["base"] - models["other"]) <= 4
    timed.run()
    house.check_the_end()


def test_no_model_waits_longer_than_the_bound_says() -> None:
    """However urgent others are."""
    models = tuple(f"m{i}" for i in range(6))
    house = large(models=models, sequences_max=30)
    for index, model in enumerate(models):
        house.submit(16, 40, model=model, tier="premium" if index < 3 else "batch")
    last = dict.fromkeys(models, 0)
    count = 0
    while step := house.schedule():
        live = {sequence.model for sequence in house.live()}
        house.complete()
        last[step.model] = house.steps
        count += 1
        if count % 2 and count < 120:  # first tokens without end
            house.submit(16, 1, model=models[count % 3], tier="premium")
        assert all(house.steps - last[model] <= turn_bound_steps(len(models)) for model in live)
    house.check_the_end()


def test_a_new_models_first_prefill_is_no_longer_than_others_suggest() -> None:
    house = large(models=("base",))
    timed = Timed(house)
    house.submit(300, 10)
    timed.run()
    stream = house.submit(20, 100)
    timed.run(lambda: len(stream.output_ids) > 3)
    house.add_model("other")
    house.submit(600, 2, model="other")
    timed.run()
    assert max(timed.gaps(stream)[4:]) <= 0.1
    house.check_the_end()


# ---- one arena, for all models


def test_premium_on_one_model_takes_pages_and_places_from_batch_on_another() -> None:
    house = House(models=("base", "other"), pages=40, sequences_max=4)
    batch = [house.submit(20, 30, model="other", tier="batch") for _ in range(4)]
    house.run(5)
    urgent = house.submit(80, 4, model="base", tier="premium")
    house.run(1)
    assert urgent.started_at is not None
    assert sum(sequence.preemptions for sequence in batch) >= 1
    house.run()
    house.check_the_end()


def test_a_batch_prefill_on_one_model_is_short_for_premium_on_another() -> None:
    """A step cannot be interrupted: so it is no longer than half of what a first token of a higher tier may wait."""
    house = large()
    timed = Timed(house)
    for model in ("base", "other"):
        house.submit(40, 10, model=model)
    timed.run()
    house.submit(1500, 2, model="other", tier="batch")
    timed.run(seconds=0.3)
    urgent = house.submit(100, 2, model="base", tier="premium")
    timed.run(lambda: urgent.first_token_at is not None)
    assert timed.ttft(urgent) < 0.5 + 0.15
    timed.run()
    house.check_the_end()


def test_nobody_overtakes_a_higher_tiers_request_that_waits_for_room_on_another_model() -> None:
    house = House(models=("base", "other"), pages=40)
    first = house.submit(60, 30, model="base", tier="premium")
    house.run(1)
    waiting = house.submit(100, 2, model="base", tier="premium")
    house.run(1)
    lower = house.submit(40, 2, model="other", tier="standard")
    house.run(4)
    assert waiting.started_at is None
    assert lower.started_at is None, "the pages that it would take are those that the other waits for"
    house.abort(first)
    house.run()
    house.check_the_end()


# ---- weights


def test_a_cold_model_comes_for_who_asks_and_an_idle_one_goes() -> None:
    house = budget()
    assert here(house) == "a"
    sequence = house.submit(model="b")
    house.run()
    assert (here(house), loads(house), len(sequence.output_ids)) == ("b", "b", 4)
    assert house.scheduler.weight_residency.models["b"].loads == 1
    assert house.scheduler.weight_residency.hits == {"device": 0, "host": 1, "disk": 0}
    assert house.scheduler.weight_residency.take_loads() == [("b", "host", 0.03)]
    house.check_the_end()


def test_idle_models_stay_until_their_bytes_are_wanted() -> None:
    house = budget(count=2, models=3)
    for model in "abab":
        house.submit(model=model)
        house.run()
        house.idle(100.0)
    assert loads(house) == ""
    house.submit(model="c")
    house.run()
    assert loads(house) == "c"


def test_models_of_one_tier_take_the_device_in_slices() -> None:
    """Both always have work. Loads are bounded by the time over a stay, and requests that gathered run together."""
    stay_s = 1.0
    house = budget(residence_s=stay_s)
    timed = Timed(house)
    for count in range(60):
        for model in "ab":
            if count % 3 == 0:
                house.submit(16, 40, model=model, share=model)
        timed.run(seconds=0.1)
    elapsed = house.clock.now
    assert 0.5 * elapsed / (1.5 * stay_s) <= len(loads(house)) <= 1 + elapsed / stay_s
    assert loads(house).startswith("baba")
    assert min(timed.device_s.values()) > 0.3 * timed.device_s.total()
    timed.run()
    house.check_the_end()


def test_a_model_stays_a_few_times_as_long_as_it_takes_to_come() -> None:
    house = budget(residence_s=0.0, load_s=0.2)
    timed = Timed(house)
    assert house.vault
    for count in range(60):
        for model in "ab":
            if count % 4 == 0:
                house.submit(16, 60, model=model)
        timed.run(seconds=0.1)
    came = [at + 0.2 for at, _ in house.vault.loads]
    gone = [at for at, _ in house.vault.drops[1:]]
    assert len(gone) >= 3
    assert all(left - came_at >= RESIDENCE_LOADS_MIN * 0.2 for came_at, left in zip(came, gone, strict=False))
    timed.run()
    house.check_the_end()


@pytest.mark.parametrize("tier", ["premium", "standard"])
def test_a_higher_tier_never_loses_its_weights_to_batch(tier: str) -> None:
    house = budget(residence_s=0.1)
    timed = Timed(house)
    stream = house.submit(16, 300, model="a", tier=tier)
    timed.run(seconds=0.2)
    lower = house.submit(16, 4, model="b", tier="batch")
    timed.run(seconds=0.5)
    late = house.submit(16, 4, model="a", tier=tier)
    timed.run(lambda: lower.started_at is not None)
    assert timed.ttft(late) < 0.1, "nobody is kept from joining for a lower tier"
    assert (len(stream.output_ids), stream.preemptions) == (300, 0)
    assert max(timed.gaps(stream)) < 0.05
    timed.run()
    house.check_the_end()


def test_batch_gives_way_to_premium_at_once() -> None:
    house = budget(residence_s=60.0)
    timed = Timed(house)
    lower = [house.submit(16, 200, model="a", tier="batch") for _ in range(3)]
    timed.run(seconds=0.3)
    urgent = house.submit(16, 3, model="b", tier="premium")
    timed.run(lambda: urgent.first_token_at is not None)
    assert timed.ttft(urgent) < 0.03 + 0.06, "a load, a step in its way and its own"
    assert [sequence.preemptions for sequence in lower] == [1, 1, 1]
    timed.run()
    assert [len(sequence.output_ids) for sequence in lower] == [200] * 3
    assert all(sequence.recomputed_tokens <= 16 for sequence in lower), "their pages stayed in the prefix cache"
    house.check_the_end()


def test_who_cannot_be_preempted_runs_to_the_end_and_nobody_joins() -> None:
    house = budget(residence_s=0.2)
    timed = Timed(house)
    first = house.submit(16, 100, model="a", tier="premium")
    timed.run(seconds=0.1)
    house.submit(16, 4, model="b", tier="premium")
    timed.run(seconds=0.2)
    assert house.scheduler.weight_residency.models["a"].leaving
    late = house.submit(16, 4, model="a", tier="premium")
    timed.run(seconds=0.2)
    assert late.started_at is None
    timed.run()
    assert first.preemptions == 0
    assert loads(house) == "ba"
    house.check_the_end()


def test_as_long_as_one_runs_to_its_end_others_do_beside_it() -> None:
    house = budget(residence_s=0.2)
    timed = Timed(house)
    first = house.submit(16, 100, model="a", tier="premium")
    beside = house.submit(16, 200, model="a", tier="batch")
    house.submit(16, 4, model="b", tier="premium")
    timed.run(lambda: first.first_token_at is not None and len(first.output_ids) == 99)
    assert beside.preemptions == 0
    timed.run(lambda: bool(house.vault and house.vault.drops))
    assert (len(first.output_ids), beside.preemptions) == (100, 1)
    timed.run()
    house.check_the_end()


def test_who_can_be_preempted_has_a_while_to_finish() -> None:
    stay_s = 0.4
    house = budget(residence_s=stay_s)
    timed = Timed(house)
    assert house.vault
    short = house.submit(16, 40, model="a")
    long = house.submit(16, 400, model="a")
    house.submit(16, 4, model="b")
    timed.run(lambda: bool(house.vault and house.vault.drops))
    assert (short.preemptions, long.preemptions) == (0, 1)
    assert len(short.output_ids) == 40
    assert house.clock.now == pytest.approx((1 + DRAIN_PART) * stay_s, abs=0.05)
    timed.run()
    house.check_the_end()


def test_a_model_that_leaves_stays_when_nobody_asks_any_more() -> None:
    house = budget(residence_s=0.1)
    timed = Timed(house)
    house.submit(16, 300, model="a", tier="premium")
    timed.run(seconds=0.2)
    asks = house.submit(16, 4, model="b", tier="premium")
    timed.run(seconds=0.1)
    late = house.submit(16, 4, model="a", tier="premium")
    timed.run(seconds=0.1)
    assert late.started_at is None
    house.abort(asks)
    timed.run(seconds=0.1)
    assert late.started_at is not None
    timed.run()
    assert loads(house) == ""
    house.check_the_end()


def test_pinned_models_never_go_and_come_unasked() -> None:
    house = budget(count=2, models=3, pinned_models=("a",))
    for model in "cbcb":
        house.submit(model=model)
        house.run()
    assert "a" in here(house)
    assert "would leave 0 bytes" in house.scheduler.pin_model("b", True)
    assert house.scheduler.pin_model("a", False) == ""
    assert house.scheduler.pin_model("c", True) == ""
    assert house.scheduler.has_background_loads
    while house.scheduler.has_background_loads:
        house.scheduler.poll_loads()
        house.idle()
    assert "c" in here(house)


def test_nobody_goes_for_a_model_that_would_not_fit_all_the_same() -> None:
    house = large(models=("a", "b"), weights={"a": 2, "b": 2}, weights_max=4, pinned_models=("a",))
    house.add_model("c", 4)
    refusal = house.offer(house.sequence(model="c"))
    assert refusal
    assert refusal.code == "model_unknown"
    assert "4 bytes" in refusal.message
    assert here(house) == "ab"
    house = large(models=("a", "b", "c"), weights={"a": 2, "b": 2, "c": 4}, weights_max=4)
    timed = Timed(house)
    house.submit(16, 100, model="a", tier="premium")
    house.submit(16, 4, model="c", tier="standard")
    timed.run(seconds=0.5)
    assert here(house) == "ab", "b alone would not do"
    timed.run()
    assert here(house) == "c"
    house.check_the_end()


@pytest.mark.parametrize("tier", ["standard", "batch"])
def test_a_model_that_higher_tiers_leave_no_room_for_keeps_nobody_from_coming_beside_them(tier: str) -> None:
    house = large(models=("a", "b"), weights={"a": 3, "b": 3}, weights_max=5)
    house.add_model("c", 1)
    timed = Timed(house)
    house.submit(16, 200, model="a", tier="premium")
    timed.run(seconds=0.1)
    assert here(house) == "a"
    barred = house.submit(16, 4, model="b", tier="standard")
    beside = house.submit(16, 4, model="c", tier=tier)
    timed.run(lambda: beside.first_token_at is not None, seconds=0.5)
    assert beside.first_token_at is not None
    assert barred.first_token_at is None
    assert here(house) == "ac"
    timed.run()
    assert barred.first_token_at is not None
    house.check_the_end()


def test_a_large_model_takes_the_place_of_as_few_as_need_be() -> None:
    house = large(models=("a", "b", "c", "d"), weights={"a": 1, "b": 1, "c": 3, "d": 3}, weights_max=5)
    for model in "ab":
        house.submit(model=model)
        house.run()
    house.idle(1.0)
    house.submit(model="c")
    house.run()
    assert here(house) == "abc"
    house.idle(1.0)
    for model in "abab":
        house.submit(model=model)
        house.run()
    house.submit(model="d")
    house.run()
    assert here(house) == "abd"


def test_the_best_waiting_tier_comes_first_then_the_oldest() -> None:
    house = budget(models=5, residence_s=0.0, load_s=0.02)
    timed = Timed(house)
    house.submit(16, 300, model="a", tier="batch")
    timed.run(seconds=0.1)
    for model, tier in (("b", "batch"), ("c", "standard"), ("d", "standard"), ("e", "premium")):
        house.submit(16, 4, model=model, tier=tier)
    timed.run()
    assert loads(house).startswith("ecdb")
    house.check_the_end()


def test_a_load_that_nobody_waits_for_ends_when_another_is_wanted() -> None:
    house = budget(models=3, load_s=5.0)
    first = house.submit(model="b")
    house.schedule()
    assert loads(house) == "b"
    house.abort(first)
    house.submit(model="c")
    house.schedule()
    house.schedule()
    assert loads(house) == "bc"
    house.run()
    assert here(house) == "c"
    house.check_the_end()


def test_the_next_comes_from_disk_to_host_memory_meanwhile() -> None:
    house = budget(models=4, load_s=1.0)
    assert house.vault
    house.vault.on_disk = {"b", "c", "d"}
    for model in "bcd":
        house.submit(model=model)
    house.schedule()
    assert loads(house) == "b"
    assert house.vault.on_disk == {"d"} | house.vault.on_disk & {"b"}
    house.run()
    assert loads(house) == "bcd"
    house.check_the_end()


def test_models_that_cannot_all_be_pinned_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"model 'b' cannot be pinned: pinned models would leave 0 bytes"):
        budget(count=2, models=3, pinned_models=("a", "b"))
    with pytest.raises(ValueError, match=r"pinned models would take 3 bytes of the device; the limit is 2"):
        large(models=("a",), weights={"a": 3}, weights_max=2, pinned_models=("a",))


def test_weights_that_cannot_come_end_who_waits_and_a_later_request_tries_again() -> None:
    house = budget()
    assert house.vault
    house.vault.failing.add("b")
    lost = [house.submit(model="b") for _ in range(3)]
    other = house.submit(model="a")
    house.run()
    assert len(other.output_ids) == 4
    endings = [house.books[sequence.handle].ending for sequence in lost]
    assert all(ending and "its model cannot be loaded: made to fail" in ending.message for ending in endings)
    assert loads(house) == "b"
    house.vault.failing.clear()
    house.submit(model="b")
    house.run()
    assert loads(house) == "bb"
    assert house.scheduler.weight_residency.failures == 1
    house.check_the_end()


def test_what_is_used_most_stays_though_others_were_used_last() -> None:
    def run(keep: EvictionValue) -> str:
        house = budget(count=2, models=4, eviction_value=keep)
        for model in "aaabcdcad":
            house.submit(model=model)
            house.run()
            house.idle(1.0)
        return loads(house)

    assert run(by_use) == "cdcd"
    assert run(least_recently_used) == "cdad", "of the others plain LRU knows only the last"


def test_steps_in_flight_read_weights_that_went() -> None:
    house = budget(steps_ahead=1)
    house.submit(16, 40, model="a", tier="batch")
    for _ in range(3):
        while len(house.flights) < 2:
            assert house.schedule()
        house.complete()
    urgent = house.submit(16, 4, model="b", tier="premium")
    assert house.flights
    house.schedule()
    assert here(house) == ""
    assert loads(house) == "", "its bytes are read by the step in flight"
    house.complete()
    house.schedule()
    assert loads(house) == "b"
    house.run()
    assert len(urgent.output_ids) == 4
    house.check_the_end()


# ---- what a request is told


def test_a_cold_models_wait_is_told_and_over_the_target_refused() -> None:
    tiers = tuple(msgspec.structs.replace(tier, queue_target_ms=2000.0) for tier in SHIPPED_TIERS)
    house = budget(models=3, residence_s=3.0, tiers=tiers)
    timed = Timed(house)
    house.submit(16, 600, model="a", tier="premium")
    timed.run(seconds=0.1)
    assert house.scheduler.admission.weights_wait_s("a") == 0.0
    assert house.scheduler.admission.weights_wait_s("b", 0) == pytest.approx(2.9 + DRAIN_PART * 3.0 + 0.03, abs=0.05)
    refusal = house.offer(house.sequence(model="b", tier="premium"))
    assert refusal
    assert refusal.code == "queue_full"
    assert "'b' is not in the device's memory" in refusal.message
    assert refusal.retry_after_s == pytest.approx(house.scheduler.admission.weights_wait_s("b", 0) - 2.0)
    assert house.offer(house.sequence(model="a", tier="premium")) is None
    timed.run()
    assert house.offer(house.sequence(model="b", tier="premium")) is None, "an idle engine refuses nothing"
    timed.run()
    house.check_the_end()


def test_a_load_that_is_longer_than_the_target_is_no_reason_to_refuse() -> None:
    house = budget(models=3, load_s=30.0)
    sequence = house.submit(model="b", tier="premium")
    house.schedule()
    house.idle(10.0)
    assert house.scheduler.admission.weights_wait_s("b") == pytest.approx(20.0)
    house.submit(model="b", tier="premium")
    refusal = house.offer(house.sequence(model="c", tier="premium"))
    assert refusal, "it would wait for two"
    assert refusal.code == "queue_full"
    assert house.scheduler.admission.weights_wait_s("c", 0) == pytest.approx(20.0 + 2.0 + 30.0), "two loads and a stay"
    house.submit(model="c", tier="batch")
    house.idle(20.0)
    house.run(4)
    house.schedule()
    house.idle(30.0)
    house.run()
    assert len(sequence.output_ids) == 4
    house.check_the_end()


def test_waiting_for_weights_says_nothing_of_a_queues_pace() -> None:
    house = budget(load_s=4.0)
    house.submit(model="a", tier="premium")
    house.run()
    house.submit(model="b", tier="premium")
    house.schedule()
    house.idle(3.9)
    assert house.offer(house.sequence(model="b", tier="premium")) is None
    house.run()
    assert house.scheduler.admission.weights_wait_s("b") == 0.0
    for _ in range(3):
        house.submit(model="b", tier="premium")
    assert house.offer(house.sequence(model="b", tier="premium")) is None
    house.run()
    house.check_the_end()


# ---- models that come and go


def test_a_model_comes_serves_and_goes() -> None:
    house = large(models=("base",), adapters={"x": ("late", 3)}, weights={"base": 1}, weights_max=2)
    assert house.offer(house.sequence(model="late"))
    house.add_model("late")
    first = house.submit(40, 4, model="late", adapter="x")
    house.run()
    second = house.submit(list(first.prompt_ids), 4, model="late", adapter="x")
    house.run()
    assert second.cached_tokens == 32
    running = house.submit(40, 30, model="late")
    house.run(3)
    house.scheduler.retire_model("late")
    refusal = house.offer(house.sequence(model="late"))
    assert refusal
    assert refusal.code == "model_unknown"
    assert not house.forget_model("late")
    house.run()
    assert len(running.output_ids) == 30
    assert house.forget_model("late")
    assert house.arena.free_pages() == house.arena.pages
    assert house.scheduler.served.labels == ["base", "late"]
    house.add_model("again")
    assert house.scheduler.served.labels == ["base", "again"]
    house.submit(model="again")
    house.run()
    house.check_the_end()


def test_a_label_is_reused_only_when_no_page_carries_it() -> None:
    """Two names of one model share pages, as their contents are the same."""
    house = large(models=("base",))
    scheduler, twin = house.scheduler, replace(house.limits(), digest="the same")
    for name in ("one", "two"):
        scheduler.add_model(name, twin, pinned=False)
    first = house.sequence(list(range(40)), 4, model="one")
    assert scheduler.submit(first) is None
    while step := scheduler.schedule():
        scheduler.complete(step, StepResult([7 if chunk.sample else None for chunk in step.chunks]), 0.01)
    assert scheduler.prefix.labelled(1) == 2
    second = replace(house.sequence(list(range(40)), 4, model="two"), handle=1)
    assert scheduler.submit(second) is None
    assert scheduler.schedule()
    assert second.cached_tokens == 32
    scheduler.retire_model("one")
    scheduler.forget_model("one")
    assert scheduler.prefix.labelled(1) == 2, "the other holds them"
    scheduler.add_model("three", house.limits(), pinned=False)
    assert scheduler.served.labels == ["base", "one", "two", "three"]


def test_without_a_budget_what_is_added_comes_and_stays() -> None:
    house = large(models=("base",), weights={"base": 1}, weights_max=None)
    house.add_model("late")
    assert house.scheduler.has_background_loads
    while house.scheduler.has_background_loads:
        house.scheduler.poll_loads()
        house.idle()
    assert house.vault
    assert house.vault.there == {"base", "late"}
    house.submit(model="late")
    assert house.scheduler.weight_residency.hits["device"] == 1
    house.run()
    house.check_the_end()
