"""Rate limits in a real Redis: number for number those of this process, shared by gateways, and away, hung, flushed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.ids import new_id
from gateway.config.allowance import Allowance
from gateway.errors import RateLimited
from gateway.limits.limiter import SLOT_LEASE_S, Admission, Limiter
from gateway.limits.rates import Rates, Subject
from gateway.limits.redis_rates import SharedRates
from support.redis_server import RedisServer
from support.waiting import eventually_async

LEASE_US = round(SLOT_LEASE_S * 1e6)
ANSWER_S = 5.0  # a busy machine changes no answer here
HUNG_S = 0.05  # where Redis is hung
PLENTY = Allowance(1_000_000, 10**9, 100_000)

# ---- the script and `Rates`: the same decisions, and the same numbers to the last digit

LIMITS = st.builds(
    Allowance,
    st.sampled_from([1, 3, 7, 60, 6000, 2**31]),
    st.sampled_from([1, 10, 997, 10_000_000, 2**31]),
    st.sampled_from([1, 2, 5, 1000]),
)
TOKENS = st.sampled_from([0, 1, 2, 9, 331, 998, 2_500_000, 2**24])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 1), TOKENS),
        st.tuples(st.just("reserve"), st.integers(0, 30), TOKENS),
        st.tuples(st.just("end"), st.integers(0, 30), TOKENS, st.integers(0, 1)),
        st.tuples(st.just("renew"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.sampled_from([1, 999, 250_000, 7_000_000, 16_000_000, 61_000_000])),
        st.tuples(st.just("limits"), st.integers(0, 2), LIMITS),
    ),
    max_size=40,
)


class Twins:
    """One history for both. Redis asks its own clock; what it read there is the other's clock. Time passes when what
    both remember is made older by as much: a minute in no time, and the script runs as it is."""

    def __init__(self, shared: SharedRates, client: redis.Redis) -> None:
        self._shared, self._client = shared, client
        self._rates = Rates(LEASE_US)
        self._nothing = Rates(LEASE_US)
        family = new_id("ten")
        self._ids = [new_id("key"), new_id("key"), family]
        self._family = family
        self._limits = [Allowance(3, 1000, 2)] * 3
        self._places: list[tuple[int, str]] = []

    def _subjects(self, key: int) -> list[Subject]:
        return [
            Subject("key", self._ids[key], self._family, self._limits[key]),
            Subject("tenant", self._ids[2], self._family, self._limits[2]),
        ]

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("admit", key, tokens):
                place = f"p{len(self._places)}"
                self._places.append((key, place))
                subjects = self._subjects(key)
                told = await self._shared.admit(subjects, tokens, place, self._nothing)
                assert self._rates.admit(told.at, subjects, tokens, place) == told
            case ("reserve", number, tokens) if number < len(self._places):
                key, place = self._places[number]
                subjects = self._subjects(key)
                told = await self._shared.admit(subjects, tokens, place, self._nothing, requests=0)
                assert self._rates.admit(told.at, subjects, tokens, place, requests=0) == told
            case ("end", number, tokens, requests) if number < len(self._places):
                key, place = self._places[number]
                subjects = self._subjects(key)
                told = await self._shared.release_slot(subjects, place, requests=requests, tokens=tokens)
                ended = self._rates.release_slot(told.at, subjects, place, requests=requests, tokens=tokens)
                assert ended == told.taken
            case ("renew", number) if number < len(self._places):
                key, place = self._places[number]
                subjects = self._subjects(key)
                told = await self._shared.renew(subjects, place, self._nothing)
                self._rates.renew(told.at, subjects, place)
            case ("limits", which, allowance):
                self._limits[which] = allowance
            case ("pass", micros):
                self._pass(micros)

    def _pass(self, micros: int) -> None:
        for known in self._rates._known.values():
            known.at -= micros
            known.slots = {slot: until - micros for slot, until in known.slots.items()}
        for id_ in self._ids:
            rates, places = (f"laneway:{{{self._family}}}:{id_}:{what}" for what in ("rates", "places"))
            if self._client.exists(rates):
                self._client.hincrby(rates, "at", -micros)
            for place, _ in self._client.zscan_iter(places):
                self._client.zincrby(places, -micros, place)


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    made = redis.Redis.from_url(redis_url, decode_responses=True)
    yield made
    made.close()


@given(steps=STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_decides_as_this_process_does(redis_url: str, client: redis.Redis, steps: list[Any]) -> None:
    async def history() -> None:
        shared = SharedRates(redis_url, LEASE_US, ANSWER_S)
        twins = Twins(shared, client)
        for step in steps:
            await twins.do(step)
        await shared.close()

    asyncio.run(history())


async def test_what_redis_holds_ends_by_itself(redis_url: str, client: redis.Redis) -> None:
    shared = SharedRates(redis_url, LEASE_US, ANSWER_S)
    one = subjects(Allowance(60, 1000, 9))
    await shared.admit(one, 500, "p", Rates(LEASE_US))
    found = {key.rsplit(":", 1)[1]: client.pttl(key) for key in client.scan_iter(f"laneway:*{one[0].id}*")}
    assert 0 < found["rates"] <= 31_000  # when all has flowed out, and a second
    assert 0 < found["places"] <= LEASE_US // 1000
    await shared.close()


# ---- limiters: each a gateway's


def subjects(key: Allowance, tenant: Allowance = PLENTY) -> list[Subject]:
    family = new_id("ten")
    return [Subject("key", new_id("key"), family, key), Subject("tenant", family, family, tenant)]


@asynccontextmanager
async def limiter(url: str, gateways: int = 1, answer_s: float = ANSWER_S) -> AsyncIterator[Limiter]:
    async def count() -> int:
        return gateways

    made = Limiter(shared=SharedRates(url, LEASE_US, answer_s), count_gateways=count)
    await made.start()
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await made.close()


async def allowed(ask: Callable[[], Awaitable[Admission]], most: int) -> list[Admission]:
    """All that are admitted of so many."""
    found: list[Admission] = []
    for _ in range(most):
        try:
            found.append(await ask())
        except RateLimited:
            break
    return found


def away(one: Limiter) -> bool:
    assert one._shared is not None
    return one._shared.unavailable


async def test_gateways_share_their_limits(redis_url: str) -> None:
    one = subjects(Allowance(7, 1000, 100))
    async with limiter(redis_url, 2) as first, limiter(redis_url, 2) as second:
        turns = [await turn.admit(one, 1) for turn in (first, second) * 3]
        assert len(await allowed(lambda: first.admit(one, 1), 5)) == 1
        with pytest.raises(RateLimited, match="limit 7, used 7"):
            await second.admit(one, 1)
        for admission in turns:
            await admission.finish_request(1)


async def test_places_and_tokens_come_back(redis_url: str) -> None:
    one = subjects(Allowance(1000, 1000, 2))
    async with limiter(redis_url) as first, limiter(redis_url) as second:
        running = [await first.admit(one, 500), await second.admit(one, 500)]
        with pytest.raises(RateLimited):
            await first.admit(one, 1)
        await running[0].finish_request(100)
        left = {name: value for name, value in running[0].headers() if b"remaining" in name}
        assert 400 <= int(left[b"x-ratelimit-remaining-tokens"]) <= 402
        await running[1].refund()
        await running[1].refund()  # once
        again = await second.admit(one, 895)
        await again.finish_request(895)


async def test_one_that_grows_is_counted_once(redis_url: str) -> None:
    """Another model may make more of it: it keeps its only place, and what it reserved before is not taken twice."""
    one = subjects(Allowance(1000, 1000, 1))
    async with limiter(redis_url) as first, limiter(redis_url) as second:
        admission = await first.admit(one, 300)
        await first.reserve(admission, 200)
        assert admission.tokens == 300, "what was reserved is enough"
        await first.reserve(admission, 900)
        with pytest.raises(RateLimited, match="concurrent"):
            await second.admit(one, 1)
        await admission.finish_request(850)
        left = {name: int(value) for name, value in admission.headers() if b"remaining" in name}
        assert 150 <= left[b"x-ratelimit-remaining-tokens"] <= 160
        assert 998 <= left[b"x-ratelimit-remaining-requests"] <= 999
        grown = await second.admit(one, 100)
        with pytest.raises(RateLimited, match="tokens per minute"):
            await second.reserve(grown, 500)
        assert grown.tokens == 100, "it is as it was"
        await grown.refund()
        await (await first.admit(one, 150)).finish_request(0)  # nothing of it is left


@pytest.mark.parametrize("grows", [False, True])
async def test_whoever_is_gone_before_the_answer_takes_nothing(redis_url: str, grows: bool) -> None:
    """After however many turns of the loop."""
    theirs = [subjects(Allowance(1000, 1000, 1)) for _ in range(12)]
    async with limiter(redis_url) as first, limiter(redis_url) as second:
        for turns, one in enumerate(theirs):
            begun = await first.admit(one, 100) if grows else None
            asked = asyncio.create_task(first.admit(one, 900) if begun is None else first.reserve(begun, 900))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
            with suppress(asyncio.CancelledError):
                if (taken := await asked or begun) is not None:
                    await taken.refund()
            if begun is not None:
                await begun.refund()  # as whoever has it does
        deadline = time.monotonic() + SLOT_LEASE_S / 2
        for one in theirs:
            while not (found := await allowed(lambda one=one: second.admit(one, 900), 1)):
                assert time.monotonic() < deadline
            await found[0].refund()


async def test_an_ending_in_the_moment_of_a_late_answer_gives_back_what_the_answer_took(redis_url: str) -> None:
    """A cancelled reservation was answered, but the callbacks have not run yet when the request ends."""
    one = subjects(Allowance(1000, 1000, 1))
    async with limiter(redis_url) as first, limiter(redis_url) as second:
        admission = await first.admit(one, 100)
        shared, questions = first._shared, []
        assert shared is not None
        ask = shared.admit
        shared.admit = lambda *asked: questions.append(ask(*asked)) or questions[-1]  # type: ignore[func-returns-value, method-assign]
        growing = asyncio.create_task(first.reserve(admission, 900))
        while not questions:  # noqa: ASYNC110
            await asyncio.sleep(0)
        growing.cancel()
        while not questions[0].done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await admission.refund()
        await (await second.admit(one, 900)).refund()


async def test_of_a_hundred_at_once_as_many_as_are_allowed(redis_url: str) -> None:
    one = subjects(Allowance(1000, 10**9, 1000), Allowance(40, 10**9, 1000))
    async with limiter(redis_url) as first, limiter(redis_url) as second:
        asked = [turn.admit(one, 1) for turn in (first, second) * 50]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Admission) for answer in answers) == 40
    assert sum(isinstance(answer, RateLimited) for answer in answers) == 60


async def test_a_dead_gateways_places_come_back(redis_url: str, client: redis.Redis) -> None:
    one = subjects(Allowance(1000, 10**6, 3))
    async with limiter(redis_url) as dead:
        assert len(await allowed(lambda: dead.admit(one, 1), 9)) == 3
    async with limiter(redis_url) as living:
        with pytest.raises(RateLimited, match="concurrent requests at once: limit 3, used 3"):
            await living.admit(one, 1)
        key = f"laneway:{{{one[0].family}}}:{one[0].id}:places"
        for place, _ in client.zscan_iter(key):
            client.zincrby(key, -LEASE_US, place)
        assert len(await allowed(lambda: living.admit(one, 1), 9)) == 3


async def test_who_runs_for_long_keeps_its_place(redis_url: str, client: redis.Redis) -> None:
    one = subjects(Allowance(1000, 10**6, 1))
    key = f"laneway:{{{one[0].family}}}:{one[0].id}:places"
    async with limiter(redis_url) as house:
        running = await house.admit(one, 1)
        [(place, until)] = client.zscan_iter(key)
        client.zincrby(key, -LEASE_US // 2, place)
        house._redis_lacks_slots.set()  # as it is after RENEW_S
        await eventually_async(lambda: (client.zscore(key, place) or 0) >= until)
        await running.finish_request(1)
        assert client.zcard(key) == 0


# ---- Redis away, hung, flushed


async def test_away_each_gateway_allows_its_part_and_comes_back(redis_server: RedisServer) -> None:
    one = subjects(Allowance(12, 10**6, 100))
    first = time.monotonic()
    async with limiter(redis_server.url, 3) as house:
        before = await house.admit(one, 1)
        redis_server.kill()
        began = time.monotonic()
        admitted = await allowed(lambda: house.admit(one, 1), 20)
        assert time.monotonic() - began < 20
        assert away(house)
        assert len(admitted) == 3, "a third of twelve, of which one was used"
        assert (b"x-ratelimit-limit-requests", b"4") in admitted[0].headers()
        await before.finish_request(1)
        redis_server.start()
        await eventually_async(lambda: not away(house))
        more = await allowed(lambda: house.admit(one, 1), 20)
        refilled = (time.monotonic() - first) // 5  # one every five seconds
        assert 8 <= len(more) <= 10 + refilled, "what was allowed meanwhile counts: twelve in all"
        for admission in [*admitted, *more]:
            await admission.finish_request(1)


async def test_hung_it_costs_nobody_more_than_a_moment(redis_server: RedisServer) -> None:
    one = subjects(Allowance(1000, 10**6, 100))
    async with limiter(redis_server.url, 1, HUNG_S) as house:
        running = await house.admit(one, 1)
        redis_server.freeze()
        took: list[float] = []
        admitted: list[Admission] = []
        for _ in range(12):
            began = time.monotonic()
            admitted.append(await house.admit(one, 1))
            took.append(time.monotonic() - began)
        assert away(house)
        # Whoever asks first waits for an answer; the later ones ask nobody. The rest is a busy machine's.
        assert max(took) < HUNG_S + 5
        redis_server.thaw()
        await eventually_async(lambda: not away(house))
        for admission in [running, *admitted]:
            await admission.finish_request(1)
        key = f"laneway:{{{one[0].family}}}:{one[0].id}"
        await eventually_async(lambda: redis_server.client.zcard(f"{key}:places") == 0)


async def test_flushed_it_learns_again_what_was_taken_and_who_runs(redis_server: RedisServer) -> None:
    one = subjects(Allowance(10, 10**6, 5))
    async with limiter(redis_server.url) as house:
        first = time.monotonic()
        running = await allowed(lambda: house.admit(one, 1), 4)
        redis_server.client.flushall()
        redis_server.client.script_flush()
        fifth = await house.admit(one, 1)
        key = f"laneway:{{{one[0].family}}}:{one[0].id}:places"
        await eventually_async(lambda: redis_server.client.zcard(key) == 5)
        with pytest.raises(RateLimited, match="concurrent"):
            await house.admit(one, 1)
        for admission in [*running, fifth]:
            await admission.finish_request(1)
        left = len(await allowed(lambda: house.admit(one, 1), 9))
        assert 5 <= left <= 5 + (time.monotonic() - first) // 6, "five of ten, and one every six seconds"
        assert not away(house)


async def test_one_that_takes_no_writes_is_away(redis_server: RedisServer) -> None:
    one = subjects(Allowance(1000, 10**6, 5))
    async with limiter(redis_server.url) as house:
        await (await house.admit(one, 1)).finish_request(1)
        redis_server.client.replicaof("127.0.0.1", 1)
        admitted = await house.admit(one, 1)
        assert away(house)
        await house.refresh()
        assert away(house), "it answers, and is of no use"
        redis_server.client.replicaof("NO", "ONE")
        await eventually_async(lambda: not away(house))
        await admitted.finish_request(1)


async def test_an_answer_that_comes_too_late_is_given_back(redis_server: RedisServer) -> None:
    """It was refused here meanwhile, by this gateway's part, and allowed there."""
    one = subjects(Allowance(10, 1000, 100))
    async with limiter(redis_server.url, 10, HUNG_S) as house:
        running = await house.admit(one, 10)
        redis_server.freeze()
        with pytest.raises(RateLimited, match="limit 100, used 10, requested 600"):
            await house.admit(one, 600)
        redis_server.thaw()
        key = f"laneway:{{{one[0].family}}}:{one[0].id}"
        await eventually_async(lambda: float(redis_server.client.hget(f"{key}:rates", "tokens") or 999) <= 10)
        await eventually_async(lambda: redis_server.client.zcard(f"{key}:places") == 1)
        await running.finish_request(10)


