"""Rate limits of a key and its tenant: requests and tokens a minute, and concurrent requests. A request takes of all or
of none.

The algorithm is GCRA as a continuous-state leaky bucket: a subject's use drains evenly, at its limit per minute. Here
the counts are this process's; `redis_rates.py` does the same arithmetic in Redis. Moments are integer microseconds of
the caller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from gateway.config.allowance import Allowance
from gateway.errors import RateLimited, ReachedLimit

MINUTE_US = 60_000_000.0
# Keys and tenants remembered. Above this number the least recently used subject without a running request is forgotten.
SUBJECTS_MAX = 20_000
# Retry-After of a refusal for concurrent requests: when a slot becomes free is unknown.
SLOT_WAIT_S = 1.0

Scope = Literal["key", "tenant"]


class Subject(msgspec.Struct, frozen=True):
    """A key or a tenant that is limited. `family`: its tenant, whose subjects share a hash slot of a Redis cluster."""

    scope: Scope
    id: str
    family: str
    allowance: Allowance


class SubjectUse(msgspec.Struct, frozen=True):
    """A subject's requests and tokens that have not drained yet. `running`: the number of its request slots in use."""

    requests: float
    tokens: float
    running: int


class Decision(msgspec.Struct, frozen=True):
    """`taken`: each subject's use, with this request if it is allowed. `at`: microseconds by the clock that decided."""

    allowed: bool
    at: int
    taken: list[SubjectUse]


@dataclass(slots=True)
class _SubjectState:
    requests: float = 0.0
    tokens: float = 0.0
    at: int = 0
    slots: dict[str, int] = field(default_factory=dict)  # by slot: when its lease expires

    def drain(self, allowance: Allowance, now: int) -> None:
        self.requests = remaining(self.requests, self.at, allowance.requests_per_minute, now)
        self.tokens = remaining(self.tokens, self.at, allowance.tokens_per_minute, now)
        self.at = now

    def taken(self) -> SubjectUse:
        return SubjectUse(self.requests, self.tokens, len(self.slots))


def remaining(taken: float, at: int, limit: int, now: int) -> float:
    """The part of the use `taken` at `at` that has not drained at `now`. Nothing drains while the clock is before
    `at`."""
    return max(0.0, taken - max(0.0, float(now - at)) * limit / MINUTE_US)


class Rates:
    """The use of each subject, counted in this process. Not thread-safe."""

    def __init__(self, lease_us: int, subjects_max: int = SUBJECTS_MAX) -> None:
        """`lease_us`: how long a slot lasts without a renewal."""
        self._lease_us = lease_us
        self._subjects_max = subjects_max
        self._known: dict[str, _SubjectState] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._known)

    def admit(
        self,
        now: int,
        subjects: Sequence[Subject],
        tokens: int,
        slot: str,
        *,
        requests: int = 1,
        decided: bool = False,
    ) -> Decision:
        """Take `requests` (1; 0 if an admitted request needs more tokens), `tokens` and one slot from every subject, or
        nothing. A slot that the request has already is not taken twice. `decided`: take without a check, because Redis
        allowed the request."""
        states = [self._drained(subject, now) for subject in subjects]
        allowed = decided or all(
            (not requests or state.requests + requests <= subject.allowance.requests_per_minute)
            and state.tokens + tokens <= subject.allowance.tokens_per_minute
            and (slot in state.slots or len(state.slots) + 1 <= subject.allowance.concurrency)
            for state, subject in zip(states, subjects, strict=True)
        )
        if allowed:
            for state in states:
                state.requests += requests
                state.tokens += tokens
                state.slots[slot] = now + self._lease_us
        return Decision(allowed, now, [state.taken() for state in states])

    def release_slot(
        self, now: int, subjects: Sequence[Subject], slot: str, *, requests: int, tokens: int
    ) -> list[SubjectUse]:
        """Release a slot with `requests` and `tokens`, at each subject that still has the slot."""
        states = [self._drained(subject, now) for subject in subjects]
        for state in states:
            if state.slots.pop(slot, None) is not None:
                state.requests = max(0.0, state.requests - requests)
                state.tokens = max(0.0, state.tokens - tokens)
        return [state.taken() for state in states]

    def renew(self, now: int, subjects: Sequence[Subject], slot: str) -> None:
        """Extend the lease of a running request's slot."""
        for subject in subjects:
            self._drained(subject, now).slots[slot] = now + self._lease_us

    def own(self, subject: Subject) -> tuple[float, float, int]:
        """Requests and tokens that this process counted, and the moment at which they were last drained."""
        known = self._known.get(subject.id)
        return (0.0, 0.0, 0) if known is None else (known.requests, known.tokens, known.at)

    def slots_taken(self, subject: Subject) -> int:
        known = self._known.get(subject.id)
        return 0 if known is None else len(known.slots)

    def shift(self, by_us: int) -> None:
        """Add `by_us` microseconds to all moments: the caller changed to a clock that is ahead by this much."""
        for known in self._known.values():
            known.at += by_us
            known.slots = {slot: until + by_us for slot, until in known.slots.items()}

    def _drained(self, subject: Subject, now: int) -> _SubjectState:
        known = self._known.pop(subject.id, None)
        if known is None:
            self._forget_subject()
            known = _SubjectState(at=now)
        self._known[subject.id] = known
        known.drain(subject.allowance, now)
        for slot in [slot for slot, until in known.slots.items() if until <= now]:
            del known.slots[slot]
        return known

    def _forget_subject(self) -> None:
        """At `subjects_max`, remove the least recently used subject without a slot in use."""
        if len(self._known) >= self._subjects_max:
            idle = next((id_ for id_, known in self._known.items() if not known.slots), None)
            if idle is not None:
                del self._known[idle]


