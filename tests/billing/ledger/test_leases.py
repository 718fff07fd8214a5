"""Who is alive, whose holds expire, and when the audit has to wait."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from billing import clock, tables
from billing.clock import SECOND
from billing.database import Database
from billing.ledger import expiry, leases
from billing.ledger.expiry import Auditor
from billing.ledger.leases import Leases
from billing.ledger.ledger import Held, Ledger
from billing.ledger.messages import HoldEnding
from billing.proofs.ledger_audit import audit_ledger
from support.billing.books import Books, settlement


class Time:
    """The database's clock, in the test's hand."""

    def __init__(self) -> None:
        self.now = 1_900_000_000 * SECOND

    def clock(self, _connection: sa.Connection) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@pytest.fixture
def time() -> Time:
    return Time()


def expires_at(books: Books, gateway_id: str) -> int | None:
    table = tables.leases
    query = sa.select(table.c.expires_at).where(table.c.gateway_id == gateway_id)
    return books.database.read_sync(lambda connection: connection.execute(query).scalar())


async def test_lease_is_taken_renewed_and_given_up(books: Books, time: Time) -> None:
    lease = Leases(books.database, "gw_1", clock=time.clock)
    assert not lease.held
    await lease.acquire()
    assert lease.held
    assert expires_at(books, "gw_1") == time.now + 60 * SECOND
    time.forward(5)
    await lease.renew()
    assert expires_at(books, "gw_1") == time.now + 60 * SECOND
    assert books.database.read_sync(lambda connection: leases.count_live_gateways(connection, time.now)) == 1
    await lease.release_lease()
    assert not lease.held
    assert books.database.read_sync(lambda connection: leases.count_live_gateways(connection, time.now)) == 0


async def test_a_gateway_that_misses_renewals_is_no_longer_counted(postgres_books: Books, time: Time) -> None:
    """Long before its lease and its holds expire: limits are divided by those that admit."""
    for gateway_id in ("gw_dead", "gw_alive"):
        await Leases(postgres_books.database, gateway_id, clock=time.clock).acquire()

    def counted() -> int:
        return postgres_books.database.read_sync(
            lambda connection: leases.count_live_gateways(connection, time.now, 5.0)
        )

    time.forward(14.9)
    assert counted() == 2
    await Leases(postgres_books.database, "gw_alive", clock=time.clock).renew()
    time.forward(0.1)
    assert counted() == 1
    time.forward(15)
    assert counted() == 0


async def test_renewed_in_the_background_by_the_databases_clock(books: Books) -> None:
    lease = Leases(books.database, "gw_1", lease_s=1.0, renew_s=0.05)
    await lease.acquire()
    first = expires_at(books, "gw_1")
    renewing = asyncio.create_task(lease.run())
    assert first is not None
    async with asyncio.timeout(30):
        while (last := expires_at(books, "gw_1")) == first:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    renewing.cancel()
    assert last is not None
    assert first < last <= books.database.read_sync(clock.database_now) + SECOND
    await lease.release_lease()


async def test_holds_of_a_dead_gateway_expire_and_others_stay(books: Books, time: Time) -> None:
    budget = books.budget(1_000)
    dead = Ledger(books.database, "gw_dead", clock=time.clock)
    alive = Ledger(books.database, "gw_alive", clock=time.clock)
    dying = books.request()
    await dead.hold(dying)
    await dead.hold(books.request())
    time.forward(59)
    await alive.hold(books.request())

    def expire() -> list[str]:
        return books.database.write_sync(lambda connection: expiry.expire_dead(connection, "gw_auditor", time.now))

    assert expire() == [], "its lease lives for another second"
    time.forward(1)
    assert len(expire()) == 2
    assert expire() == []
    assert books.state(budget) == (0, 100)

    late = await dead.settle(settlement(dying, 7))
    assert late == HoldEnding(dying.request_id, "expired")
    holds = tables.holds
    query = sa.select(holds.c.state, holds.c.ending, holds.c.lost_tokens).where(holds.c.request_id == dying.request_id)
    row = books.database.read_sync(lambda connection: connection.execute(query).one())
    assert tuple(row) == ("expired", "gateway_dead", 7), "made, and nobody pays: lost"
    assert books.state(budget) == (0, 100)
    books.assert_sound(open_holds=1)


async def test_expired_in_bounded_batches(books: Books, time: Time) -> None:
    ledger = Ledger(books.database, "gw_dead", clock=time.clock)
    await asyncio.gather(*(ledger.hold(books.request()) for _ in range(25)))
    time.forward(60)
    sizes = [
        len(books.database.write_sync(lambda connection: expiry.expire_dead(connection, "gw_2", time.now, limit=10)))
        for _ in range(4)
    ]
    assert sizes == [10, 10, 5, 0]
    assert books.findings().open_holds == 0


async def test_a_settlement_and_an_expiry_race(postgres_books: Books, time: Time) -> None:
    """Whoever comes first, there is one ending and the counters are whole."""
    books = postgres_books
    budget = books.budget(10_000)
    ledger, other = Ledger(books.database, "gw_dead", clock=time.clock), Database(books.url)
    requests = [books.request() for _ in range(50)]
    await asyncio.gather(*map(ledger.hold, requests))
    time.forward(60)
    auditing = [
        other.write(lambda connection: expiry.expire_dead(connection, "gw_auditor", time.now, limit=10))
        for _ in range(5)
    ]
    settling = [ledger.settle(settlement(request, 7)) for request in reversed(requests)]
    expired, ended = await asyncio.gather(asyncio.gather(*auditing), asyncio.gather(*settling))
    other.close()
    outcomes = [item.outcome for item in ended]
    assert outcomes.count("expired") == sum(map(len, expired))
    assert outcomes.count("expired") + outcomes.count("settled") == 50
    assert books.state(budget) == (17 * outcomes.count("settled"), 0)
    books.assert_sound()


async def test_a_gateway_that_was_thought_dead_takes_holds_again(books: Books, time: Time) -> None:
    ledger = Ledger(books.database, "gw_1", clock=time.clock)
    await ledger.hold(books.request())
    time.forward(3600)
    books.database.write_sync(lambda connection: expiry.expire_dead(connection, "gw_2", time.now))
    assert expires_at(books, "gw_1") is None
    assert isinstance(await ledger.hold(books.request()), Held)
    assert expires_at(books, "gw_1") == time.now + 60 * SECOND
    assert books.database.write_sync(lambda connection: expiry.expire_dead(connection, "gw_2", time.now)) == []
    books.assert_sound(open_holds=1)


async def test_the_auditors_own_holds_never_expire(books: Books, time: Time) -> None:
    ledger = Ledger(books.database, "gw_1", clock=time.clock)
    await ledger.hold(books.request())
    time.forward(3600)
    assert books.database.write_sync(lambda connection: expiry.expire_dead(connection, "gw_1", time.now)) == []


async def test_the_audit_waits_one_lease_after_its_start(postgres_books: Books, time: Time) -> None:
    books = postgres_books
    await Ledger(books.database, "gw_dead", clock=time.clock).hold(books.request())
    time.forward(3600)
    auditor = Auditor(books.database, "gw_1", clock=time.clock)
    for _ in range(12):
        assert await auditor.run_once() == []
        time.forward(5)
    assert len(await auditor.run_once()) == 1
    books.assert_sound()


async def test_an_audit_that_starts_where_others_watched_does_not_wait(postgres_books: Books, time: Time) -> None:
    """Gateways that are killed all the time keep no budget blocked: what their auditors saw outlives them."""
    books = postgres_books
    budget = books.budget(1_000)
    await Auditor(books.database, "gw_0", clock=time.clock).run_once()
    await Ledger(books.database, "gw_dead", clock=time.clock).hold(books.request())
    for life in range(1, 13):
        time.forward(5)
        assert await Auditor(books.database, f"gw_{life}", clock=time.clock).run_once() == [] or life == 12
    assert books.state(budget) == (0, 0), "a lease after its gateway died"
    books.assert_sound()


async def test_an_audit_that_starts_after_a_gap_waits(postgres_books: Books, time: Time) -> None:
    books = postgres_books
    for life in range(20):
        await Auditor(books.database, f"gw_{life}", clock=time.clock).run_once()
        time.forward(5)
    await Ledger(books.database, "gw_dead", clock=time.clock).hold(books.request())
    time.forward(61)
    auditor = Auditor(books.database, "gw_new", clock=time.clock)
    for _ in range(12):
        assert await auditor.run_once() == []
        time.forward(5)
    assert len(await auditor.run_once()) == 1


@pytest.mark.parametrize("jump", ["database away", "clock forward", "clock back"])
async def test_the_audit_waits_one_lease_after_the_database_was_away(
    postgres_books: Books, time: Time, jump: str
) -> None:
    """Nobody could renew meanwhile, so everybody looks dead. A database clock that jumped looks the same."""
    books = postgres_books
    auditor = Auditor(books.database, "gw_1", clock=time.clock)
    for _ in range(13):
        await auditor.run_once()
        time.forward(5)
    other = Ledger(books.database, "gw_other", clock=time.clock)
    await other.hold(books.request())
    await auditor.run_once()
    if jump == "database away":
        time.forward(90)
    else:
        time.now += 600 * SECOND if jump == "clock forward" else -600 * SECOND
    for _ in range(11):
        assert await auditor.run_once() == []
        time.forward(5)
    await Leases(books.database, "gw_other", clock=time.clock).acquire()
    for _ in range(6):
        time.forward(5)
        assert await auditor.run_once() == [], "it renewed in time"
    books.assert_sound(open_holds=1)


async def test_orphans_are_reported_before_they_expire(books: Books, time: Time) -> None:
    request = books.request()
    await Ledger(books.database, "gw_dead", clock=time.clock).hold(request)
    assert books.database.read_sync(lambda connection: audit_ledger(connection, time.clock)).orphaned == []
    time.forward(61)
    findings = books.database.read_sync(lambda connection: audit_ledger(connection, time.clock))
    assert findings.orphaned == [request.request_id]
    assert findings.sound
