"""The times of a stop: when a gateway hides, stops listening, closes idle connections and cuts what is left."""

from __future__ import annotations

import pytest

from gateway.config.settings import GatewaySection
from gateway.host.stop_state import QUICK_GRACE_S, StopReason, StopState, StopTimes

LINGER_S, GRACE_S = 5.0, 900.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> StopState:
    return StopState(GatewaySection(linger_s=LINGER_S, shutdown_grace_s=GRACE_S), clock)


def test_a_gateway_that_serves(state: StopState) -> None:
    assert (state.phase, state.seconds) == ("serving", 0.0)
    assert not any((state.is_stopping, state.hides, state.stops_listening(), state.exits, state.is_overdue()))


@pytest.mark.parametrize("reason", [StopReason.STOP, StopReason.DRAIN])
def test_it_hides_at_once_and_listens_until_load_balancers_have_noticed(
    state: StopState, clock: Clock, reason: StopReason
) -> None:
    state.begin_stop(reason)
    assert (state.phase, state.hides, state.is_stopping) == ("lingering", True, True)
    assert not any((state.stops_listening(), state.closes_idle))
    clock.now += LINGER_S
    assert state.stops_listening()
    assert state.closes_idle
    state.note_closed()
    assert state.phase == "finishing"
    clock.now += state.times.finish_s - 1
    assert not state.is_overdue()
    clock.now += 1
    assert state.is_overdue() is (reason is StopReason.STOP), "`laneway drain` alone cuts nothing"
    state.note_drained()
    assert state.phase == "drained"


def test_a_worker_that_was_replaced_stops_listening_at_once_and_its_host_stays_ready(
    state: StopState, clock: Clock
) -> None:
    state.begin_stop(StopReason.REPLACED)
    assert state.stops_listening()
    assert not any((state.hides, state.closes_idle))
    assert state.exits
    clock.now += LINGER_S
    assert state.closes_idle


def test_a_quick_stop_does_not_wait(state: StopState) -> None:
    state.begin_stop(StopReason.STOP)
    state.begin_stop(StopReason.QUICK)
    state.begin_stop(StopReason.STOP)
    assert state.is_quick
    assert state.stops_listening()
    assert state.is_overdue()
    assert sum(state.times) == pytest.approx(QUICK_GRACE_S)


def test_a_stop_after_a_drain_counts_from_the_drain(state: StopState, clock: Clock) -> None:
    """So a preStop hook that drains and the SIGTERM after it have one grace time together."""
    state.begin_stop(StopReason.DRAIN)
    clock.now += LINGER_S + GRACE_S
    assert not state.is_overdue()
    state.begin_stop(StopReason.STOP)
    assert state.is_overdue()


@pytest.mark.parametrize("grace_s", [0.1, 2.0, 30.0, 3600.0])
def test_the_parts_are_the_grace_time_and_requests_have_most_of_it(grace_s: float) -> None:
    times = StopTimes.of(grace_s)
    assert sum(times) == pytest.approx(grace_s)
    assert times.finish_s >= grace_s / 2 - 1e-9
