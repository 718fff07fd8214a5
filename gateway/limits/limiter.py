"""Admission under the rate limits: by Redis if it is configured and available, else by this gateway's own counts.

Without Redis each gateway applies the limits divided by the number of live gateways. A gateway also counts what Redis
allowed, so that the limits do not start from zero when Redis is unavailable or loses its data.
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
from gateway.config.file import Config
from gateway.errors import ApiError
from gateway.limits import rates
from gateway.limits.rates import Decision, Rates, Subject, SubjectUse
from gateway.limits.redis_rates import RedisUnavailable, SharedRates
from gateway.metrics import Metrics

# The lease of a request slot (one of the concurrent requests): a killed gateway's slots expire after this time.
SLOT_LEASE_S = 15.0
RENEW_S = 5.0
CHECK_S = 1.0  # between counts of the live gateways, and between probes of a Redis that is unavailable
UNANSWERED_S = 1.0  # how long the end of an admission waits for Redis to answer its reservation
UNREPORTED_MAX = 10_000  # slots whose end is not reported to Redis yet; further slots expire with their leases

LimitState = tuple[Sequence[Subject], list[SubjectUse]]  # the limited subjects and their use


def own_clock_us() -> int:
    return time.monotonic_ns() // 1000


class Admission:
    """A request slot and reserved tokens. End it once: with `finish_request` if the request ran or was refused for its
    own fault, with `refund` if this service could not serve it."""

    __slots__ = (
        "_limiter",
        "_open",
        "_state",
        "shared",
        "shared_requests",
        "shared_tokens",
        "slot",
        "subjects",
        "tokens",
    )

    def __init__(
        self, limiter: Limiter, subjects: Sequence[Subject], slot: str, tokens: int, state: LimitState, *, shared: bool
    ) -> None:
        self._limiter = limiter
        self._open = True
        self._state = state
        self.slot = slot
        self.subjects = subjects
        self.tokens = tokens  # reserved
        # Redis' counts. A renewal adds the slot in Redis without counting a request or tokens.
        self.shared = shared
        self.shared_requests = 1 if shared else 0
        self.shared_tokens = tokens if shared else 0

    async def finish_request(self, tokens_used: int) -> None:
        """Release the slot and the tokens that were reserved and not used. Idempotent."""
        await self._end_once(requests=0, tokens=max(0, self.tokens - tokens_used))

    async def refund(self) -> None:
        """Release the slot, the request and all tokens. Idempotent."""
        await self._end_once(requests=1, tokens=self.tokens)

    def reserved(self, more: int, state: LimitState, *, shared: bool) -> None:
        """Called by the limiter after it reserved `more` tokens, in Redis if `shared`."""
        self.tokens += more
        self._state = state
        if shared:
            self.shared, self.shared_tokens = True, self.shared_tokens + more

    async def _end_once(self, requests: int, tokens: int) -> None:
        if self._open:
            self._open = False
            self._state = await self._limiter.end_admission(self, requests, tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The x-ratelimit-* headers: at admission, or, after the end of the admission, at its end."""
        return rates.headers(*self._state) if self.subjects else []


async def end_refused(admission: Admission, error: BaseException) -> None:
    """End the admission of a request that was refused. A refusal still counts as a request, because it cost work and
    could otherwise be repeated without limit. An error of this service (5xx) is not counted."""
    server_error = isinstance(error, ApiError) and error.status >= 500
    if server_error or isinstance(error, DatabaseUnavailable):
        await admission.refund()
    else:
        await admission.finish_request(0)


@dataclass(slots=True, frozen=True)
class _UnreportedUse:
    """The requests and tokens that Redis releases together with a slot, if it has the slot."""

    subjects: Sequence[Subject]
    requests: int
    tokens: int
    until: int  # by the limiter's clock: the slot's lease has expired then