async def test_a_question_that_breaks_off_leaves_nothing_counted(redis_server: RedisServer) -> None:
    """Refused here, by this gateway's part; heard by Redis, whose answer nobody read. So is the end of one that ran."""
    one = subjects(Allowance(10, 1000, 100))
    key = f"laneway:{{{one[0].family}}}:{one[0].id}"
    async with limiter(redis_server.url, 10, HUNG_S) as house:
        running, ending = await house.admit(one, 10), await house.admit(one, 20)
        redis_server.freeze()
        with pytest.raises(RateLimited):
            await house.admit(one, 600)
        await ending.refund()
        await eventually_async(lambda: len(house._unreported) == 2)
        redis_server.thaw()
        await eventually_async(lambda: not away(house))
        await eventually_async(lambda: redis_server.client.zcard(f"{key}:places") == 1)
        rates = redis_server.client.hmget(f"{key}:rates", "requests", "tokens")
        requests, tokens = (float(rate or 0) for rate in rates)
        assert (requests <= 1, tokens <= 10) == (True, True)
        assert not house._unreported
        await running.finish_request(10)
        assert redis_server.client.zcard(f"{key}:places") == 0


async def test_of_one_admitted_here_redis_has_the_place_and_no_more(redis_server: RedisServer) -> None:
    """Its question broke off: what it takes is counted here, and once."""
    one = subjects(Allowance(100, 1000, 100))
    key = f"laneway:{{{one[0].family}}}:{one[0].id}"
    async with limiter(redis_server.url, 1, HUNG_S) as house:
        redis_server.freeze()
        running = await house.admit(one, 300)
        await eventually_async(lambda: len(house._unreported) == 1)
        redis_server.thaw()
        await eventually_async(lambda: not away(house))
        await eventually_async(lambda: redis_server.client.zcard(f"{key}:places") == 1)
        again = await house.admit(one, 1)
        assert 250 <= float(redis_server.client.hget(f"{key}:rates", "tokens") or 0) <= 301
        await again.finish_request(1)
        await running.finish_request(300)
        assert redis_server.client.zcard(f"{key}:places") == 0


