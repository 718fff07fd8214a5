"""Waits for first tokens: counted against each request's own target, kept by minute, summed over all gateways."""

from __future__ import annotations

import random

import pytest
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.sla_tables import sla_quarters
from gateway.config.settings import TierSection
from gateway.generation import first_tokens
from gateway.generation.first_tokens import (
    BUCKET_MAX,
    MINUTE,
    FirstTokens,
    FirstTokenSummary,
    bound_ms,
    bucket,
    summaries,
)
from gateway.metrics import Metrics
from gateway.tables import first_token_minutes

TIERS = (
    TierSection(name="premium", service_tier="priority", ttft_base_ms=100.0, ttft_per_1k_prompt_tokens_ms=200.0),
    TierSection(name="batch", service_tier="flex", ttft_base_ms=1000.0, ttft_per_1k_prompt_tokens_ms=1.0),
)


class Clock:
    """The database's, moved by hand."""

    def __init__(self, database: Database) -> None:
        self.s = database.read_sync(database_now) / SECOND

    def __call__(self) -> float:
        return self.s


def read(database: Database, *windows_s: int) -> dict[int, dict[str, FirstTokenSummary]]:
    found, _ = database.read_sync(lambda c: summaries(c, windows_s))
    return {window: dict(tiers) for window, (_, tiers) in found.items()}


def test_a_bucket_s_bound_is_at_most_a_little_above_what_is_in_it() -> None:
    draw = random.Random(1)
    for _ in range(20_000):
        wait_ms = 10 ** draw.uniform(0, 6)
        bound = 2 ** (bucket(wait_ms) / first_tokens.PER_DOUBLING)
        assert wait_ms <= bound * (1 + 1e-9) <= wait_ms * 2 ** (1 / first_tokens.PER_DOUBLING) * (1 + 1e-6)
    assert (bucket(0.0), bucket(1.0), bucket(1e12)) == (0, 0, BUCKET_MAX)


async def test_each_request_is_held_to_its_own_target(database: Database) -> None:
    counts = FirstTokens(database, "gw_1", TIERS, Clock(database), Metrics())
    counts.observe("premium", 0.1, 0)  # in time, exactly
    counts.observe("premium", 0.1001, 0)  # late
    counts.observe("premium", 0.3, 1000)  # in time: 100 + 200 ms
    counts.observe("premium", 0.3, 999)  # late
    counts.observe("batch", 0.9, 1)
    counts.refused("batch")
    counts.refused("batch")
    await counts.flush()
    found = read(database, 300)[300]
    assert (found["premium"].requests, found["premium"].within_target, found["premium"].refused) == (4, 2, 0)
    assert (found["batch"].requests, found["batch"].within_target, found["batch"].refused) == (1, 1, 2)


async def test_quantiles_over_all_gateways_agree_with_the_waits_themselves(database: Database) -> None:
    clock, draw = Clock(database), random.Random(3)
    gateways = [FirstTokens(database, f"gw_{number}", TIERS, clock, Metrics()) for number in range(3)]
    waits = []
    for _ in range(2000):
        waits.append(draw.lognormvariate(-1.5, 0.8))
        draw.choice(gateways).observe("premium", waits[-1], 500)
    for gateway in gateways:
        await gateway.flush()
    found = read(database, 300)[300]["premium"]
    waits.sort()
    for share, told in ((0.5, found.p50_ms), (0.95, found.p95_ms), (0.99, found.p99_ms)):
        true_ms = waits[-(-int(share * 100) * len(waits) // 100) - 1] * 1000
        assert told is not None
        assert true_ms - 0.06 <= told <= true_ms * 1.0906 + 0.06
    assert (found.requests, found.within_target) == (2000, sum(wait <= 0.2 for wait in waits))


async def test_windows_end_where_they_say_and_nothing_is_written_twice(database: Database) -> None:
    clock = Clock(database)
    now = clock.s
    counts = FirstTokens(database, "gw_1", TIERS, clock, Metrics())
    for back_s in (30 * 3600, 26 * 3600, 20 * 3600, 3000, 200, 0):
        clock.s = now - back_s
        counts.observe("premium", 0.05, 0)
        await counts.flush()
        await counts.flush()
        counts.observe("premium", 0.05, 0)  # the same minute, the same bucket
        await counts.flush()
    found = read(database, 300, 3600, 86_400)
    assert {window: tiers["premium"].requests for window, tiers in found.items()} == {300: 4, 3600: 6, 86_400: 8}
    # A gateway that begins has nothing in memory, and forgets what is a day old.
    other = FirstTokens(database, "gw_2", TIERS, clock, Metrics())
    other.observe("batch", 0.05, 0)
    await other.flush()
    rows = sa.select(sa.func.min(first_token_minutes.c.minute))
    oldest = database.read_sync(lambda c: c.execute(rows).scalar_one())
    assert oldest == int((now - 20 * 3600) // 60) * MINUTE
    assert read(database, 86_400)[86_400]["premium"] == found[86_400]["premium"]


async def test_while_the_database_is_away_what_waits_is_bounded_and_comes_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(database)
    now = clock.s
    counts = FirstTokens(database, "gw_1", TIERS, clock, Metrics())
    # The table is away: what asks for it hears that the database cannot serve, on either.
    database.write_sync(lambda c: c.execute(sa.text("ALTER TABLE first_token_minutes RENAME TO elsewhere")))
    minutes = first_tokens.WAITING_MAX + 5
    for minute in range(minutes):
        clock.s = now - (minutes - 1 - minute) * 60
        counts.observe("premium", 0.05, 0)
    counts.unanswered("batch", "ten_1", "m")
    with pytest.raises(DatabaseUnavailable):
        await counts.flush()
    counts.unanswered("batch", "ten_1", "m")
    database.write_sync(lambda c: c.execute(sa.text("ALTER TABLE elsewhere RENAME TO first_token_minutes")))
    for _ in range(2):
        await counts.flush()
    quarters = sa.select(sla_quarters.c.tenant_id, sla_quarters.c.unanswered).order_by(sla_quarters.c.tenant_id)
    assert database.read_sync(lambda c: [tuple(row) for row in c.execute(quarters)]) == [("", 2), ("ten_1", 2)]
    assert read(database, 86_400)[86_400]["premium"].requests == first_tokens.WAITING_MAX


async def test_sums_are_remembered_for_a_part_of_their_window(database: Database) -> None:
    now = 100.0
    attained = first_tokens.AttainmentCache(database, lambda: now)
    counts = FirstTokens(database, "gw_1", TIERS, Clock(database), Metrics())

    async def requests() -> list[int]:
        found, _ = await attained.of([300, 86_400])
        return [tiers["premium"].requests if tiers else 0 for _, tiers in found.values()]

    assert await requests() == [0, 0]
    counts.observe("premium", 0.05, 0)
    await counts.flush()
    assert await requests() == [0, 0]
    now += first_tokens.REMEMBERED_S_MIN + 0.1
    assert await requests() == [1, 0]
    now += 60
    assert await requests() == [1, 1]
    assert first_tokens.delay_s(86_400) == first_tokens.FLUSH_S + 60


def test_nothing_is_nothing(database: Database) -> None:
    found, since = database.read_sync(lambda c: summaries(c, [300]))
    assert found[300][1] == {}
    assert since is None
    assert bound_ms(0) == 1.0