def refusal(subjects: Sequence[Subject], taken: Sequence[SubjectUse], tokens: int, requests: int = 1) -> RateLimited:
    """The error that names the limit with the longest wait. `requests`, `tokens`: as given to `Rates.admit`."""
    found: list[tuple[float, str, ReachedLimit]] = []
    for subject, one in zip(subjects, taken, strict=True):
        allowance = subject.allowance
        requests_s = _wait_s(one.requests, requests, allowance.requests_per_minute) if requests else 0.0
        tokens_s = _wait_s(one.tokens, tokens, allowance.tokens_per_minute)
        slot_s = SLOT_WAIT_S if one.running >= allowance.concurrency else 0.0
        for wait_s, name, what, limit, used, requested in (
            (slot_s, "concurrency", "concurrent requests at once", allowance.concurrency, one.running, 1),
            (
                requests_s, "requests_per_minute", "requests per minute", allowance.requests_per_minute,
                math.ceil(one.requests), 1,
            ),
            (
                tokens_s, "tokens_per_minute", "tokens per minute", allowance.tokens_per_minute,
                math.ceil(one.tokens), tokens,
            ),
        ):  # fmt: skip
            if wait_s > 0:
                message = f"the {subject.scope}'s {what}: limit {limit}, used {used}, requested {requested}"
                found.append((wait_s, message, ReachedLimit(f"{subject.scope}_{name}", limit)))
    assert found, "a request was refused, and no limit is exceeded"
    wait_s, message, reached = max(found, key=lambda one: one[0])
    error = RateLimited(f"Rate limit reached for {message}.", retry_after_s=wait_s, limit=reached)
    error.limit_headers = headers(subjects, taken)
    return error


def headers(subjects: Sequence[Subject], taken: Sequence[SubjectUse]) -> list[tuple[bytes, bytes]]:
    """The x-ratelimit-* headers, of the subject that has the least left."""
    found: dict[str, bytes] = {}
    for what in ("requests", "tokens"):
        pairs = [
            (getattr(subject.allowance, f"{what}_per_minute"), getattr(one, what))
            for subject, one in zip(subjects, taken, strict=True)
        ]
        limit, used = min(pairs, key=lambda pair: pair[0] - pair[1])
        found[f"limit-{what}"] = b"%d" % limit
        found[f"remaining-{what}"] = b"%d" % max(0, math.floor(limit - used))
        found[f"reset-{what}"] = duration(used * MINUTE_US / limit / 1e6).encode()
    return [(f"x-ratelimit-{name}".encode(), value) for name, value in found.items()]


def _wait_s(taken: float, units: int, limit: int) -> float:
    """Seconds until `units` more fit; 0 if they fit now. A minute for units above the limit, which never fit."""
    if units > limit:
        return MINUTE_US / 1e6
    return max(0.0, (taken + units - limit) * MINUTE_US / limit / 1e6)


def duration(seconds: float) -> str:
    """A duration in OpenAI's form, rounded up: 12ms, 1s, 6m0s."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
