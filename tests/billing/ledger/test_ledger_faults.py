"""Many at once, two gateways, killed connections, a database that goes away: overshoot 0, one ending per hold."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa

from billing import tables
from billing.database import Database, DatabaseUnavailable
from billing.ledger import ledger as ledgers
from billing.ledger.expiry import Auditor
from billing.ledger.leases import GatewayRefused, Leases
from billing.ledger.ledger import Held, HoldRefused, Ledger, LedgerUnavailable
from support.billing.books import Books, CommitCount, settle_when_available, settlement
from support.cut_proxy import CutProxy
from support.paths import REPO


@asynccontextmanager
async def gateway(url: str, name: str = "gw_1", **arguments: float) -> AsyncIterator[Ledger]:
    """A ledger with connections of its own, as another process has them."""
    database = Database(url)
    ledger = Ledger(database, name, **arguments)  # type: ignore[arg-type]
    yield ledger
    await ledger.close()
    database.close()


async def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


async def test_64_at_once_on_a_budget_for_10(books: Books) -> None:
    budget = books.budget(10 * 100)
    async with gateway(books.url) as ledger:
        answers = await asyncio.gather(*(ledger.hold(books.request(prompt=10, most=90)) for _ in range(64)))
    assert sum(isinstance(answer, Held) for answer in answers) == 10
    assert books.state(budget) == (0, 1_000)
    books.assert_sound(open_holds=10)


async def test_64_at_once_leave_less_than_one_could_use(books: Books) -> None:
    budget = books.budget(1_037)
    async with gateway(books.url) as ledger:
        answers = await asyncio.gather(*(ledger.hold(books.request(prompt=10, most=90)) for _ in range(64)))
    granted = [answer.max_tokens for answer in answers if isinstance(answer, Held)]
    assert granted == [90] * 10 + [27]
    assert books.state(budget) == (0, 1_037)


async def test_requests_one_by_one_in_flight(books: Books) -> None:
    """Not one group but many: each caller holds, settles and comes again until it is refused."""
    budget = books.budget(3_000, key="key_a")
    calls: list[str] = []

    async def come_again(ledger: Ledger, seed: int) -> None:
        chance = random.Random(seed)
        while True:
            request = books.request(prompt=10, most=chance.randint(1, 90))
            await asyncio.sleep(chance.random() * 0.01)
            calls.append("hold")
            held = await ledger.hold(request)
            if isinstance(held, HoldRefused):
                return
            calls.append("settle")
            await ledger.settle(settlement(request, chance.randint(0, held.max_tokens)))

    async with gateway(books.url) as ledger:
        count = CommitCount(ledger._database)
        await asyncio.gather(*(come_again(ledger, seed) for seed in range(64)))
        assert 0 < count.commits < len(calls)
    used, held = books.state(budget)
    assert held == 0
    assert 3_000 - 11 < used <= 3_000
    books.assert_sound()


async def test_two_gateways_on_crossing_budgets(postgres_books: Books) -> None:
    """Groups of both lock the same budgets in every mix: nobody overshoots, nobody deadlocks."""
    books = postgres_books
    keys = [f"key_{number}" for number in range(8)]
    tenant_budget = books.budget(20_000)
    key_budgets = [books.budget(3_000, key=key, period="day") for key in keys]

    async def client(ledger: Ledger, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(12):
            request = books.request(key=chance.choice(keys), most=chance.randint(1, 90))
            held = await ledger.hold(request)
            if isinstance(held, HoldRefused):
                continue
            if chance.random() < 0.2:
                await ledger.void(request.request_id, "refused")
            else:
                await ledger.settle(settlement(request, held.max_tokens))

    async with gateway(books.url, "gw_1") as one, gateway(books.url, "gw_2") as two:
        await asyncio.gather(*(client(ledger, seed) for seed, ledger in enumerate([one, two] * 24)))
    books.assert_sound()
    used, held = books.state(tenant_budget)
    assert held == 0
    assert 15_000 < used <= 20_000
    assert all(books.state(budget)[0] <= 3_000 for budget in key_budgets)


async def test_two_gateways_end_the_same_holds(postgres_books: Books) -> None:
    """A settlement in one and a void in the other, at the same moment: exactly one of them wins, for both."""
    books = postgres_books
    budget = books.budget(10_000)
    requests = [books.request() for _ in range(40)]
    async with gateway(books.url, "gw_1") as one, gateway(books.url, "gw_2") as two:
        await asyncio.gather(*map(one.hold, requests))
        settled = asyncio.gather(*(one.settle(settlement(request, 5)) for request in requests))
        voided = asyncio.gather(*(two.void(request.request_id, "audit") for request in reversed(requests)))
        assert sorted(map(repr, await settled)) == sorted(map(repr, await voided))
    assert books.state(budget)[1] == 0
    books.assert_sound()


async def test_first_window_made_by_two_gateways_at_once(postgres_books: Books) -> None:
    books = postgres_books
    async with gateway(books.url, "gw_1") as one, gateway(books.url, "gw_2") as two:
        for _ in range(10):
            budget = books.budget(150, key=f"key_{next(books.numbers)}", period="day")
            answers = await asyncio.gather(*(ledger.hold(books.request(key=budget.scope_id)) for ledger in (one, two)))
            assert sorted(answer.max_tokens for answer in answers if isinstance(answer, Held)) == [40, 90]
            assert books.state(budget) == (0, 150)


# ---- the database goes away


async def test_connection_killed_in_mid_transaction(postgres_books: Books) -> None:
    books = postgres_books
    budget = books.budget(1_000)
    admin = sa.create_engine(books.url, poolclass=sa.pool.NullPool)
    async with gateway(books.url) as ledger:
        with admin.begin() as blocker:
            blocker.execute(sa.select(tables.budgets).with_for_update())
            waiting = [asyncio.create_task(ledger.hold(books.request())) for _ in range(4)]
            victims = sa.text(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )

            def blocked() -> list[int]:
                with admin.connect() as connection:
                    return list(connection.execute(victims).scalars())

            await until(blocked)
            blocker.execute(sa.select(sa.func.pg_terminate_backend(blocked()[0])))
        answers = await asyncio.gather(*waiting)
    assert all(isinstance(answer, Held) for answer in answers)
    assert books.state(budget) == (0, 400)
    books.assert_sound(open_holds=4)


async def test_database_away_and_back(postgres_books: Books) -> None:
    books = postgres_books
    budget = books.budget(1_000)
    async with CutProxy(books.url) as proxy, gateway(proxy.url) as ledger:
        running = books.request()
        await ledger.hold(running)
        proxy.cut()
        settling = asyncio.create_task(settle_when_available(ledger, settlement(running, 7)))
        for _ in range(3):
            with pytest.raises(LedgerUnavailable):
                await ledger.hold(books.request())
        assert not settling.done(), "an ending waits"
        proxy.restore()
        assert (await settling).outcome == "settled"
        assert isinstance(await ledger.hold(books.request()), Held)
        await ledger.close()
    assert books.state(budget) == (17, 100)
    books.assert_sound(open_holds=1)


async def test_an_ending_that_was_not_recorded_can_be_repeated(postgres_books: Books) -> None:
    books = postgres_books
    async with CutProxy(books.url) as proxy, gateway(proxy.url) as ledger:
        request = books.request()
        await ledger.hold(request)
        proxy.cut()
        with pytest.raises(LedgerUnavailable):
            await ledger.settle(settlement(request, 7))
        proxy.restore()
        assert (await ledger.settle(settlement(request, 7))).outcome == "settled"
    books.assert_sound()


async def test_closing_while_the_database_is_away_ends(postgres_books: Books) -> None:
    books = postgres_books
    async with CutProxy(books.url) as proxy, gateway(proxy.url) as ledger:
        request = books.request()
        await ledger.hold(request)
        proxy.cut()
        with pytest.raises(LedgerUnavailable):
            await ledger.hold(books.request())
        assert ledger.away
        settling = asyncio.create_task(ledger.settle(settlement(request, 7)))
        await asyncio.sleep(0)
        await ledger.close(patience_s=0.1)
        with pytest.raises(LedgerUnavailable):
            await settling
    books.assert_sound(open_holds=1)


async def test_a_commit_whose_answer_was_lost_holds_once(postgres_books: Books) -> None:
    """The commit reaches the database and its answer does not reach us: the second try finds the hold."""
    books = postgres_books
    budget = books.budget(1_000)
    async with CutProxy(books.url) as proxy, gateway(proxy.url) as ledger:
        await ledger.hold(books.request())
        with sa.create_engine(books.url, poolclass=sa.pool.NullPool).begin() as blocker:
            blocker.execute(sa.select(tables.budgets).with_for_update())
            holding = asyncio.create_task(ledger.hold(books.request(request_id="req_doubtful")))
            await asyncio.sleep(0.2)
        await asyncio.sleep(0)
        proxy.mute()
        await asyncio.sleep(0.3)
        proxy.cut()
        proxy.restore()
        assert isinstance(await holding, Held)
    assert books.state(budget) == (0, 200)
    books.assert_sound(open_holds=2)


async def test_a_hold_that_failed_is_voided_if_it_was_committed(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller was told that the ledger is away: whatever the database has of its request must go."""
    budget = books.budget(1_000)
    database = Database(books.url)
    ledger = Ledger(database, "gw_1")
    write_sync, failures = database.write_sync, 2

    def committed_and_lost(function: Callable[[sa.Connection], object]) -> object:
        nonlocal failures
        result = write_sync(function)
        if failures:
            failures -= 1
            raise lost
        return result

    lost = DatabaseUnavailable("the answer to COMMIT was lost")
    monkeypatch.setattr(database, "write_sync", committed_and_lost)
    with pytest.raises(LedgerUnavailable):
        await ledger.hold(books.request())
    await ledger.close()
    database.close()
    assert books.state(budget) == (0, 0)
    books.assert_sound()


