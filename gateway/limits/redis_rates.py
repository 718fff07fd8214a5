"""The rate limits of `limits.py` in Redis, so that all gateways share them: one script, whose clock is the server's.

Redis is never the truth: if it is unavailable or loses its data, no request fails for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from billing.coalescer import Coalescer, TooManyWaiting
from gateway.limits.rates import Decision, Rates, Subject, SubjectUse

PREFIX = "laneway"
BATCH_MAX = 256  # calls of one round trip
WAITING_MAX = 10_000  # calls that wait for a round trip; above it Redis counts as unavailable
SOCKET_S_MIN = 1.0  # for a connection, and for an answer; callers have shorter timeouts
SILENCE = 5  # × a request's timeout: after a longer round trip Redis counts as unavailable
TURNS = 4  # of the event loop, from the socket to the waiting caller

_log = logging.getLogger(__name__)

# KEYS: for each subject the hash of its rates and the sorted set of its places.
# ARGV[1], in words, since a client's time goes by arguments: what to do, the place, how long it lasts (microseconds),
# tokens and requests to take or to give back; then, for each subject, its three limits, and what the asking gateway
# itself has taken of requests and tokens, and when: there is at least that much, whatever Redis forgot. The answer is
# words too. Numbers are doubles with all their digits, as in `Rates`.
SCRIPT = """
local MINUTE = 60000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local word = string.gmatch(ARGV[1], '%S+')
local function number() return tonumber(word()) end
local function exact(value) return string.format('%.17g', value) end
local function flowed(taken, at, limit)
  return math.max(0, taken - math.max(0, now - at) * limit / MINUTE)
end

local what, place = word(), word()
local lease, tokens, requests = number(), number(), number()
local subjects, allowed = {}, true
for i = 1, #KEYS / 2 do
  local subject = {rates = KEYS[2 * i - 1], places = KEYS[2 * i]}
  subject.requests_max, subject.tokens_max = number(), number()
  local running_max, own_requests, own_tokens, own_at = number(), number(), number(), number()
  local known = redis.call('HMGET', subject.rates, 'requests', 'tokens', 'at')
  local function taken(index, own, limit)
    return math.max(flowed(tonumber(known[index] or 0), tonumber(known[3] or 0), limit), flowed(own, own_at, limit))
  end
  subject.requests = taken(1, own_requests, subject.requests_max)
  subject.tokens = taken(2, own_tokens, subject.tokens_max)
  redis.call('ZREMRANGEBYSCORE', subject.places, '-inf', now)
  allowed = allowed and (requests == 0 or subject.requests + requests <= subject.requests_max)
    and subject.tokens + tokens <= subject.tokens_max
    and (redis.call('ZCARD', subject.places) + 1 <= running_max or redis.call('ZSCORE', subject.places, place))
  subjects[i] = subject
end

local function hold(subject)
  redis.call('ZADD', subject.places, now + lease, place)
  redis.call('PEXPIRE', subject.places, math.ceil(lease / 1000))
end

