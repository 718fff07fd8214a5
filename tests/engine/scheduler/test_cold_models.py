"""Requests whose model's weights are not on the device: what higher tiers may do to them, and what they are told."""

from __future__ import annotations

import pytest

from engine.memory.weight_residency import CANCELLED_LOADS_MAX, DRAIN_PART
from engine.memory.weight_wait import PREDICTED_RESIDENCE_S_MAX
from support.engine.scheduler_auditor import House
from support.engine.timed_house import Timed, budget, here, large, loads

LOAD_S = 0.2


def interrupt(house: House, timed: Timed) -> float:
    """Premium asks for a when b is nearly there for batch; its first token's time."""
    vault = house.vault
    assert vault
    timed.run(lambda: "b" in vault.coming and vault.load_seconds("b") < 0.2 * LOAD_S)
    urgent = house.submit(16, 2, model="a", tier="premium")
    timed.run(lambda: len(urgent.output_ids) == 2)
    return timed.ttft(urgent)


def test_a_load_is_given_up_for_a_higher_tier_a_few_times_and_then_serves_who_waits() -> None:
    house = budget(load_s=LOAD_S)
    timed = Timed(house)
    lower = house.submit(16, 120, model="b", tier="batch")
    first_s = [interrupt(house, timed) for _ in range(CANCELLED_LOADS_MAX)]
    assert loads(house) == "ba" * CANCELLED_LOADS_MAX
    assert max(first_s) < LOAD_S + 0.1, "it waits for no other's load"
    last_s = interrupt(house, timed)
    assert len(lower.output_ids) > 10, "it came, and stayed for as long as it took"
    assert last_s < 0.2 * LOAD_S + LOAD_S + LOAD_S + 0.1, "what was left, that stay and its own load"
    assert lower.preemptions == 1
    for _ in range(CANCELLED_LOADS_MAX):
        interrupt(house, timed)
    assert loads(house)[-4:] == "baba", "the count began again"
    timed.run()
    assert len(lower.output_ids) == 120
    house.check_the_end()


def test_a_load_that_is_nearly_there_is_waited_for_where_both_have_room() -> None:
    house = budget(count=2, models=4, load_s=LOAD_S)
    timed = Timed(house)
    house.submit(16, 4, model="c", tier="batch")
    house.schedule()
    house.idle(0.1 * LOAD_S)
    first = house.submit(16, 4, model="d", tier="premium")
    house.schedule()
    assert loads(house) == "cd", "most of it was to come"
    timed.run(lambda: len(first.output_ids) == 4)
    vault = house.vault
    assert vault
    timed.run(lambda: "c" in vault.coming)
    house.idle(0.8 * LOAD_S)
    second = house.submit(16, 4, model="b", tier="premium")
    timed.run()
    assert loads(house) == "cdcb"
    assert timed.ttft(second) < 0.2 * LOAD_S + LOAD_S + 0.1
    house.check_the_end()


def test_a_pinned_model_comes_though_others_are_asked_for_meanwhile() -> None:
    house = budget(count=2, models=5, load_s=LOAD_S)
    timed = Timed(house)
    assert house.scheduler.pin_model("e", True) == ""
    for model in "cdc":
        house.scheduler.poll_loads()
        house.idle(0.3 * LOAD_S)
        house.submit(16, 2, model=model)
        timed.run()
    assert loads(house) == "ecedec"
    assert "e" in here(house)
    house.check_the_end()


# ---- what a request is told


def test_who_is_kept_out_by_a_higher_tier_is_told_as_long_again_as_that_has_been_there() -> None:
    house = budget(residence_s=1.0)
    timed = Timed(house)
    holder = house.submit(16, 200, model="a", tier="premium")
    timed.run(seconds=0.5)
    assert house.scheduler.admission.weights_wait_s("b", 1) == pytest.approx(1.0 + 0.03), "no less than a stay"
    own_tier_s = house.scheduler.admission.weights_wait_s("b", 0)
    assert own_tier_s == pytest.approx(0.5 + DRAIN_PART + 0.03, abs=0.05)
    house.idle(29.5)
    assert house.scheduler.admission.weights_wait_s("b", 1) == pytest.approx(30.0, abs=0.2)
    refusal = house.offer(house.sequence(model="b", tier="standard"))
    assert refusal, "standard's target is 20 s"
    assert refusal.code == "queue_full"
    assert refusal.retry_after_s == pytest.approx(10.0, abs=0.2)
    waits = house.submit(16, 4, model="b", tier="batch")
    timed.run()
    assert len(waits.output_ids) == 4
    assert len(holder.output_ids) == 200
    house.submit(16, 40, model="a", tier="premium")
    timed.run(seconds=0.2)
    assert house.scheduler.admission.weights_wait_s("b", 1) == pytest.approx(1.03), "a pause begins it anew"
    timed.run()
    house.check_the_end()