class Limiter:
    """Admits requests. Its `run()` must run as a task. Not thread-safe."""

    def __init__(
        self,
        *,
        shared: SharedRates | None = None,
        count_gateways: Callable[[], Awaitable[int]] | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], int] = own_clock_us,
    ) -> None:
        """`count_gateways`: the number of live gateways, this one included; it may raise DatabaseUnavailable. None: one
        gateway. `clock`: microseconds."""
        self._rates = Rates(round(SLOT_LEASE_S * 1e6))
        self._shared = shared
        self._count_gateways = count_gateways
        self._clock = clock
        self._redis_ahead_us = 0  # Redis's clock minus ours
        self._gateways = 1
        self._open: dict[str, Admission] = {}
        self._unreported: dict[str, _UnreportedUse] = {}  # by slot
        self._unanswered: dict[str, asyncio.Future[Decision]] = {}  # by slot: a reservation that Redis has not answered
        self._process = new_id("plc")
        self._numbers = itertools.count()
        self._redis_lacks_slots = asyncio.Event()  # set: renew all slots now
        self._renewed_at = clock()
        if metrics is not None:
            metrics.limits_shared.set_function(lambda: float(shared is not None and not shared.unavailable))

    async def admit(self, subjects: Sequence[Subject], tokens: int) -> Admission:
        """Take one request, one slot and `tokens` (prompt and maximal completion) from every subject, or nothing.
        Raises RateLimited."""
        slot = f"{self._process}:{next(self._numbers)}"
        state, shared = await self._take_slot(subjects, tokens, slot, requests=1)
        admission = self._open[slot] = Admission(self, subjects, slot, tokens, state, shared=shared)
        return admission

    def unlimited(self) -> Admission:
        """An admission that no limit counts, for a line of a batch."""
        return Admission(self, (), "", 0, ((), []), shared=False)

    async def reserve(self, admission: Admission, tokens: int) -> None:
        """Raise the tokens of an open admission to `tokens`. Raises RateLimited; the admission is unchanged then."""
        more = tokens - admission.tokens
        if more > 0 and admission.subjects:
            state, shared = await self._take_slot(admission.subjects, more, admission.slot, requests=0)
            admission.reserved(more, state, shared=shared)

    async def _take_slot(
        self, subjects: Sequence[Subject], tokens: int, slot: str, requests: int
    ) -> tuple[LimitState, bool]:
        """The state of the limits afterwards, and whether Redis counted the request. Raises RateLimited."""
        decision = await self._admit_shared(subjects, tokens, slot, requests)
        shared, limited = decision is not None, subjects
        if decision is None:
            limited = self._local_limits(subjects)
            decision = self._rates.admit(self._now(), limited, tokens, slot, requests=requests)
        elif decision.allowed:
            self._rates.admit(decision.at, subjects, tokens, slot, requests=requests, decided=True)
        if not decision.allowed:
            raise rates.refusal(limited, decision.taken, tokens, requests)
        return (limited, decision.taken), shared

    async def end_admission(self, admission: Admission, requests: int, tokens: int) -> LimitState:
        """Release the slot, `requests` and `tokens`, and return the state of the limits afterwards."""
        subjects, slot, shared = admission.subjects, admission.slot, self._shared
        if not subjects:
            return (), []
        unanswered = self._unanswered.pop(slot, None)
        if unanswered is not None:
            # `_note_late_answer` adds the answer to the admission. wait() lets this callback run even if the answer is
            # there already.
            await asyncio.wait([unanswered], timeout=UNANSWERED_S)
        self._open.pop(slot, None)
        local = shared is None or shared.unavailable
        limited = self._local_limits(subjects) if local else subjects
        state = limited, self._rates.release_slot(self._now(), limited, slot, requests=requests, tokens=tokens)
        if shared is None:
            return state
        # Release no more than Redis counted. The slot is released in any case: Redis may have it from a renewal.
        counted_tokens = max(0, tokens - (admission.tokens - admission.shared_tokens))
        until = self._clock() + round(SLOT_LEASE_S * 1e6)
        use = _UnreportedUse(subjects, min(requests, admission.shared_requests), counted_tokens, until)
        if local:
            if admission.shared:
                self._report_later(slot, use)
            return state
        try:
            return subjects, (await shared.answer(self._release_shared(shared, slot, use))).taken
        except RedisUnavailable:
            return state

    def _release_shared(self, shared: SharedRates, slot: str, use: _UnreportedUse) -> asyncio.Future[Decision]:
        """Release a slot in Redis. Redis may have run a call that failed; the call is repeated later, without effect
        unless Redis still has the slot."""
        call = shared.release_slot(use.subjects, slot, requests=use.requests, tokens=use.tokens)

        def report_failed(done: asyncio.Future[Decision]) -> None:
            if not done.cancelled() and done.exception() is not None:
                self._report_later(slot, use)

        call.add_done_callback(report_failed)
        return call

    def _report_later(self, slot: str, use: _UnreportedUse) -> None:
        """Report the end of a slot to Redis later, since it is unavailable. Unreported slots expire with their
        lease."""
        if len(self._unreported) < UNREPORTED_MAX:
            self._unreported[slot] = use

    def _report_unreported(self, shared: SharedRates) -> None:
        """Report ended slots to a Redis that is available again, before any slot is renewed there."""
        unreported, self._unreported = self._unreported, {}
        now = self._clock()
        for slot, use in unreported.items():
            if use.until > now:
                self._release_shared(shared, slot, use)
                if slot in self._open:
                    self._redis_lacks_slots.set()

    def live_gateways(self) -> int:
        """The number of live gateways when they were last counted."""
        return self._gateways

    async def start(self) -> None:
        """Count the gateways and probe Redis, before the first request."""
        if self._shared is not None:
            await self._probe(self._shared)
        await self.refresh()

    async def _probe(self, shared: SharedRates) -> None:
        at = await shared.probe()
        if at is not None:  # moments counted by this gateway's clock keep their age by Redis's clock
            ahead_us = at - self._clock()
            self._rates.shift(ahead_us - self._redis_ahead_us)
            self._redis_ahead_us = ahead_us

    async def run(self) -> None:
        """Call `refresh` every CHECK_S until cancelled, and at once when Redis lacks slots of this gateway."""
        while True:
            await self.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._redis_lacks_slots.wait()

    async def refresh(self) -> None:
        """Count the live gateways, probe an unavailable Redis, report ended slots and renew slots that are due."""
        if self._count_gateways is not None:
            with contextlib.suppress(DatabaseUnavailable):  # the last number applies
                self._gateways = max(1, await self._count_gateways())
        shared = self._shared
        if shared is not None and shared.unavailable:
            await self._probe(shared)
        if shared is not None and not shared.unavailable and self._unreported:
            self._report_unreported(shared)
        if self._redis_lacks_slots.is_set() or self._clock() - self._renewed_at >= RENEW_S * 1e6:
            self._renew()

    def _renew(self) -> None:
        self._redis_lacks_slots.clear()
        self._renewed_at = self._clock()
        shared, now = self._shared, self._now()
        for admission in list(self._open.values()):
            local = shared is None or shared.unavailable
            subjects = self._local_limits(admission.subjects) if local else admission.subjects
            self._rates.renew(now, subjects, admission.slot)
            if shared is not None and not local:
                shared.renew(admission.subjects, admission.slot, self._rates)

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()

    async def _admit_shared(
        self, subjects: Sequence[Subject], tokens: int, slot: str, requests: int
    ) -> Decision | None:
        """Redis's decision; None: Redis is unavailable, and this gateway decides."""
        shared = self._shared
        if shared is None or shared.unavailable:
            return None
        call = shared.admit(subjects, tokens, slot, self._rates, requests)
        try:
            decision = await shared.answer(call)
        except (RedisUnavailable, asyncio.CancelledError) as error:
            use = _UnreportedUse(subjects, requests, tokens, self._clock() + round(SLOT_LEASE_S * 1e6))
            call.add_done_callback(lambda done: self._note_late_answer(done, use, slot))
            if slot in self._open:  # `end_admission` waits for the answer, to release what it took
                self._unanswered[slot] = call
            if isinstance(error, RedisUnavailable):
                return None
            raise
        self._redis_ahead_us = decision.at - self._clock()
        if any(
            use.running < self._rates.slots_taken(subject)
            for use, subject in zip(decision.taken, subjects, strict=True)
        ):
            self._redis_lacks_slots.set()
        return decision

    def _note_late_answer(self, call: asyncio.Future[Decision], use: _UnreportedUse, slot: str) -> None:
        """Redis answered after this gateway had decided by itself, or after the request had ended. If the request still
        runs, note that Redis counted it; else release its slot there. After a failed call it is unknown whether Redis
        counted the slot, so the slot is released in any case."""
        if call.cancelled():
            return
        if call.exception() is not None:
            self._report_later(slot, use)
            return
        if not call.result().allowed:
            return
        admission = self._open.get(slot)
        if admission is not None:
            admission.shared = True
            admission.shared_requests += use.requests
            admission.shared_tokens += use.tokens
        elif self._shared is not None:
            self._release_shared(self._shared, slot, use)

    def _local_limits(self, subjects: Sequence[Subject]) -> list[Subject]:
        """The subjects with this gateway's part of their limits."""
        return [
            Subject(subject.scope, subject.id, subject.family, subject.allowance.divided(self._gateways))
            for subject in subjects
        ]

    def _now(self) -> int:
        """Microseconds by Redis's clock, as last seen."""
        return self._clock() + self._redis_ahead_us


def shared_rates(config: Config) -> SharedRates | None:
    """The Redis of the configuration, by which gateways share their limits; None without."""
    if not config.redis.url:
        return None
    return SharedRates(config.redis.url, round(SLOT_LEASE_S * 1e6), config.redis.answer_ms / 1000)
