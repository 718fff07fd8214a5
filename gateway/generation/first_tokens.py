"""Times to first token, by tier and minute, compared with the target of each request; and requests without one.

Every gateway counts the requests of its callers in memory and writes its own rows. A row is written as a whole, so that
a repeated write changes nothing. Requests without a first token are also counted by tenant and model, for SLA reports.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from billing.books import sla
from billing.books.sla import QUARTER, QuarterKey, UnservedCount
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from engine.protocol.frames import RaisedTargets
from gateway.config.settings import TierSection
from gateway.metrics import Metrics
from gateway.tables import first_token_minutes as _minutes

FLUSH_S = 10.0
REMEMBERED_S_MIN = 2.0
MINUTE = 60 * SECOND
# Longer than the longest interval of a report.
KEPT_S = 25 * 3600
# Minutes kept for a database that is unavailable; beyond it the oldest are dropped.
WAITING_MAX = 120
# Eight buckets for each doubling of the duration, from 1 ms: a quantile is at most 9.1 % too high, and never too low.
PER_DOUBLING = 8
BUCKET_MAX = 20 * PER_DOUBLING  # up to 17 minutes, and all above
REFUSED = -1  # the bucket of requests refused with a 503, before a token

_log = logging.getLogger(__name__)


class FirstTokenSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` with a first token, `within_target` of them, and quantiles of their time to first token (ms);
    `refused`: requests refused with a 503."""

    requests: int
    within_target: int
    refused: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class TokenTargets(msgspec.Struct, frozen=True):
    """The targets of a request at this moment: seconds from its arrival to its first token, and between its tokens."""

    ttft_s: float
    itl_s: float


class TokenGaps:
    """When the tokens of one text arrived here."""

    __slots__ = ("_first_at", "_last_at", "pause_s")

    def __init__(self) -> None:
        self._first_at = self._last_at = 0.0
        self.pause_s = 0.0  # the longest time between two arrivals

    def note_arrival(self) -> None:
        """Note the arrival of one token, or of several together."""
        now = time.monotonic()
        if not self._first_at:
            self._first_at = now
        elif now - self._last_at > self.pause_s:
            self.pause_s = round(now - self._last_at, 6)
        self._last_at = now

    def mean_s(self, tokens: int) -> float:
        """The mean time between two of `tokens` ≥ 2 tokens, in seconds."""
        return round((self._last_at - self._first_at) / (tokens - 1), 9)


