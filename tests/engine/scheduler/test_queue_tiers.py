"""For which tiers' requests the device computed while a request waited for its first chunk."""

from __future__ import annotations

from typing import Any

import pytest

from support.engine.scheduler_auditor import House


def one_slot(**limits: Any) -> House:
    """The shipped tiers, with one request in the batch at a time."""
    return House(sequences_max=1, pages=64, **limits)


def test_the_wait_is_split_by_the_tiers_that_the_device_computed() -> None:
    house = one_slot()
    house.submit(8, 3, tier="standard")
    house.schedule()
    waiting = house.submit(8, 2, tier="batch")
    house.complete(seconds=0.02)
    house.submit(8, 1, tier="premium")
    house.run()
    standard_s, premium_s = waiting.queue_device_s["standard"], waiting.queue_device_s["premium"]
    assert set(waiting.queue_device_s) == {"standard", "premium"}
    assert standard_s >= 0.02
    assert waiting.started_at is not None
    assert standard_s + premium_s == pytest.approx(waiting.started_at - waiting.arrived_at)
    house.check_the_end()


def test_a_request_that_starts_at_once_waited_for_no_tier() -> None:
    house = one_slot()
    first = house.submit(8, 2, tier="standard")
    house.run()
    second = house.submit(8, 2, tier="standard")
    house.run()
    assert first.queue_device_s == second.queue_device_s == {}


def test_of_a_step_that_began_before_the_arrival_only_the_wait_counts() -> None:
    house = one_slot()
    house.submit(8, 1, tier="premium")
    house.schedule()
    house.complete(seconds=0.5)
    waiting = house.sequence(8, 1, tier="batch")
    waiting.arrived_at = house.clock.now - 0.1  # during the step; the loop queues it after the step
    assert house.offer(waiting) is None
    house.run()
    assert waiting.queue_device_s == {"premium": pytest.approx(0.1)}


def test_the_part_of_a_step_before_the_arrival_takes_nothing_from_the_next_steps() -> None:
    house = one_slot()
    house.submit(8, 1, tier="premium")
    house.schedule()
    house.complete(seconds=1.0)
    house.submit(8, 1, tier="standard")
    waiting = house.sequence(8, 1, tier="batch")
    waiting.arrived_at = house.clock.now - 0.01
    assert house.offer(waiting) is None
    house.schedule()
    house.complete(seconds=0.5)
    house.run()
    assert waiting.queue_device_s == {"premium": pytest.approx(0.01), "standard": pytest.approx(0.5, abs=0.02)}


def test_a_request_that_ends_in_the_queue_has_its_wait_too() -> None:
    house = one_slot()
    house.submit(8, 4, tier="premium")
    house.schedule()
    waiting = house.submit(8, 1, tier="batch")
    house.complete(seconds=0.25)
    house.abort(waiting)
    assert waiting.started_at is None
    assert waiting.queue_device_s == {"premium": pytest.approx(0.25)}
    house.run()
    house.check_the_end()


def test_a_preemption_does_not_change_the_tally_of_the_first_wait() -> None:
    house = one_slot()
    house.submit(8, 1, tier="standard")
    house.schedule()
    low = house.submit(8, 12, tier="batch")
    house.complete(seconds=0.04)
    house.schedule()
    house.complete()
    house.submit(8, 2, tier="premium")
    house.run()
    assert low.preemptions > 0
    assert low.queue_device_s == {"standard": pytest.approx(0.04)}
    house.check_the_end()