async def test_a_gateway_started_while_redis_is_away_begins_no_minute_anew(redis_server: RedisServer) -> None:
    one = subjects(Allowance(6, 10**6, 5))
    redis_server.kill()
    async with limiter(redis_server.url) as house:
        assert away(house)
        first = time.monotonic()
        admitted = await allowed(lambda: house.admit(one, 1), 4)
        redis_server.start()
        await eventually_async(lambda: not away(house))
        admitted += await allowed(lambda: house.admit(one, 1), 1)
        await eventually_async(
            lambda: redis_server.client.zcard(f"laneway:{{{one[0].family}}}:{one[0].id}:places") >= 1
        )
        house._redis_lacks_slots.set()
        await eventually_async(
            lambda: redis_server.client.zcard(f"laneway:{{{one[0].family}}}:{one[0].id}:places") == 5
        )
        with pytest.raises(RateLimited, match="at once: limit 5, used 5"):
            await house.admit(one, 1)
        for admission in admitted:
            await admission.finish_request(1)
        left = len(await allowed(lambda: house.admit(one, 1), 9))
        assert 1 <= left <= 1 + (time.monotonic() - first) // 10, "six in all, and one every ten seconds"


async def test_without_redis_the_gateways_divide() -> None:
    async def count() -> int:
        return 2

    house = Limiter(count_gateways=count)
    await house.start()
    one = subjects(Allowance(8, 1000, 100))
    assert len(await allowed(lambda: house.admit(one, 1), 20)) == 4
    alone = Limiter()
    await alone.start()
    assert len(await allowed(lambda: alone.admit(one, 1), 20)) == 8


@pytest.mark.parametrize("url", ["http://h", "redis//h", ""])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="Redis URL must specify"):
        SharedRates(url, LEASE_US, ANSWER_S)