local said = {allowed and 1 or 0, exact(now)}
for i, subject in ipairs(subjects) do
  if what == 'renew' then
    hold(subject)
  elseif what == 'end' then
    if redis.call('ZREM', subject.places, place) == 1 then
      subject.requests = math.max(0, subject.requests - requests)
      subject.tokens = math.max(0, subject.tokens - tokens)
    end
  elseif allowed then
    subject.requests = subject.requests + requests
    subject.tokens = subject.tokens + tokens
    hold(subject)
  end
  local r, t = exact(subject.requests), exact(subject.tokens)
  local empty = math.max(subject.requests / subject.requests_max, subject.tokens / subject.tokens_max) * MINUTE / 1000
  redis.call('HSET', subject.rates, 'requests', r, 'tokens', t, 'at', exact(now))
  redis.call('PEXPIRE', subject.rates, math.ceil(empty) + 1000)
  said[#said + 1] = r
  said[#said + 1] = t
  said[#said + 1] = redis.call('ZCARD', subject.places)
end
return table.concat(said, ' ')
"""
PROBE = "end probe 1 0 0 1 1 1 0 0 0"  # releases a slot that does not exist
_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


class RedisUnavailable(Exception):
    """Redis did not answer, or not in time. What was asked may have taken place."""


@dataclass(slots=True, eq=False)
class _Call:
    """One run of the script."""

    keys: list[str]
    words: str


class SharedRates:
    """`Rates` for all gateways that name the same Redis. One connection, so that calls are answered in order. Calls
    that arrive while a round trip is in flight are sent together in the next one."""

    def __init__(self, url: str, lease_us: int, answer_s: float) -> None:
        """`answer_s`: how long a request waits for Redis. Raises ValueError for a URL that is none of redis://,
        rediss://, unix://."""
        self._lease_us = lease_us
        self._answer_s = answer_s
        self._client: Any = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=max(SOCKET_S_MIN, 2 * SILENCE * answer_s),
            socket_connect_timeout=max(SOCKET_S_MIN, 2 * SILENCE * answer_s),
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
            decode_responses=True,
        )
        self._calls: Coalescer[_Call, Decision] = Coalescer(
            self._round_trip, name="shared-limits", batch_max=BATCH_MAX, backlog_max=WAITING_MAX
        )
        self._asked_at: float | None = None  # when the round trip in flight began, by the loop's clock
        self.away = False  # then only `probe` sends calls

    def admit(
        self, subjects: Sequence[Subject], tokens: int, place: str, own: Rates, requests: int = 1
    ) -> asyncio.Future[Decision]:
        """As `Rates.admit`. `own`: what this gateway itself has taken, of which Redis may have lost the account."""
        return self._ask("admit", subjects, place, tokens, requests, own)

    def release_slot(
        self, subjects: Sequence[Subject], place: str, *, requests: int, tokens: int
    ) -> asyncio.Future[Decision]:
        """As `Rates.end`; also of a place that was asked for and of which no answer came."""
        return self._ask("end", subjects, place, tokens, requests, None)

    def renew(self, subjects: Sequence[Subject], place: str, own: Rates) -> asyncio.Future[Decision]:
        """As `Rates.renew`. A place that Redis lost is there again."""
        return self._ask("renew", subjects, place, 0, 0, own)

    async def answer(self, asked: asyncio.Future[Decision]) -> Decision:
        """Wait for it, `answer_s` at most. Raises RedisUnavailable."""
        await asyncio.wait([asked], timeout=self._answer_s)
        for _ in range(TURNS):
            if asked.done():
                return asked.result()
            await asyncio.sleep(0)  # it may be this process that was slow, and the answer here
        silence_s = SILENCE * self._answer_s
        if self._asked_at is not None and asyncio.get_running_loop().time() - self._asked_at > silence_s:
            self._lose(f"no answer for {silence_s:g} s")
        raise RedisUnavailable

    async def probe(self) -> int | None:
        """Its clock (microseconds) if it answers and runs the script, which a read-only replica does not. None: it is
        unavailable."""
        at = None
        probe = _Call([f"{PREFIX}:{{probe}}:{what}" for what in ("rates", "places")], PROBE)
        try:
            async with asyncio.timeout(SOCKET_S_MIN):
                for reply in await self._send("EVAL", SCRIPT, [probe]):
                    if isinstance(reply, Exception):
                        raise reply
                    at = _decision(reply).at
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            self._lose(repr(error))
            return None
        if self.away:
            _log.warning("limits.redis_back")
        self.away = False
        return at

    async def close(self) -> None:
        await self._calls.stop(RedisUnavailable())
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()

    def _ask(
        self, what: str, subjects: Sequence[Subject], place: str, tokens: int, requests: int, own: Rates | None
    ) -> asyncio.Future[Decision]:
        if self.away:
            return _unavailable()
        words: list[object] = [what, place, self._lease_us, tokens, requests]
        for subject in subjects:
            allowance = subject.allowance
            words += (allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrency)
            words += (0, 0, 0) if own is None else own.own(subject)
        keys = [key for subject in subjects for key in _keys(subject)]
        try:
            return self._calls.submit(_Call(keys, " ".join(map(str, words))))
        except TooManyWaiting:
            return _unavailable()

    async def _round_trip(self, calls: list[_Call]) -> list[Decision | Exception]:
        """The decisions up to the first reply that is an error; from there on all calls fail."""
        self._asked_at = asyncio.get_running_loop().time()
        answers: list[Decision | Exception] = []
        try:
            for reply in await self._replies(calls):
                if isinstance(reply, Exception):
                    raise reply
                answers.append(_decision(reply))
        except (RedisError, OSError, ValueError) as error:
            self._lose(repr(error))
            answers += [RedisUnavailable() for _ in range(len(calls) - len(answers))]
        finally:
            self._asked_at = None
        return answers

    async def _replies(self, calls: list[_Call]) -> list[Any]:
        replies = await self._send("EVALSHA", _SHA, calls)
        unknown = [call for call, reply in zip(calls, replies, strict=True) if isinstance(reply, NoScriptError)]
        if not unknown:
            return replies
        # A server that has restarted does not have the script: it receives the whole text once.
        again = dict(zip(unknown, await self._send("EVAL", SCRIPT, unknown), strict=True))
        return [again.get(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def _send(self, command: str, script: str, calls: Sequence[_Call]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(command, script, len(call.keys), *call.keys, call.words)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    def _lose(self, reason: str) -> None:
        if not self.away:
            _log.warning("limits.redis_away", extra={"fields": {"reason": reason}})
        self.away = True
        self._calls.fail_backlog(RedisUnavailable())


def _unavailable() -> asyncio.Future[Decision]:
    failed: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
    failed.set_exception(RedisUnavailable())
    failed.exception()  # retrieved: asyncio logs nothing if no caller looks at it
    return failed


def _keys(subject: Subject) -> tuple[str, str]:
    """Of one family in one slot, so that a cluster can run the script."""
    key = f"{PREFIX}:{{{subject.family}}}:{subject.id}"
    return f"{key}:rates", f"{key}:places"


def _decision(reply: str) -> Decision:
    allowed, at, *rest = reply.split()
    of_each = zip(*[iter(rest)] * 3, strict=True)
    taken = [SubjectUse(float(requests), float(tokens), int(running)) for requests, tokens, running in of_each]
    return Decision(allowed == "1", int(at), taken)
