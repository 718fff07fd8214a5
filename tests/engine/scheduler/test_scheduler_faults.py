"""An exception in one request's scheduling ends that request: it is counted and logged, ownership stays consistent, and
the other requests run to their ends unchanged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from engine.protocol.frames import FinishReason
from engine.protocol.tiers import Tier
from engine.step import DeviceLost, Sequence
from support.engine.scheduler_auditor import House
from support.engine.schedules import Trap

ADAPTERS = {"a": ("base", 3), "b": ("base", 6)}
# Where one request's scheduling can raise: an attribute of the scheduler, and a method.
PLACES: dict[str, Callable[[House], tuple[Any, str]]] = {
    "pages for a join or a growth": lambda house: (house.arena, "allocate"),
    "prefix cache, match": lambda house: (house.scheduler.prefix, "match"),
    "prefix cache, publish": lambda house: (house.scheduler.prefix, "publish"),
    "adapter is ready": lambda house: (house.scheduler.residency, "is_adapter_ready"),
    "adapter is placed": lambda house: (house.table, "place_adapter"),
    "adapter is evicted": lambda house: (house.table, "evict_adapter"),
    "adapter is waited for": lambda house: (house.scheduler.residency, "add_waiting"),
    "adapter is waited for no more": lambda house: (house.scheduler.residency, "remove_waiting"),
    "pages are copied out": lambda house: (house.slots, "copy_out"),
    "pages are copied in": lambda house: (house.slots, "copy_in"),
    "room is made": lambda house: (house.scheduler._capacity, "_evict_for_entry"),
    "request joins": lambda house: (house.scheduler._capacity, "join_batch"),
    "request grows": lambda house: (house.scheduler._capacity, "grow_entry"),
    "request leaves the queue": lambda house: (house.scheduler._queues[1], "note_joined"),
    "request ends in the queue": lambda house: (house.scheduler._queues[1], "remove_ended"),
    "request is put back": lambda house: (house.scheduler._queues[1], "requeue"),
    "share is charged": lambda house: (house.scheduler._queues[1], "charge"),
    "chunk is planned": lambda house: (house.scheduler._planner, "_plan_prefill"),
    "preemption is noted": lambda house: (house.scheduler.preempted, "record_preemption"),
}


def busy_house(steps_ahead: int = 0) -> House:
    """Two tiers that preempt each other, adapters that evict each other, and host slots for swapped pages."""
    tiers = (
        Tier(name="a", service_tier="priority", preemptible=False),
        Tier(name="b", service_tier="default", floor=0.2, preemptions_max=2),
    )
    return House(
        tiers=tiers, pages=16, sequences_max=5, step_tokens_max=40, prefill_tokens_min=8, adapters=ADAPTERS,
        host_slots=6, steps_ahead=steps_ahead,
    )  # fmt: skip


def crowd(house: House) -> list[Sequence]:
    """Three waves of requests, each queued while the previous ones run."""
    asked = []
    for wave in range(3):
        adapters = ("a", None, "b")
        asked += [house.submit(7 + wave, 9, tier="b", adapter=adapter, share=f"s{wave}") for adapter in adapters]
        house.run(3)
        asked.append(house.submit(20, 3, tier="a", namespace=f"n{wave}"))
        house.run(2)
    house.run()
    return asked


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_one_request_s_scheduling_ends_that_request_alone(
    place: str, nth: int, steps_ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    house = busy_house(steps_ahead)
    house.faults_made = True
    trap = Trap(*PLACES[place](house), nth, KeyError("made to fail"))
    with caplog.at_level(logging.ERROR, "engine.scheduler.faults"):
        try:
            asked = crowd(house)
        except KeyError:
            assert place == "adapter is waited for", "submitting raised: the worker answers that"
            assert house.scheduler.faults.count == 1
            house.run()
            house.check_the_end()
            return
    if trap.calls < nth:
        assert house.scheduler.faults.count == 0
    else:
        assert house.scheduler.faults.count == 1
        (record,) = [record for record in caplog.records if record.message == "scheduling.failed"]
        assert record.exc_info
        (failed,) = house.faulty
        assert record.__dict__["fields"]["request_id"] == failed.sequence.request_id
        assert "made to fail" not in failed.message
        reasons: list[FinishReason] = [house.books[s.handle].ending.reason for s in asked if s is not failed.sequence]  # type: ignore[union-attr]
        assert reasons == ["length"] * (len(asked) - 1)
    house.check_the_end()


@pytest.mark.parametrize("place", ["request leaves the queue", "adapter is waited for no more", "share is charged"])
def test_a_fault_after_the_work_was_done_leaves_nothing_behind(place: str) -> None:
    house = busy_house()
    house.faults_made = True
    Trap(*PLACES[place](house), 2, KeyError("made to fail"), after=True)
    crowd(house)
    assert house.scheduler.faults.count == 1
    house.check_the_end()


def test_requests_of_which_no_step_can_be_made_end_and_the_others_go_on() -> None:
    house = busy_house()
    house.faults_made = True
    first, second = house.submit(8, 4, tier="b"), house.submit(8, 4, tier="b")
    join = house.scheduler._planner._admit
    house.scheduler._planner._admit = lambda plan, entry: entry.sequence is not first and join(plan, entry)  # type: ignore[method-assign]
    house.run()
    assert house.scheduler.faults.count == 1
    assert house.books[first.handle].ending.message == "internal error: NoStep"  # type: ignore[union-attr]
    assert len(second.output_ids) == 4
    house.check_the_end()


def test_an_id_that_cannot_be_taken_in_is_nobody_s() -> None:
    house = busy_house()
    house.faults_made = True
    asked = [house.submit(4, 6, tier="b", share=share) for share in "xy"]
    house.run(2)
    Trap(house.scheduler._queues[1], "charge", 1, ValueError("made to fail"))
    house.run()
    assert sorted(len(sequence.output_ids) for sequence in asked) == [2, 6]
    assert house.scheduler.results.tokens_overrun == 1
    house.check_the_end()


def test_where_pages_are_owned_wrongly_the_engine_ends() -> None:
    """A page with two owners would show one request's text to the other."""
    house = busy_house()
    house.faults_made = True
    house.submit(8, 8, tier="b")
    house.run(2)
    Trap(house.arena, "allocate", 1, ValueError("made to fail"), after=True)
    house.submit(8, 8, tier="b", share="other")
    with pytest.raises(AssertionError, match="references"):
        house.scheduler.schedule()


