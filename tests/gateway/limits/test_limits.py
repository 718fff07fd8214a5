"""The arithmetic of rate limits, on a clock of the test's own."""

from __future__ import annotations

import random
import re

import pytest

from gateway.config.allowance import Allowance
from gateway.errors import ApiError, RateLimited
from gateway.limits import rates
from gateway.limits.rates import MINUTE_US, Rates, Subject, duration

LEASE_US = 15_000_000


class House:
    """Rates and a clock; each request gets a place of its own."""

    def __init__(self, subjects_max: int = 100) -> None:
        self.rates = Rates(LEASE_US, subjects_max)
        self.now = 1_000_000_000
        self._places = 0

    def admit(self, subjects: list[Subject], tokens: int = 1) -> tuple[str, list[tuple[bytes, bytes]]]:
        """Its place, and the headers. Raises RateLimited."""
        self._places += 1
        place = f"p{self._places}"
        decision = self.rates.admit(self.now, subjects, tokens, place)
        if not decision.allowed:
            raise rates.refusal(subjects, decision.taken, tokens)
        return place, rates.headers(subjects, decision.taken)

    def end(self, subjects: list[Subject], place: str, requests: int = 0, tokens: int = 0) -> None:
        self.rates.release_slot(self.now, subjects, place, requests=requests, tokens=tokens)

    def pass_s(self, seconds: float) -> None:
        self.now += round(seconds * 1e6)


@pytest.fixture
def house() -> House:
    return House()


def key(requests: int, tokens: int, concurrency: int, id_: str = "key_a") -> Subject:
    return Subject("key", id_, "ten", Allowance(requests, tokens, concurrency))


def tenant(requests: int, tokens: int, concurrency: int) -> Subject:
    return Subject("tenant", "ten", "ten", Allowance(requests, tokens, concurrency))


def header(found: list[tuple[bytes, bytes]] | ApiError, name: str) -> str:
    return dict(found.headers() if isinstance(found, ApiError) else found)[name.encode()].decode()


def test_requests_flow_in_evenly(house: House) -> None:
    subjects = [key(6, 1000, 10)]
    for _ in range(6):
        house.end(subjects, house.admit(subjects)[0])
    says = r"the key's requests per minute: limit 6, used 6, requested 1\. Try again in (\d+)s\.$"
    with pytest.raises(RateLimited) as no:
        house.admit(subjects)
    told = re.search(says, no.value.message)
    assert told is not None
    assert told[1] == header(no.value, "retry-after"), "clients that read the one wait as long as others"
    assert 10 <= int(header(no.value, "retry-after")) <= 13, "spread, and never too early"
    assert header(no.value, "x-should-retry") == "true"
    assert header(no.value, "x-ratelimit-remaining-requests") == "0"
    house.pass_s(10)
    house.admit(subjects)
    house.admit([key(6, 1000, 10, "key_b")])


def test_tokens_not_used_are_given_back(house: House) -> None:
    subjects = [key(100, 1000, 10)]
    place, headers = house.admit(subjects, 900)
    assert header(headers, "x-ratelimit-remaining-tokens") == "100"
    assert header(headers, "x-ratelimit-reset-tokens") == "54s"
    with pytest.raises(RateLimited, match="tokens per minute: limit 1000, used 900, requested 200"):
        house.admit(subjects, 200)
    house.end(subjects, place, tokens=850)
    assert header(house.admit(subjects, 200)[1], "x-ratelimit-remaining-tokens") == "750"


def test_a_refusal_takes_nothing(house: House) -> None:
    subjects = [key(2, 100, 10)]
    for _ in range(50):
        with pytest.raises(RateLimited):
            house.admit(subjects, 101)
    house.admit(subjects, 50)
    house.admit(subjects, 50)


def test_what_is_given_back_was_never_asked(house: House) -> None:
    subjects = [key(1, 10, 1)]
    for _ in range(20):
        house.end(subjects, house.admit(subjects, 10)[0], requests=1, tokens=10)
    place, _ = house.admit(subjects, 10)
    with pytest.raises(RateLimited, match="concurrent requests at once: limit 1, used 1"):
        house.admit([key(10, 100, 1)])
    house.end(subjects, place)
    house.end(subjects, place, requests=1, tokens=10)  # the first ending counts
    with pytest.raises(RateLimited, match="requests per minute"):
        house.admit(subjects)


