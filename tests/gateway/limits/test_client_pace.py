"""A client's further requests of a kind are delayed: refusals, and a tenant's administrative writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.limits.client_pace import BURST_S, CLIENTS_MAX, DELAY_S_MAX, ClientPace
from support.stack import Stack


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_answered_at_once_and_then_one_every_interval() -> None:
    clock = Clock()
    pace = ClientPace(10.0, clock=clock)
    delays = [round(pace.delay_s("a"), 6) for _ in range(8)]
    assert delays == [0.0] * 2 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "a burst, then a tenth of a second each"
    assert pace.delay_s("b") == 0.0, "another client's refusals are not delayed"
    clock.now += 0.6 + BURST_S
    assert [pace.delay_s("a") for _ in range(2)] == [0.0] * 2, "after a pause the burst is whole"


def test_no_refusal_waits_for_longer_than_a_second() -> None:
    clock = Clock()
    pace = ClientPace(10.0, clock=clock)
    assert max(pace.delay_s("a") for _ in range(1000)) == DELAY_S_MAX
    clock.now += DELAY_S_MAX + BURST_S
    assert pace.delay_s("a") == 0.0


def test_clients_are_forgotten_in_time_and_in_number() -> None:
    clock = Clock()
    pace = ClientPace(10.0, clock=clock)
    for number in range(CLIENTS_MAX):
        pace.delay_s(str(number))
    clock.now += 2 * BURST_S
    pace.delay_s("one more")
    assert len(pace._due) == 1
    for number in range(2 * CLIENTS_MAX):
        pace.delay_s(f"at once {number}")
    assert len(pace._due) <= CLIENTS_MAX


async def test_nothing_is_delayed_without_a_limit() -> None:
    pace = ClientPace(0.0)
    assert not any([await pace.wait("a") for _ in range(1000)])


def test_a_slow_pace_answers_the_first_refusal_at_once() -> None:
    pace = ClientPace(0.1, clock=Clock())
    assert [pace.delay_s("a") for _ in range(2)] == [0.0, DELAY_S_MAX]


def test_a_flood_of_refusals_is_slowed_and_counted(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(gateway_toml="refusals_per_s = 2.0\n")

    def refused(_: int) -> float:
        began = time.monotonic()
        assert stack.chat(messages=[]).status_code == 400
        return time.monotonic() - began

    with ThreadPoolExecutor(8) as threads:
        seconds = list(threads.map(refused, range(8)))
    assert sorted(seconds)[2] >= 1 / 2, "one is in the burst, one is half a second late, and the others a second"
    assert max(seconds) >= DELAY_S_MAX
    assert stack.chat("globex").status_code == 200
    assert "\nlaneway_refusals_delayed_total 7.0\n" in stack.metrics()