class FirstTokens:
    """One per gateway: `observe`, `refused` and `unanswered` as they happen, `run` it as a task."""

    def __init__(
        self,
        database: Database,
        gateway_id: str,
        tiers: Iterable[TierSection],
        now_s: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        """`now_s`: Unix seconds of the database's clock."""
        self._database = database
        self._gateway_id = gateway_id
        self._configured = tuple(tiers)
        self.tiers = self._configured  # with the targets in force, from high to low
        self._sections = {tier.name: tier for tier in self.tiers}
        self._now_s = now_s
        self._counts: dict[int, dict[tuple[str, int], list[int]]] = {}  # minute → (tier, bucket) → requests, within
        self._changed: set[int] = set()  # minutes
        self._unserved: dict[QuarterKey, UnservedCount] = {}  # not written yet
        self._swept_at: int | None = None
        # All series exist from the start: a rate over a series that begins with its first miss would not see it.
        self._totals = {
            (tier.name, target): metrics.first_tokens.labels(tier.name, target)
            for tier in self.tiers
            for target in ("met", "missed", "refused")
        }

    def take_targets(self, raised: Mapping[str, RaisedTargets]) -> None:
        """Use the targets that an engine raised at its start; for the other tiers the configured targets."""
        self.tiers = tuple(
            msgspec.structs.replace(tier, **msgspec.structs.asdict(raised[tier.name])) if tier.name in raised else tier
            for tier in self._configured
        )
        self._sections = {tier.name: tier for tier in self.tiers}

    def targets(self, tier: str, prompt_tokens: int) -> TokenTargets:
        section = self._sections[tier]
        return TokenTargets(section.ttft_target_ms(prompt_tokens) / 1000, section.inter_token_ms / 1000)

    def observe(self, tier: str, seconds: float, prompt_tokens: int) -> TokenTargets:
        """`seconds`: from a request's arrival to its first token. Returns the targets that it was compared with."""
        targets = self.targets(tier, prompt_tokens)
        within = seconds <= targets.ttft_s
        self._totals[tier, "met" if within else "missed"].inc()
        self._count_first_token(tier, bucket(seconds * 1000), within=within)
        return targets

    def refused(self, tier: str, tenant_id: str | None = None, model: str | None = None) -> None:
        """Count a request that was refused with a 503, before its first token."""
        self._totals[tier, "refused"].inc()
        self._count_first_token(tier, REFUSED, within=False)
        self._unserved_of(tier, tenant_id, model).refused += 1

    def unanswered(self, tier: str, tenant_id: str | None, model: str | None) -> None:
        """Count a request without a first token: the server failed, or the caller left after the target had passed."""
        self._unserved_of(tier, tenant_id, model).unanswered += 1

    def _unserved_of(self, tier: str, tenant_id: str | None, model: str | None) -> UnservedCount:
        quarter = int(self._now_s()) * SECOND // QUARTER * QUARTER
        return self._unserved.setdefault(QuarterKey(tenant_id or "", quarter, tier, model or ""), UnservedCount())

    def _count_first_token(self, tier: str, number: int, *, within: bool) -> None:
        minute = int(self._now_s() // 60) * MINUTE
        count = self._counts.setdefault(minute, {}).setdefault((tier, number), [0, 0])
        count[0] += 1
        count[1] += within
        self._changed.add(minute)
        while len(self._counts) > WAITING_MAX:
            oldest = min(self._counts)
            del self._counts[oldest]
            self._changed.discard(oldest)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
            except DatabaseUnavailable as error:
                _log.warning("first_tokens.unwritten", extra={"fields": {"reason": str(error)}})

    async def flush(self) -> None:
        """Write the minutes that changed, and once an hour delete rows older than KEPT_S. Raises DatabaseUnavailable;
        then the next flush writes the same minutes."""
        minutes, self._changed = self._changed, set()
        rows: list[dict[str, int | str]] = [
            {
                "minute": minute,
                "tier": tier,
                "gateway_id": self._gateway_id,
                "bucket": number,
                "requests": requests,
                "within_target": within,
            }
            for minute in minutes
            for (tier, number), (requests, within) in self._counts[minute].items()
        ]
        unserved, self._unserved = self._unserved, {}
        if not rows and not unserved:
            return
        now = int(self._now_s()) * SECOND
        sweep = self._swept_at is None or now - self._swept_at > 3600 * SECOND
        try:
            await self._database.write_in_background(
                lambda connection: _write(connection, rows, unserved, now if sweep else None)
            )
        except DatabaseUnavailable:
            self._changed |= minutes & self._counts.keys()
            for key, count in unserved.items():
                later = self._unserved.setdefault(key, UnservedCount())
                later.refused += count.refused
                later.unanswered += count.unanswered
            raise
        if sweep:
            self._swept_at = now
        for minute in [minute for minute in self._counts if minute < now - MINUTE and minute not in self._changed]:
            del self._counts[minute]


class AttainmentCache:
    """Caches `summaries` over all gateways: with eight busy gateways, a day has half a million rows."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[
            int, tuple[float, tuple[int, Mapping[str, FirstTokenSummary]]]
        ] = {}  # window → when it was read
        self._since: int | None = None
        self._reading = asyncio.Lock()

    async def of(
        self, windows_s: Sequence[int]
    ) -> tuple[dict[int, tuple[int, Mapping[str, FirstTokenSummary]]], int | None]:
        """Raises DatabaseUnavailable."""
        async with self._reading:
            now, known = self._clock(), self._known
            stale = [one for one in windows_s if one not in known or now - known[one][0] > cache_s(one)]
            if stale:
                found, self._since = await self._database.report(lambda connection: summaries(connection, stale))
                self._known |= {one: (now, found[one]) for one in stale}
            return {one: self._known[one][1] for one in windows_s}, self._since


def cache_s(window_s: int) -> float:
    """The sums of an interval are cached for this long."""
    return max(REMEMBERED_S_MIN, window_s / 1440)


def delay_s(window_s: int) -> float:
    """A request is in the sums of an interval at the latest after this."""
    return FLUSH_S + cache_s(window_s)


def bucket(milliseconds: float) -> int:
    """The first bucket whose bound is not below it."""
    if milliseconds <= 1:
        return 0
    return min(BUCKET_MAX, math.ceil(PER_DOUBLING * math.log2(milliseconds) - 1e-9))


def bound_ms(number: int) -> float:
    """The upper bound of a bucket."""
    return round(float(2 ** (number / PER_DOUBLING)), 1)


def summaries(
    connection: sa.Connection, windows_s: Sequence[int]
) -> tuple[dict[int, tuple[int, Mapping[str, FirstTokenSummary]]], int | None]:
    """For each interval its beginning (a whole minute, in Unix seconds) and a summary by tier, over the rows that all
    gateways have written; and the first minute with a row. A tier without requests is left out."""
    now = database_now(connection)
    found: dict[int, tuple[int, Mapping[str, FirstTokenSummary]]] = {}
    for window_s in windows_s:
        begin = (now - window_s * SECOND) // MINUTE * MINUTE
        query = (
            sa.select(
                _minutes.c.tier,
                _minutes.c.bucket,
                sa.func.sum(_minutes.c.requests),
                sa.func.sum(_minutes.c.within_target),
            )
            .where(_minutes.c.minute >= begin)
            .group_by(_minutes.c.tier, _minutes.c.bucket)
        )
        counts: dict[str, dict[int, tuple[int, int]]] = {}
        for tier, number, requests, within in connection.execute(query):
            counts.setdefault(tier, {})[number] = int(requests), int(within)
        found[window_s] = begin // SECOND, {tier: _summary(each) for tier, each in counts.items()}
    first = connection.execute(sa.select(sa.func.min(_minutes.c.minute))).scalar_one()
    return found, None if first is None else int(first) // SECOND


def _summary(counts: Mapping[int, tuple[int, int]]) -> FirstTokenSummary:
    served = sorted((number, requests) for number, (requests, _) in counts.items() if number != REFUSED)
    total = sum(requests for _, requests in served)

    def quantile(share: float) -> float | None:
        left = math.ceil(share * total)
        for number, requests in served:
            left -= requests
            if left <= 0:
                return bound_ms(number)
        return None

    return FirstTokenSummary(
        requests=total,
        within_target=sum(within for _, within in counts.values()),
        refused=counts.get(REFUSED, (0, 0))[0],
        p50_ms=quantile(0.5),
        p95_ms=quantile(0.95),
        p99_ms=quantile(0.99),
    )


def _upsert(insert: sqlite.Insert | postgresql.Insert) -> sa.Insert:
    return insert.on_conflict_do_update(
        index_elements=[_minutes.c.minute, _minutes.c.tier, _minutes.c.gateway_id, _minutes.c.bucket],
        set_={"requests": insert.excluded.requests, "within_target": insert.excluded.within_target},
    )


_UPSERT = {"sqlite": _upsert(sqlite.insert(_minutes)), "postgresql": _upsert(postgresql.insert(_minutes))}


def _write(
    connection: sa.Connection,
    rows: Sequence[Mapping[str, int | str]],
    unserved: Mapping[QuarterKey, UnservedCount],
    now: int | None,
) -> None:
    """Also drop first tokens that are too old, unless `now` is None."""
    if rows:
        connection.execute(_UPSERT[connection.dialect.name], rows)
    sla.count_unserved(connection, unserved)
    if now is not None:
        connection.execute(sa.delete(_minutes).where(_minutes.c.minute < now - KEPT_S * SECOND))