async def test_whoever_leaves_in_the_moment_of_the_answer_leaves_no_hold(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a timeout that falls due in the tick of the commit: the answer is there, and the caller never sees it."""
    budget = books.budget(1_000)
    answer = ledgers._answer

    def leave(waiter: asyncio.Future[object] | None, result: object) -> None:
        answer(waiter, result)
        holding.cancel()

    async with gateway(books.url) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(ledgers, "_answer", leave)
            holding = asyncio.create_task(ledger.hold(books.request()))
            with pytest.raises(asyncio.CancelledError):
                await holding
        await until(lambda: books.state(budget) == (0, 0))
    books.assert_sound()


# ---- SQLite


async def test_a_command_line_writes_beside_the_gateway(sqlite_books: Books) -> None:
    books = sqlite_books
    async with gateway(books.url) as ledger:
        command_line = sa.create_engine(books.url, poolclass=sa.pool.NullPool)
        with command_line.connect() as connection:
            connection.connection.driver_connection.isolation_level = None  # type: ignore[union-attr]
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            holding = asyncio.create_task(ledger.hold(books.request()))
            await asyncio.sleep(0.3)
            assert not holding.done()
            connection.exec_driver_sql("COMMIT")
            assert isinstance(await holding, Held)


async def test_closing_while_a_commit_hangs_ends(sqlite_books: Books) -> None:
    books = sqlite_books
    async with gateway(books.url) as ledger:
        command_line = sa.create_engine(books.url, poolclass=sa.pool.NullPool)
        with command_line.connect() as connection:
            connection.connection.driver_connection.isolation_level = None  # type: ignore[union-attr]
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            holding = asyncio.create_task(ledger.hold(books.request()))
            await asyncio.sleep(0.05)
            await ledger.close(patience_s=0.05)
            with pytest.raises(LedgerUnavailable):
                await holding


GATEWAY_THAT_DIES = """
import asyncio, sys
from billing.ledger.expiry import Auditor
from billing.database import Database, DatabaseUnavailable
from billing.ledger.leases import GatewayRefused, Leases
from billing.ledger.ledger import HoldRequest, Ledger

async def main(url, tenant_id):
    database = Database(url)
    leases = Leases(database, "gw_old")
    await leases.acquire()
    ledger = Ledger(database, "gw_old")
    for number in range(3):
        await ledger.hold(HoldRequest(f"req_old_{number}", tenant_id, "key_a", "model-a", None, "standard", 10, 90))
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_kill_minus_nine_of_the_only_gateway(sqlite_books: Books) -> None:
    """The next one knows that it is alone, and the budget is whole at once."""
    books = sqlite_books
    budget = books.budget(1_000)
    command = [sys.executable, "-c", GATEWAY_THAT_DIES, books.url, books.tenant.id]
    old = await asyncio.create_subprocess_exec(*command, cwd=REPO, stdout=asyncio.subprocess.PIPE)
    assert old.stdout is not None
    assert await old.stdout.readline() == b"held\n"
    assert books.state(budget) == (0, 300)
    with pytest.raises(GatewayRefused, match="one gateway"):
        await Leases(books.database, "gw_new").acquire()
    old.kill()
    await old.wait()
    leases = Leases(books.database, "gw_new")
    await leases.acquire()
    assert len(await Auditor(books.database, "gw_new").run_once()) == 3
    assert books.state(budget) == (0, 0)
    books.assert_sound()
    await leases.release_lease()
