"""The rate limits of `limits.py` in Redis, so that all gateways share them: one script, whose clock is the server's.

Redis is never the truth: if it is unavailable or loses its data, no request fails for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

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
class _Question:
    keys: list[str]
    words: str
    answer: asyncio.Future[Decision]


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
        self._waiting: deque[_Question] = deque()
        self._drain_task: asyncio.Task[None] | None = None
        self._asked_at: float | None = None  # the round trip that is under way, by the loop's clock
        self.away = False  # then nothing but `probe` asks

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
        asked = _Question([f"{PREFIX}:{{probe}}:{what}" for what in ("rates", "places")], PROBE, _future())
        try:
            async with asyncio.timeout(SOCKET_S_MIN):
                for reply in await self._send("EVAL", SCRIPT, [asked]):
                    if isinstance(reply, Exception):
                        raise reply
                    at = _decision(reply).at
        except (RedisError, OSError, TimeoutError) as error:
            self._lose(repr(error))
            return None
        if self.away:
            _log.warning("limits.redis_back")
        self.away = False
        return at

    async def close(self) -> None:
        if self._drain_task is not None:
            self._drain_task.cancel()
            await asyncio.wait([self._drain_task])
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()

    def _ask(
        self, what: str, subjects: Sequence[Subject], place: str, tokens: int, requests: int, own: Rates | None
    ) -> asyncio.Future[Decision]:
        answer = _future()
        # Who lost patience looks at no answer any more.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.away or len(self._waiting) >= WAITING_MAX:
            answer.set_exception(RedisUnavailable())
            return answer
        words: list[object] = [what, place, self._lease_us, tokens, requests]
        for subject in subjects:
            allowance = subject.allowance
            words += (allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrency)
            words += (0, 0, 0) if own is None else own.own(subject)
        keys = [key for subject in subjects for key in _keys(subject)]
        self._waiting.append(_Question(keys, " ".join(map(str, words)), answer))
        if self._drain_task is None:
            self._drain_task = asyncio.get_running_loop().create_task(self._drain(), name="shared-limits")
        return answer

    async def _drain(self) -> None:
        """Not a Coalescer: one failed round trip fails every waiting question, not only those that it carried."""
        asked: list[_Question] = []
        try:
            while self._waiting:
                asked = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                self._asked_at = asyncio.get_running_loop().time()
                try:
                    await self._round_trip(asked)
                except (RedisError, OSError) as error:
                    self._lose(repr(error))
                    self._fail(asked)
                self._asked_at = None
        finally:
            self._drain_task = None
            self._fail(asked)

    async def _round_trip(self, asked: list[_Question]) -> None:
        replies = await self._send("EVALSHA", _SHA, asked)
        strange = [question for question, reply in zip(asked, replies, strict=True) if isinstance(reply, NoScriptError)]
        if strange:  # a server that has just started, or forgot: it takes the whole script once
            again = dict(zip(strange, await self._send("EVAL", SCRIPT, strange), strict=True))
            replies = [again.get(question, reply) for question, reply in zip(asked, replies, strict=True)]
        for question, reply in zip(asked, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if not question.answer.done():
                question.answer.set_result(_decision(reply))

    async def _send(self, command: str, script: str, asked: Sequence[_Question]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for question in asked:
            pipeline.execute_command(command, script, len(question.keys), *question.keys, question.words)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    def _lose(self, reason: str) -> None:
        if not self.away:
            _log.warning("limits.redis_away", extra={"fields": {"reason": reason}})
        self.away = True
        self._fail(self._waiting)
        self._waiting.clear()

    @staticmethod
    def _fail(questions: Sequence[_Question] | deque[_Question]) -> None:
        for question in questions:
            if not question.answer.done():
                question.answer.set_exception(RedisUnavailable())


def _future() -> asyncio.Future[Decision]:
    return asyncio.get_running_loop().create_future()


def _keys(subject: Subject) -> tuple[str, str]:
    """Of one family in one slot, so that a cluster can run the script."""
    key = f"{PREFIX}:{{{subject.family}}}:{subject.id}"
    return f"{key}:rates", f"{key}:places"


def _decision(reply: str) -> Decision:
    allowed, at, *rest = reply.split()
    of_each = zip(*[iter(rest)] * 3, strict=True)
    taken = [SubjectUse(float(requests), float(tokens), int(running)) for requests, tokens, running in of_each]
    return Decision(allowed == "1", int(at), taken)
