"""Rate limits: requests and tokens a minute, and requests at once, of a key and of its tenant; all of them or none.

GCRA, as the continuous-state leaky bucket: what was taken flows out evenly, a minute's worth a minute. This is the
arithmetic, kept in this process; `shared_limits.py` does the same in Redis, number for number. Moments are integer
microseconds of whichever clock the caller keeps. It must never know what a request contains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from gateway.config.allowance import Allowance
from gateway.errors import RateLimited

MINUTE_US = 60_000_000.0
# Keys and tenants remembered; above it, whoever was not heard of for longest is forgotten, unless something of it runs.
SUBJECTS_MAX = 20_000
# When a place among the concurrent requests becomes free is not known; this is how soon to look again.
PLACE_WAIT_S = 1.0

Scope = Literal["key", "tenant"]


class Subject(msgspec.Struct, frozen=True):
    """A key or a tenant that is limited. `family`: the tenant, whose subjects share a Redis slot."""

    scope: Scope
    id: str
    family: str
    allowance: Allowance


class SubjectUse(msgspec.Struct, frozen=True):
    """What a subject has taken and has not flowed out again; `running` are the requests that have a place."""

    requests: float
    tokens: float
    running: int


class Decision(msgspec.Struct, frozen=True):
    """`taken` of each subject: with this request when it is allowed, without it when not. `at`: the deciding clock."""

    allowed: bool
    at: int
    taken: list[SubjectUse]


@dataclass(slots=True)
class _SubjectState:
    requests: float = 0.0
    tokens: float = 0.0
    at: int = 0
    places: dict[str, int] = field(default_factory=dict)  # by request: until when it has its place, unless renewed

    def flow(self, allowance: Allowance, now: int) -> None:
        self.requests = remaining(self.requests, self.at, allowance.requests_per_minute, now)
        self.tokens = remaining(self.tokens, self.at, allowance.tokens_per_minute, now)
        self.at = now

    def taken(self) -> SubjectUse:
        return SubjectUse(self.requests, self.tokens, len(self.places))


def remaining(taken: float, at: int, limit: int, now: int) -> float:
    """What is left at `now` of what was `taken` at `at`. A clock that went back lets nothing flow until it goes on."""
    return max(0.0, taken - max(0.0, float(now - at)) * limit / MINUTE_US)


class Rates:
    """What was taken, in this process. Not for use by several threads."""

    def __init__(self, lease_us: int, subjects_max: int = SUBJECTS_MAX) -> None:
        """`lease_us`: how long a place lasts that is not renewed."""
        self._lease_us = lease_us
        self._subjects_max = subjects_max
        self._known: dict[str, _SubjectState] = {}  # whoever was heard of last is last

    def __len__(self) -> int:
        return len(self._known)

    def admit(
        self,
        now: int,
        subjects: Sequence[Subject],
        tokens: int,
        place: str,
        *,
        requests: int = 1,
        decided: bool = False,
    ) -> Decision:
        """Take `requests` (1; 0 when an admitted request needs more tokens), `tokens` and one place from every subject,
        or nothing. A place that is held already is not taken twice. `decided`: take them unchecked, because Redis
        allowed the request."""
        known = [self._flowed(subject, now) for subject in subjects]
        allowed = decided or all(
            (not requests or one.requests + requests <= subject.allowance.requests_per_minute)
            and one.tokens + tokens <= subject.allowance.tokens_per_minute
            and (place in one.places or len(one.places) + 1 <= subject.allowance.concurrency)
            for one, subject in zip(known, subjects, strict=True)
        )
        if allowed:
            for one in known:
                one.requests += requests
                one.tokens += tokens
                one.places[place] = now + self._lease_us
        return Decision(allowed, now, [one.taken() for one in known])

    def release_slot(
        self, now: int, subjects: Sequence[Subject], place: str, *, requests: int, tokens: int
    ) -> list[SubjectUse]:
        """Free a place, and give back so much, where the place is still there."""
        known = [self._flowed(subject, now) for subject in subjects]
        for one in known:
            if one.places.pop(place, None) is not None:
                one.requests = max(0.0, one.requests - requests)
                one.tokens = max(0.0, one.tokens - tokens)
        return [one.taken() for one in known]

    def renew(self, now: int, subjects: Sequence[Subject], place: str) -> None:
        """Whoever still runs keeps its place."""
        for subject in subjects:
            self._flowed(subject, now).places[place] = now + self._lease_us

    def own(self, subject: Subject) -> tuple[float, float, int]:
        """Requests and tokens that this process took, and when that was counted."""
        known = self._known.get(subject.id)
        return (0.0, 0.0, 0) if known is None else (known.requests, known.tokens, known.at)

    def slots_taken(self, subject: Subject) -> int:
        known = self._known.get(subject.id)
        return 0 if known is None else len(known.places)

    def shift(self, by_us: int) -> None:
        """The clock that moments are counted by was found to be another, so much ahead."""
        for known in self._known.values():
            known.at += by_us
            known.places = {place: until + by_us for place, until in known.places.items()}

    def _flowed(self, subject: Subject, now: int) -> _SubjectState:
        known = self._known.pop(subject.id, None)
        if known is None:
            self._forget_subject()
            known = _SubjectState(at=now)
        self._known[subject.id] = known
        known.flow(subject.allowance, now)
        for place in [place for place, until in known.places.items() if until <= now]:
            del known.places[place]
        return known

    def _forget_subject(self) -> None:
        """Make room for one."""
        if len(self._known) >= self._subjects_max:
            idle = next((id_ for id_, known in self._known.items() if not known.places), None)
            if idle is not None:
                del self._known[idle]


def refusal(subjects: Sequence[Subject], taken: Sequence[SubjectUse], tokens: int, requests: int = 1) -> RateLimited:
    """The error that names the limit with the longest wait. `requests`, `tokens`: as given to `Rates.admit`."""
    found: list[tuple[float, str]] = []
    for subject, one in zip(subjects, taken, strict=True):
        allowance = subject.allowance
        requests_s = _wait_s(one.requests, requests, allowance.requests_per_minute) if requests else 0.0
        tokens_s = _wait_s(one.tokens, tokens, allowance.tokens_per_minute)
        place_s = PLACE_WAIT_S if one.running >= allowance.concurrency else 0.0
        for wait_s, what, limit, used, requested in (
            (place_s, "concurrent requests at once", allowance.concurrency, one.running, 1),
            (requests_s, "requests per minute", allowance.requests_per_minute, math.ceil(one.requests), 1),
            (tokens_s, "tokens per minute", allowance.tokens_per_minute, math.ceil(one.tokens), tokens),
        ):
            if wait_s > 0:
                message = f"the {subject.scope}'s {what}: limit {limit}, used {used}, requested {requested}"
                found.append((wait_s, message))
    assert found, "a request was refused, and every limit has room for it"
    wait_s, message = max(found, key=lambda pair: pair[0])
    error = RateLimited(f"Rate limit reached for {message}. Try again in {duration(wait_s)}.", retry_after_s=wait_s)
    error.limit_headers = headers(subjects, taken)
    return error


def headers(subjects: Sequence[Subject], taken: Sequence[SubjectUse]) -> list[tuple[bytes, bytes]]:
    """x-ratelimit-*: of the subject that has the least left."""
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
    """Until `units` more fit; 0 when they do now. What never fits is worth another look in a minute."""
    if units > limit:
        return MINUTE_US / 1e6
    return max(0.0, (taken + units - limit) * MINUTE_US / limit / 1e6)


def duration(seconds: float) -> str:
    """Seconds as 12ms, 1s, 6m0s, rounded up."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
