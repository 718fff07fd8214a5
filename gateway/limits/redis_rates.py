"""The rate limits of `rates.py` in Redis, shared by all gateways: one Lua script, with the Redis server's clock.

No request fails because Redis is unavailable or lost its data: `limiter.py` then decides.
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
SOCKET_S_MIN = 1.0  # timeout of a connection and of a round trip; callers have shorter timeouts
SILENCE = 5  # × a request's timeout: after a longer round trip Redis counts as unavailable
TURNS = 4  # turns of the event loop that a reply takes from the socket to its caller

_log = logging.getLogger(__name__)

# KEYS: for each subject the hash of its rates and the sorted set of its request slots (places).
# ARGV[1] is one string of words, since the client's time grows with the number of arguments: the command (admit, end or
# renew), the slot, its lease (microseconds), tokens and requests to take or release; then, for each subject, its three
# limits, and the requests and tokens that the calling gateway counted itself, and when. The subject's use is at least
# that count, even if Redis lost its data. The reply is a string of words too. Numbers are doubles with all digits.
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

local reply = {allowed and 1 or 0, exact(now)}
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
  reply[#reply + 1] = r
  reply[#reply + 1] = t
  reply[#reply + 1] = redis.call('ZCARD', subject.places)
end
return table.concat(reply, ' ')
"""
PROBE = "end probe 1 0 0 1 1 1 0 0 0"  # releases a slot that does not exist
_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


class RedisUnavailable(Exception):
    """Redis did not answer in time, or answered with an error. It may have run the call."""


@dataclass(slots=True, eq=False)
class _Call:
    """One run of the script."""

    keys: list[str]
    words: str


class SharedRates:
    """`Rates` for all gateways with the same Redis. There is one connection, so calls are answered in order. Calls that
    arrive during a round trip are sent together in the next one."""

    def __init__(self, url: str, lease_us: int, answer_s: float) -> None:
        """`lease_us`: of a slot. `answer_s`: how long a request waits for Redis. Raises ValueError for a URL whose
        scheme is not redis, rediss or unix."""
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
        self._sent_at: float | None = None  # when the round trip in flight began, by the loop's clock
        self.unavailable = False  # while True only `probe` sends calls

    def admit(
        self, subjects: Sequence[Subject], tokens: int, slot: str, own: Rates, requests: int = 1
    ) -> asyncio.Future[Decision]:
        """See `Rates.admit`. `own`: this gateway's own counts, in case Redis lost its data."""
        return self._submit_call("admit", subjects, slot, tokens, requests, own)

    def release_slot(
        self, subjects: Sequence[Subject], slot: str, *, requests: int, tokens: int
    ) -> asyncio.Future[Decision]:
        """As `Rates.release_slot`; also for a slot whose admission was not answered."""
        return self._submit_call("end", subjects, slot, tokens, requests, None)

    def renew(self, subjects: Sequence[Subject], slot: str, own: Rates) -> asyncio.Future[Decision]:
        """See `Rates.renew`. A slot that Redis lost is added again."""
        return self._submit_call("renew", subjects, slot, 0, 0, own)

    async def answer(self, call: asyncio.Future[Decision]) -> Decision:
        """Wait for the decision, `answer_s` at most. Raises RedisUnavailable."""
        await asyncio.wait([call], timeout=self._answer_s)
        for _ in range(TURNS):
            if call.done():
                return call.result()
            await asyncio.sleep(0)  # if this event loop was slow, the reply may be in the socket already
        silence_s = SILENCE * self._answer_s
        if self._sent_at is not None and asyncio.get_running_loop().time() - self._sent_at > silence_s:
            self._mark_unavailable(f"no answer for {silence_s:g} s")
        raise RedisUnavailable

    async def probe(self) -> int | None:
        """Redis's clock (microseconds) if Redis runs the script; None: it is unavailable, or a read-only replica."""
        at = None
        probe = _Call([f"{PREFIX}:{{probe}}:{what}" for what in ("rates", "places")], PROBE)
        try:
            async with asyncio.timeout(SOCKET_S_MIN):
                for reply in await self._send("EVAL", SCRIPT, [probe]):
                    if isinstance(reply, Exception):
                        raise reply
                    at = _decision(reply).at
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            self._mark_unavailable(repr(error))
            return None
        if self.unavailable:
            _log.warning("limits.redis_back")
        self.unavailable = False
        return at

    async def close(self) -> None:
        await self._calls.stop(RedisUnavailable())
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()

    def _submit_call(
        self, what: str, subjects: Sequence[Subject], slot: str, tokens: int, requests: int, own: Rates | None
    ) -> asyncio.Future[Decision]:
        if self.unavailable:
            return _unavailable()
        words: list[object] = [what, slot, self._lease_us, tokens, requests]
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
        """The decisions up to the first reply that is an error; that call and all later calls fail."""
        self._sent_at = asyncio.get_running_loop().time()
        answers: list[Decision | Exception] = []
        try:
            for reply in await self._replies(calls):
                if isinstance(reply, Exception):
                    raise reply
                answers.append(_decision(reply))
        except (RedisError, OSError, ValueError) as error:
            self._mark_unavailable(repr(error))
            answers += [RedisUnavailable() for _ in range(len(calls) - len(answers))]
        finally:
            self._sent_at = None
        return answers

    async def _replies(self, calls: list[_Call]) -> list[Any]:
        replies = await self._send("EVALSHA", _SHA, calls)
        unknown = [call for call, reply in zip(calls, replies, strict=True) if isinstance(reply, NoScriptError)]
        if not unknown:
            return replies
        # A restarted Redis does not have the script: send its text once.
        repeated = dict(zip(unknown, await self._send("EVAL", SCRIPT, unknown), strict=True))
        return [repeated.get(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def _send(self, command: str, script: str, calls: Sequence[_Call]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(command, script, len(call.keys), *call.keys, call.words)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    def _mark_unavailable(self, reason: str) -> None:
        if not self.unavailable:
            _log.warning("limits.redis_away", extra={"fields": {"reason": reason}})
        self.unavailable = True
        self._calls.fail_backlog(RedisUnavailable())


def _unavailable() -> asyncio.Future[Decision]:
    failed: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
    failed.set_exception(RedisUnavailable())
    failed.exception()  # mark the exception as retrieved, or asyncio logs it if no caller awaits the future
    return failed


def _keys(subject: Subject) -> tuple[str, str]:
    """Keys of the subject's rates and slots. A family has one hash slot, so that a Redis cluster can run the script."""
    key = f"{PREFIX}:{{{subject.family}}}:{subject.id}"
    return f"{key}:rates", f"{key}:places"


def _decision(reply: str) -> Decision:
    allowed, at, *rest = reply.split()
    triples = zip(*[iter(rest)] * 3, strict=True)
    taken = [SubjectUse(float(requests), float(tokens), int(running)) for requests, tokens, running in triples]
    return Decision(allowed == "1", int(at), taken)
