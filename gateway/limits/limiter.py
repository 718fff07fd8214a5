"""Admission under the rate limits: by Redis if one is configured, else by what this gateway itself admitted.

Without Redis each gateway allows its part: the limits divided by the gateways that live. What Redis allows is counted
here too, so that neither its absence nor its forgetting begins a minute anew. It knows no request's contents.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from billing.database import DatabaseUnavailable
from billing.ids import new_id
from gateway.errors import ApiError
from gateway.limits import rates
from gateway.limits.rates import Decision, Rates, Subject, SubjectUse
from gateway.limits.redis_rates import RedisUnavailable, SharedRates
from gateway.metrics import Metrics

# A place among the concurrent requests lasts so long unless it is renewed: a gateway that was killed gives them back.
PLACE_S = 15.0
RENEW_S = 5.0
LOOK_S = 1.0  # between counts of the gateways, and looks whether Redis is back
UNANSWERED_S = 1.0  # how long an ending waits for Redis's answer to a reservation
OWED_MAX = 10_000  # slots whose end Redis may have missed; further ones expire with their leases

LimitState = tuple[Sequence[Subject], list[SubjectUse]]  # the limited subjects with their limits, and what they used


def own_clock_us() -> int:
    return time.monotonic_ns() // 1000


class Admission:
    """A place taken under the limits. End it once: with `finish` when the request ran or was at fault itself, with
    `give_back` when this service could not serve it."""

    __slots__ = (
        "_limiter",
        "_open",
        "_shown",
        "place",
        "shared",
        "shared_requests",
        "shared_tokens",
        "subjects",
        "tokens",
    )

    def __init__(
        self, limiter: Limiter, subjects: Sequence[Subject], place: str, tokens: int, shown: LimitState, *, shared: bool
    ) -> None:
        self._limiter = limiter
        self._open = True
        self._shown = shown
        self.place = place
        self.subjects = subjects
        self.tokens = tokens  # reserved
        # What Redis counted. After a renewal Redis may have the place without having counted a request or tokens.
        self.shared = shared
        self.shared_requests = 1 if shared else 0
        self.shared_tokens = tokens if shared else 0

    async def finish_request(self, tokens_used: int) -> None:
        """Free the place and give back the tokens that were reserved and not used."""
        await self._end_once(requests=0, tokens=max(0, self.tokens - tokens_used))

    async def refund(self) -> None:
        """Free the place and give back the request and all tokens."""
        await self._end_once(requests=1, tokens=self.tokens)

    def reserved(self, more: int, shown: LimitState, *, shared: bool) -> None:
        """Called by the limiter: `more` tokens were taken, in Redis if `shared`."""
        self.tokens += more
        self._shown = shown
        if shared:
            self.shared, self.shared_tokens = True, self.shared_tokens + more

    async def _end_once(self, requests: int, tokens: int) -> None:
        if self._open:
            self._open = False
            self._shown = await self._limiter.end_admission(self, requests, tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """As things stood when it was admitted, or, after its end, then."""
        return rates.headers(*self._shown)


async def end_refused(admission: Admission, error: BaseException) -> None:
    """End the admission of a request that was refused. A refusal still counts as a request, because it cost work and
    could otherwise be repeated without limit. An error of this service (5xx) takes nothing."""
    ours = isinstance(error, ApiError) and error.status >= 500
    if ours or isinstance(error, DatabaseUnavailable):
        await admission.refund()
    else:
        await admission.finish_request(0)


@dataclass(slots=True, frozen=True)
class _UnreportedUse:
    """What Redis is to give back with a place, if it has the place."""

    subjects: Sequence[Subject]
    requests: int
    tokens: int
    until: int  # of our clock: its place has ended by itself then


class Limiter:
    """`run()` it as a task. Not for use by several threads."""

    def __init__(
        self,
        *,
        shared: SharedRates | None = None,
        count_gateways: Callable[[], Awaitable[int]] | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], int] = own_clock_us,
    ) -> None:
        """`count_gateways`: how many live, this one among them; it may raise DatabaseUnavailable. Without it: one."""
        self._rates = Rates(round(PLACE_S * 1e6))
        self._shared = shared
        self._count_gateways = count_gateways
        self._clock = clock
        self._ahead_us = 0  # of our clock, Redis's
        self._gateways = 1
        self._open: dict[str, Admission] = {}
        self._owed: dict[str, _UnreportedUse] = {}  # by place
        self._unanswered: dict[str, asyncio.Future[Decision]] = {}  # by place: a reservation still unanswered by Redis
        self._process = new_id("plc")
        self._numbers = itertools.count()
        self._forgot = asyncio.Event()  # Redis lacks places of ours
        self._renewed_at = clock()
        if metrics is not None:
            metrics.limits_shared.set_function(lambda: float(shared is not None and not shared.away))

    async def admit(self, subjects: Sequence[Subject], tokens: int) -> Admission:
        """Take one request, `tokens` tokens (prompt and the most it may make) and one place, of every subject, or
        nothing. Raises RateLimited."""
        place = f"{self._process}:{next(self._numbers)}"
        shown, shared = await self._take_slot(subjects, tokens, place, requests=1)
        admission = self._open[place] = Admission(self, subjects, place, tokens, shown, shared=shared)
        return admission

    async def reserve(self, admission: Admission, tokens: int) -> None:
        """Raise the tokens of an open admission to `tokens`. Raises RateLimited, and leaves the admission unchanged
        then."""
        more = tokens - admission.tokens
        if more > 0:
            shown, shared = await self._take_slot(admission.subjects, more, admission.place, requests=0)
            admission.reserved(more, shown, shared=shared)

    async def _take_slot(
        self, subjects: Sequence[Subject], tokens: int, place: str, requests: int
    ) -> tuple[LimitState, bool]:
        """The state of the limits afterwards, and whether Redis counted the request. Raises RateLimited."""
        decision = await self._admit_shared(subjects, tokens, place, requests)
        shared, limited = decision is not None, subjects
        if decision is None:
            limited = self._parts(subjects)
            decision = self._rates.admit(self._now(), limited, tokens, place, requests=requests)
        elif decision.allowed:
            self._rates.admit(decision.at, subjects, tokens, place, requests=requests, decided=True)
        if not decision.allowed:
            raise rates.refusal(limited, decision.taken, tokens, requests)
        return (limited, decision.taken), shared

    async def end_admission(self, admission: Admission, requests: int, tokens: int) -> LimitState:
        """How things stand then."""
        subjects, place, shared = admission.subjects, admission.place, self._shared
        unanswered = self._unanswered.pop(place, None)
        if unanswered is not None:
            # `_late` adds the answer to the admission; wait() lets its callback run even if the answer is done already.
            await asyncio.wait([unanswered], timeout=UNANSWERED_S)
        self._open.pop(place, None)
        alone = shared is None or shared.away
        limited = self._parts(subjects) if alone else subjects
        shown = limited, self._rates.release_slot(self._now(), limited, place, requests=requests, tokens=tokens)
        if shared is None:
            return shown
        # Give back no more than Redis counted. The place is ended in any case: Redis may have it from a renewal.
        counted_tokens = max(0, tokens - (admission.tokens - admission.shared_tokens))
        until = self._clock() + round(PLACE_S * 1e6)
        owed = _UnreportedUse(subjects, min(requests, admission.shared_requests), counted_tokens, until)
        if alone:
            if admission.shared:
                self._owe(place, owed)
            return shown
        try:
            return subjects, (await shared.answer(self._give_back(shared, place, owed))).taken
        except RedisUnavailable:
            return shown

    def _give_back(self, shared: SharedRates, place: str, owed: _UnreportedUse) -> asyncio.Future[Decision]:
        """A question that breaks off may have been heard, or not: asked again, it changes nothing in Redis unless the
        place is still there."""
        asked = shared.release_slot(owed.subjects, place, requests=owed.requests, tokens=owed.tokens)

        def over(done: asyncio.Future[Decision]) -> None:
            if not done.cancelled() and done.exception() is not None:
                self._owe(place, owed)

        asked.add_done_callback(over)
        return asked

    def _owe(self, place: str, owed: _UnreportedUse) -> None:
        """Report the end of a slot to Redis later, since it is unavailable. Unreported slots expire with their
        lease."""
        if len(self._owed) < OWED_MAX:
            self._owed[place] = owed

    def _pay(self, shared: SharedRates) -> None:
        """Redis is back: before anything is renewed, it has only what is so."""
        owed, self._owed = self._owed, {}
        now = self._clock()
        for place, one in owed.items():
            if one.until > now:
                self._give_back(shared, place, one)
                if place in self._open:
                    self._forgot.set()

    async def start(self) -> None:
        """Know how many gateways there are, and whether Redis is there, before the first request."""
        if self._shared is not None:
            await self._probe(self._shared)
        await self.refresh()

    async def _probe(self, shared: SharedRates) -> None:
        at = await shared.probe()
        if at is not None:  # what was counted by another clock until now is as old by this one
            ahead_us = at - self._clock()
            self._rates.shift(ahead_us - self._ahead_us)
            self._ahead_us = ahead_us

    async def run(self) -> None:
        """Keep the places of whoever runs, count the gateways, and look for Redis while it is away; until cancelled."""
        while True:
            await self.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._forgot.wait()

    async def refresh(self) -> None:
        """Once."""
        if self._count_gateways is not None:
            with contextlib.suppress(DatabaseUnavailable):  # the number stays; no request is admitted meanwhile
                self._gateways = max(1, await self._count_gateways())
        shared = self._shared
        if shared is not None and shared.away:
            await self._probe(shared)
        if shared is not None and not shared.away and self._owed:
            self._pay(shared)
        if self._forgot.is_set() or self._clock() - self._renewed_at >= RENEW_S * 1e6:
            self._renew()

    def _renew(self) -> None:
        self._forgot.clear()
        self._renewed_at = self._clock()
        shared, now = self._shared, self._now()
        for admission in list(self._open.values()):
            alone = shared is None or shared.away
            subjects = self._parts(admission.subjects) if alone else admission.subjects
            self._rates.renew(now, subjects, admission.place)
            if shared is not None and not alone:
                shared.renew(admission.subjects, admission.place, self._rates)

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()

    async def _admit_shared(
        self, subjects: Sequence[Subject], tokens: int, place: str, requests: int
    ) -> Decision | None:
        """None: Redis does not say, and this gateway decides."""
        shared = self._shared
        if shared is None or shared.away:
            return None
        asked = shared.admit(subjects, tokens, place, self._rates, requests)
        try:
            decision = await shared.answer(asked)
        except (RedisUnavailable, asyncio.CancelledError) as error:
            taken = _UnreportedUse(subjects, requests, tokens, self._clock() + round(PLACE_S * 1e6))
            asked.add_done_callback(lambda done: self._late(done, taken, place))
            if place in self._open:  # `end` waits for the answer, to give back what it took
                self._unanswered[place] = asked
            if isinstance(error, RedisUnavailable):
                return None
            raise
        self._ahead_us = decision.at - self._clock()
        if any(
            one.running < self._rates.slots_taken(subject)
            for one, subject in zip(decision.taken, subjects, strict=True)
        ):
            self._forgot.set()
        return decision

    def _late(self, asked: asyncio.Future[Decision], taken: _UnreportedUse, place: str) -> None:
        """Redis answered after this gateway had decided by itself, or after the request had ended: if the request still
        runs, Redis has counted it; else its slot is released there. After a broken call it is unknown whether Redis
        counted the slot, so it is released in any case."""
        if asked.cancelled():
            return
        if asked.exception() is not None:
            self._owe(place, taken)
            return
        if not asked.result().allowed:
            return
        admission = self._open.get(place)
        if admission is not None:
            admission.shared = True
            admission.shared_requests += taken.requests
            admission.shared_tokens += taken.tokens
        elif self._shared is not None:
            self._give_back(self._shared, place, taken)

    def _parts(self, subjects: Sequence[Subject]) -> list[Subject]:
        return [
            Subject(subject.scope, subject.id, subject.family, subject.allowance.divided(self._gateways))
            for subject in subjects
        ]

    def _now(self) -> int:
        return self._clock() + self._ahead_us
