"""Rate limits on a clock of the test's own."""

from __future__ import annotations

import random

import pytest

from gateway.errors import RateLimited
from gateway.limits import Admission, Allowance, Limiter, duration


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def header(error_or_admission: RateLimited | Admission, name: str) -> str:
    return dict(error_or_admission.headers())[name.encode()].decode()


def test_requests_flow_in_evenly(clock: Clock) -> None:
    limiter, allowance = Limiter(clock), Allowance(6, 1000, 10)
    for _ in range(6):
        limiter.admit("key", allowance, 1).finish(1)
    with pytest.raises(RateLimited, match=r"requests per minute: limit 6, used 6, requested 1. Try again in 10s") as no:
        limiter.admit("key", allowance, 1)
    assert header(no.value, "retry-after") == "10"
    assert header(no.value, "x-should-retry") == "true"
    assert header(no.value, "x-ratelimit-remaining-requests") == "0"
    clock.now += 10
    limiter.admit("key", allowance, 1)
    limiter.admit("another key", allowance, 1)


def test_tokens_not_used_are_given_back(clock: Clock) -> None:
    limiter, allowance = Limiter(clock), Allowance(100, 1000, 10)
    admission = limiter.admit("key", allowance, 900)
    assert header(admission, "x-ratelimit-remaining-tokens") == "100"
    with pytest.raises(RateLimited, match="tokens per minute: limit 1000, used 900, requested 200"):
        limiter.admit("key", allowance, 200)
    admission.finish(tokens_used=50)
    assert header(limiter.admit("key", allowance, 200), "x-ratelimit-remaining-tokens") == "750"


def test_a_refusal_takes_nothing(clock: Clock) -> None:
    limiter, allowance = Limiter(clock), Allowance(2, 100, 10)
    for _ in range(50):
        with pytest.raises(RateLimited):
            limiter.admit("key", allowance, 101)
    limiter.admit("key", allowance, 50)
    limiter.admit("key", allowance, 50)


def test_what_is_given_back_was_never_asked(clock: Clock) -> None:
    limiter, allowance = Limiter(clock), Allowance(1, 10, 1)
    for _ in range(20):
        limiter.admit("key", allowance, 10).give_back()
    admission = limiter.admit("key", allowance, 10)
    with pytest.raises(RateLimited, match="concurrent requests at once: limit 1, used 1"):
        limiter.admit("key", allowance, 1)
    admission.finish(10)
    admission.give_back()  # the first ending counts
    with pytest.raises(RateLimited, match="requests per minute"):
        limiter.admit("key", allowance, 1)


def test_more_than_a_minute_allows_never_fits(clock: Clock) -> None:
    with pytest.raises(RateLimited, match="limit 10, used 0, requested 11"):
        Limiter(clock).admit("key", Allowance(1, 10, 1), 11)


def test_idle_keys_are_forgotten(clock: Clock) -> None:
    limiter, allowance = Limiter(clock, keys_max=10), Allowance(60, 1000, 10)
    running = limiter.admit("running", allowance, 5)
    for number in range(100):
        limiter.admit(f"key{number}", allowance, 5).finish(5)
        clock.now += 10
    assert len(limiter._keys) <= 10
    assert "running" in limiter._keys
    running.finish(5)


def test_never_more_than_the_limit_in_any_minute_beyond_the_burst(clock: Clock) -> None:
    choose = random.Random(7)
    limiter, allowance = Limiter(clock), Allowance(60, 10**9, 10**6)
    admitted: list[float] = []
    for _ in range(5000):
        clock.now += choose.random() / 3
        try:
            limiter.admit("key", allowance, 1).finish(1)
        except RateLimited:
            continue
        admitted.append(clock.now)
    for start in admitted:
        assert sum(start <= at < start + 60 for at in admitted) <= 121  # a full bucket, and what flows in meanwhile


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0121, "13ms"), (0.9999, "1s"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
