"""Rate limits of one key inside this process: requests and tokens a minute, and requests at once.

Admission is all or nothing, in one step without an await; a later refusal gives everything back. The windows slide:
what a minute allows flows in evenly. It must never know what a request contains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import RateLimited

MINUTE_S = 60.0
# Keys remembered; above it, those with nothing taken are forgotten, which changes no answer.
KEYS_MAX = 10_000


@dataclass(slots=True, frozen=True)
class Allowance:
    """What one key may do."""

    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int


class _Window:
    """A bucket of `limit` units that fills again within a minute. Time is the caller's."""

    __slots__ = ("at", "limit", "taken")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.taken = 0.0
        self.at = now

    def flow(self, now: float) -> None:
        self.taken = max(0.0, self.taken - (now - self.at) * self.limit / MINUTE_S)
        self.at = now

    def wait_s(self, units: int) -> float:
        """Until `units` more fit; 0 when they do now."""
        return max(0.0, (self.taken + units - self.limit) * MINUTE_S / self.limit)

    def remaining(self) -> int:
        return max(0, math.floor(self.limit - self.taken))

    def reset_s(self) -> float:
        return self.taken * MINUTE_S / self.limit


class _Key:
    __slots__ = ("allowance", "requests", "running", "tokens")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.allowance = allowance
        self.requests = _Window(allowance.requests_per_minute, now)
        self.tokens = _Window(allowance.tokens_per_minute, now)
        self.running = 0

    def flow(self, now: float) -> None:
        self.requests.flow(now)
        self.tokens.flow(now)

    def idle(self) -> bool:
        return self.running == 0 and self.requests.taken == 0 and self.tokens.taken == 0


class Admission:
    """A place taken under the limits. End it once: `finish` when the request ran, `give_back` when it was refused."""

    __slots__ = ("_clock", "_key", "_open", "_tokens")

    def __init__(self, key: _Key, tokens: int, clock: Callable[[], float]) -> None:
        self._key = key
        self._tokens = tokens
        self._clock = clock
        self._open = True

    def finish(self, tokens_used: int) -> None:
        """Free the place and give back the tokens that were reserved and not used."""
        self._end(requests=0, tokens=max(0, self._tokens - tokens_used))

    def give_back(self) -> None:
        """As if it had never been asked."""
        self._end(requests=1, tokens=self._tokens)

    def _end(self, requests: int, tokens: int) -> None:
        if not self._open:
            return
        self._open = False
        key = self._key
        key.running -= 1
        key.flow(self._clock())
        key.requests.taken = max(0.0, key.requests.taken - requests)
        key.tokens.taken = max(0.0, key.tokens.taken - tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return _headers(self._key)


class Limiter:
    """The windows of all keys. Not for use by several threads."""

    def __init__(self, clock: Callable[[], float], keys_max: int = KEYS_MAX) -> None:
        self._clock = clock
        self._keys_max = keys_max
        self._keys: dict[str, _Key] = {}

    def admit(self, key_id: str, allowance: Allowance, tokens: int) -> Admission:
        """Take one request, `tokens` tokens (prompt and the most it may make) and one place, or nothing.
        Raises RateLimited."""
        now = self._clock()
        key = self._key(key_id, allowance, now)
        key.flow(now)
        if tokens > allowance.tokens_per_minute:
            raise _refused(key, "tokens", allowance.tokens_per_minute, 0, tokens, MINUTE_S)
        if key.running >= allowance.concurrency:
            raise _refused(key, "concurrent requests", allowance.concurrency, key.running, 1, 1.0)
        if wait_s := key.requests.wait_s(1):
            raise _refused(key, "requests", key.requests.limit, math.ceil(key.requests.taken), 1, wait_s)
        if wait_s := key.tokens.wait_s(tokens):
            raise _refused(key, "tokens", key.tokens.limit, math.ceil(key.tokens.taken), tokens, wait_s)
        key.running += 1
        key.requests.taken += 1
        key.tokens.taken += tokens
        return Admission(key, tokens, self._clock)

    def _key(self, key_id: str, allowance: Allowance, now: float) -> _Key:
        key = self._keys.get(key_id)
        if key is None:
            if len(self._keys) >= self._keys_max:
                self._forget_idle(now)
            key = self._keys[key_id] = _Key(allowance, now)
        elif key.allowance != allowance:
            key.allowance = allowance
            key.requests.limit = allowance.requests_per_minute
            key.tokens.limit = allowance.tokens_per_minute
        return key

    def _forget_idle(self, now: float) -> None:
        for key_id, key in list(self._keys.items()):
            key.flow(now)
            if key.idle():
                del self._keys[key_id]


def _refused(key: _Key, what: str, limit: int, used: int, requested: int, wait_s: float) -> RateLimited:
    per = "at once" if what == "concurrent requests" else "per minute"
    message = (
        f"Rate limit reached for {what} {per}: limit {limit}, used {used}, requested {requested}. "
        f"Try again in {duration(wait_s)}."
    )
    error = RateLimited(message, retry_after_s=wait_s)
    error.limit_headers = _headers(key)
    return error


def _headers(key: _Key) -> list[tuple[bytes, bytes]]:
    requests, tokens = key.requests, key.tokens
    return [
        (b"x-ratelimit-limit-requests", b"%d" % requests.limit),
        (b"x-ratelimit-limit-tokens", b"%d" % tokens.limit),
        (b"x-ratelimit-remaining-requests", b"%d" % requests.remaining()),
        (b"x-ratelimit-remaining-tokens", b"%d" % tokens.remaining()),
        (b"x-ratelimit-reset-requests", duration(requests.reset_s()).encode()),
        (b"x-ratelimit-reset-tokens", duration(tokens.reset_s()).encode()),
    ]


def duration(seconds: float) -> str:
    """Seconds as 12ms, 1s, 6m0s, rounded up."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