def test_no_wait_is_told_beyond_all_use() -> None:
    house = budget()
    sequence = house.submit(16, 40, model="a", tier="premium")
    house.run(2)
    house.idle(10 * PREDICTED_RESIDENCE_S_MAX)
    assert house.scheduler.admission.weights_wait_s("b") == pytest.approx(PREDICTED_RESIDENCE_S_MAX + 0.03)
    house.abort(sequence)
    house.run()
    assert house.scheduler.admission.weights_wait_s("b") == pytest.approx(0.03)
    house.check_the_end()


def test_one_that_is_kept_out_adds_nothing_to_the_wait_of_who_comes_beside_it() -> None:
    house = large(models=("a", "b"), weights={"a": 3, "b": 3}, weights_max=5)
    house.add_model("c", 1)
    timed = Timed(house)
    house.submit(16, 100, model="a", tier="premium")
    timed.run(seconds=0.5)
    house.idle(4.5)
    house.submit(16, 4, model="b", tier="standard")
    house.submit(16, 4, model="c", tier="batch")
    assert house.scheduler.admission.weights_wait_s("b", 1) == pytest.approx(5.0, abs=0.2)
    assert house.scheduler.admission.weights_wait_s("c", 2) == pytest.approx(0.03)
    timed.run()
    house.check_the_end()


def test_a_higher_tier_is_not_told_to_wait_for_a_load_that_it_ends() -> None:
    house = budget(models=3, load_s=1.0)
    house.submit(model="b", tier="batch")
    house.schedule()
    house.idle(0.1)
    assert house.scheduler.admission.weights_wait_s("c", 0) == pytest.approx(1.0)
    urgent = house.submit(model="c", tier="premium")
    house.schedule()
    assert loads(house) == "bc"
    timed = Timed(house)
    timed.run()
    assert timed.ttft(urgent) < 1.1
    house.check_the_end()


def test_who_needs_the_bytes_of_one_on_its_way_is_told_its_stay_too() -> None:
    house = budget(models=3, load_s=LOAD_S, residence_s=2.0)
    timed = Timed(house)
    house.submit(16, 400, model="b", tier="standard")
    house.schedule()
    house.idle(0.5 * LOAD_S)
    assert house.vault
    assert "b" in house.vault.coming
    assert house.scheduler.admission.weights_wait_s("b", 1) == pytest.approx(0.5 * LOAD_S)
    assert house.scheduler.admission.weights_wait_s("c", 1) == pytest.approx(0.5 * LOAD_S + 2.0 + LOAD_S)
    assert house.scheduler.admission.weights_wait_s("c", 2) == pytest.approx(0.5 * LOAD_S + 2.0 + LOAD_S)
    assert house.scheduler.admission.weights_wait_s("c", 0) == pytest.approx(LOAD_S), "that load is given up"
    waits = house.submit(16, 2, model="c", tier="standard")
    timed.run(lambda: len(waits.output_ids) == 2)
    assert timed.ttft(waits) > 2.0 + LOAD_S
    timed.run()
    house.check_the_end()


# ---- idle


def test_what_went_is_given_back_while_nobody_asks() -> None:
    house = budget(count=2, steps_ahead=1)
    house.submit(16, 2, model="a")
    house.run()
    assert house.vault
    house.vault._read.append((1, house.vault._begun + 1))  # a step still reads what went
    assert house.scheduler.has_background_loads, "the loop goes on looking"
    house.vault._read.clear()
    assert not house.scheduler.has_background_loads
    house.check_the_end()