def test_a_lost_device_is_no_fault_of_a_request() -> None:
    house = busy_house()
    Trap(house.table, "place_adapter", 1, DeviceLost("made to fail"))
    house.submit(8, 8, tier="b", adapter="a")
    with pytest.raises(DeviceLost):
        house.run()


def test_a_pinned_adapter_that_cannot_be_placed_fails_those_that_wait_for_it() -> None:
    house = busy_house()
    Trap(house.table, "place_adapter", 1, OSError("made to fail"))
    house.pin("a", True)
    other = house.submit(8, 4, tier="b")
    house.run()
    assert len(other.output_ids) == 4
    assert house.scheduler.residency.counts().failures == 1
    house.check_the_end()


def test_a_first_request_whose_room_raises_is_no_claim() -> None:
    """The request that could not join is also the first request for which others are preempted. It has ended, so it
    must not block others from taking room."""
    house = House(tiers=(Tier(name="a", service_tier="default", ageing_s=0.05),), sequences_max=2)
    for _ in range(2):
        house.submit(4, 30, tier="a", share="x")
    house.run(3)
    first = house.submit(4, 4, tier="a", share="y")
    house.faults_made = True
    trap = Trap(house.scheduler._first_requests, "preempt_for_first", 1)
    while not trap.sprung:
        house.run(1)
    assert house.books[first.handle].ending is not None
    assert house.scheduler._planner.capacity_claims() == []
    house.run()
    house.check_the_end()
    assert [ended.sequence for ended in house.faulty] == [first]