def test_key_and_tenant_both_or_none(house: House) -> None:
    """What the tenant's limit refuses is not taken from the key's either; its other key is limited with it."""
    first, second = [key(10, 1000, 9), tenant(3, 1000, 9)], [key(10, 1000, 9, "key_b"), tenant(3, 1000, 9)]
    house.admit(first)
    house.admit(second)
    _, headers = house.admit(first)
    assert header(headers, "x-ratelimit-limit-requests") == "3", "of the one that has less left"
    for subjects in (first, second):
        with pytest.raises(RateLimited, match=r"the tenant's requests per minute: limit 3, used 3"):
            house.admit(subjects)
    assert house.rates.own(first[0])[0] == 2.0
    assert house.rates.own(second[0])[0] == 1.0


def test_the_longest_wait_is_told(house: House) -> None:
    subjects = [key(60, 60, 1), tenant(2, 10_000, 9)]
    place, _ = house.admit(subjects, 60)
    house.admit([tenant(2, 10_000, 9)])
    with pytest.raises(RateLimited, match="the key's tokens per minute: limit 60, used 60, requested 40") as no:
        house.admit(subjects, 40)
    assert no.value.retry_after_s == pytest.approx(40)
    with pytest.raises(RateLimited, match="the tenant's requests per minute") as no:
        house.admit(subjects, 1)
    assert no.value.retry_after_s == pytest.approx(30)
    for _ in range(3):
        house.pass_s(10)
        house.rates.renew(house.now, subjects, place)
    with pytest.raises(RateLimited, match="the key's concurrent requests at once"):
        house.admit(subjects, 1)


def test_more_than_a_minute_allows_never_fits(house: House) -> None:
    with pytest.raises(RateLimited, match="limit 10, used 0, requested 11") as no:
        house.admit([key(1, 10, 1)], 11)
    assert no.value.retry_after_s == 60


def test_a_place_that_nobody_renews_is_free_again(house: House) -> None:
    subjects = [key(100, 1000, 1)]
    place, _ = house.admit(subjects)
    for _ in range(3):
        house.pass_s(10)
        house.rates.renew(house.now, subjects, place)
    house.pass_s(14.999)
    with pytest.raises(RateLimited, match="concurrent"):
        house.admit(subjects)
    house.pass_s(0.001)
    assert house.rates.slots_taken(subjects[0]) == 1
    house.admit(subjects)
    house.end(subjects, place, requests=1, tokens=1)  # its lease is over: it gives nothing back any more
    assert house.rates.own(subjects[0])[0] == 1.0


def test_a_clock_that_goes_back(house: House) -> None:
    subjects = [key(60, 1000, 9)]
    for _ in range(60):
        house.admit([key(60, 1000, 99)])
    house.now -= 3_600_000_000
    with pytest.raises(RateLimited):
        house.admit(subjects)
    house.pass_s(1)
    with pytest.raises(RateLimited, match="concurrent"):
        house.admit(subjects)
    house.admit([key(60, 1000, 99)])


def test_a_limit_that_changes_counts_at_once(house: House) -> None:
    for _ in range(4):
        house.admit([key(10, 1000, 99)])
    with pytest.raises(RateLimited, match="limit 4, used 4"):
        house.admit([key(4, 1000, 99)])
    house.admit([key(5, 1000, 99)])


def test_whoever_is_idle_is_forgotten() -> None:
    house = House(subjects_max=10)
    running = [key(60, 1000, 10, "running")]
    house.admit(running)
    for number in range(100):
        subjects = [key(60, 1000, 10, f"key{number}")]
        house.end(subjects, house.admit(subjects)[0])
    assert len(house.rates) == 10
    assert house.rates.slots_taken(running[0]) == 1


def test_never_more_than_the_limit_in_any_minute_beyond_the_burst(house: House) -> None:
    choose = random.Random(7)
    subjects = [key(60, 10**9, 10**6)]
    admitted: list[int] = []
    for _ in range(5000):
        house.pass_s(choose.random() / 3)
        try:
            house.end(subjects, house.admit(subjects)[0])
        except RateLimited:
            continue
        admitted.append(house.now)
    for start in admitted:
        within = sum(start <= at < start + MINUTE_US for at in admitted)
        assert within <= 121  # a full bucket, and what flows in meanwhile


def test_a_part_is_never_nothing() -> None:
    assert Allowance(7, 100, 1).divided(3) == Allowance(2, 33, 1)
    assert Allowance(7, 100, 1).divided(1) == Allowance(7, 100, 1)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0121, "13ms"), (0.9999, "1s"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
