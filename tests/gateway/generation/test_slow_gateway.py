"""A slow gateway lets requests wait and admits them; it refuses only while the database is away.

Every loop here is uvloop's, as in a gateway. A stall is `time.sleep` inside the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
import uvloop

from billing.accounts import prices, tenants
from billing.database import Database
from billing.ledger.ledger import Held, Ledger
from billing.timeouts import StallTolerantTimeout
from gateway.access import keys
from gateway.catalog.registry import ModelTarget
from gateway.generation import holds
from gateway.limits.turn_pace import AT_ONCE, RequestPace
from gateway.log import RequestLine, RequestRecord
from gateway.metrics import Metrics
from gateway.upkeep.revision_watch import STALE_S, RevisionWatch
from support.waiting import PATIENCE_S, eventually_async

STALL_S = STALE_S + 0.1


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    return sqlite_database


async def nothing(_: object) -> None:
    pass


@contextlib.asynccontextmanager
async def watching(database: Database) -> AsyncIterator[RevisionWatch]:
    watch = RevisionWatch(database, nothing)
    run = asyncio.create_task(watch.run())
    try:
        assert await watch.freshen()
        yield watch
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def stall_after(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    time.sleep(STALL_S)  # noqa: ASYNC251 - the loop stands still


@pytest.mark.parametrize("turns", range(6))
def test_a_stall_while_the_revision_is_read_delays_and_refuses_nobody(database: Database, turns: int) -> None:
    """The read began before the stall, so its result is too old afterwards: another read is needed."""

    async def run() -> None:
        async with watching(database) as watch:
            time.sleep(STALL_S)  # noqa: ASYNC251
            assert not watch.fresh
            admitted, _ = await asyncio.gather(watch.freshen(), stall_after(turns))
            assert admitted

    uvloop.run(run())


def test_requests_that_take_longer_together_than_a_revision_lasts_are_all_admitted(database: Database) -> None:
    """Each is admitted on a fresh revision, however often the revision must be read meanwhile."""
    ages: list[bool] = []

    async def run() -> None:
        async with watching(database) as watch:

            async def request() -> None:
                assert await watch.freshen()
                ages.append(watch.fresh)
                time.sleep(0.05)  # noqa: ASYNC251 - parsed, rendered and counted

            time.sleep(STALL_S)  # noqa: ASYNC251
            await asyncio.gather(*(request() for _ in range(60)))

    uvloop.run(run())
    assert ages == [True] * 60


def test_a_cancellation_that_meets_a_waiting_caller_ends_the_watch(database: Database) -> None:
    """With `asyncio.wait_for` of Python 3.11 it would be lost, and the gateway would not stop."""

    async def run() -> None:
        watch = RevisionWatch(database, nothing, interval_s=60.0)
        running = asyncio.create_task(watch.run())
        assert await watch.freshen()
        await asyncio.sleep(0)
        watch._wanted.set()
        running.cancel()
        await asyncio.wait([running], timeout=PATIENCE_S)
        assert running.cancelled()

    uvloop.run(run())


def test_a_revision_is_as_old_as_its_read_not_as_the_moment_it_arrived(database: Database) -> None:
    """The change was written after the read: freshness must not be counted from the arrival of the result."""

    async def run() -> None:
        async with watching(database) as watch:
            poll = asyncio.create_task(watch.poll_revision())
            await asyncio.sleep(0)
            time.sleep(STALL_S)  # noqa: ASYNC251 - the read ends in its thread, the loop hears of it later
            await poll
            assert not watch.fresh

    uvloop.run(run())


def test_a_database_that_hangs_refuses_within_its_patience_and_then_at_once(postgres_url: str) -> None:
    database = Database(postgres_url)
    admin = sa.create_engine(postgres_url)

    async def run() -> None:
        async with watching(database) as watch:
            with admin.connect() as connection:
                connection.execute(sa.text("LOCK TABLE revision IN ACCESS EXCLUSIVE MODE"))
                await eventually_async(lambda: not watch.fresh)
                assert not await watch.freshen()
                began = time.monotonic()
                assert not any([await watch.freshen() for _ in range(20)])
                assert time.monotonic() - began < 5.0  # the waits are not added up
                connection.rollback()
            await eventually_async(lambda: watch.fresh)
            assert await watch.freshen()

    uvloop.run(run())
    admin.dispose()
    database.close()


def test_whoever_waits_for_a_watch_that_ends_is_told(database: Database) -> None:
    async def run() -> None:
        async with watching(database) as watch:
            time.sleep(STALL_S)  # noqa: ASYNC251
            waiting = asyncio.create_task(watch.freshen())
            await asyncio.sleep(0)
        assert await waiting in (True, False)
        time.sleep(STALL_S)  # noqa: ASYNC251
        assert not await watch.freshen()

    uvloop.run(run())


def test_patience_counts_the_time_in_which_the_loop_ran() -> None:
    def late() -> str:
        time.sleep(0.05)
        return "in time"

    async def answered_during_a_stall() -> object:
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(None, late)
        loop.call_soon(time.sleep, 0.6)
        async with StallTolerantTimeout(0.4):
            return await answer

    async def unanswered() -> float:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with StallTolerantTimeout(0.4):
                await asyncio.Event().wait()
        return time.monotonic() - began

    assert uvloop.run(answered_during_a_stall()) == "in time"
    assert uvloop.run(unanswered()) >= 0.35


def test_patience_leaves_a_cancellation_and_an_error_as_they_are() -> None:
    async def run() -> None:
        async def wait() -> None:
            async with StallTolerantTimeout(60.0):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="its own"):
            async with StallTolerantTimeout(60.0):
                raise ValueError("its own")

    uvloop.run(run())


def test_a_hold_that_is_answered_during_a_stall_is_held(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "HOLD_WAIT_S", 0.4)

    def seed(connection: sa.Connection) -> SimpleNamespace:
        tenant = tenants.create_tenant(connection, slug="acme", name="Acme", tier="standard")
        key = keys.create_key(connection, tenant_id=tenant.id, name="k")
        prices.publish(connection, subject="m", input=1, cached_input=1, output=1, multipliers={"standard": 1})
        return SimpleNamespace(
            tenant_id=tenant.id, key_id=key.key.id, project_id=None, first_key_id=key.key.id, tag_set_id=None
        )

    caller = database.write_sync(seed)

    async def run() -> None:
        ledger = Ledger(database, "gw_1")
        plan = SimpleNamespace(target=ModelTarget("m", "m", None), prompt_tokens=1, max_tokens=1, texts=1)
        line = RequestLine(RequestRecord(request_id="req_1", method="POST"))
        asked = SimpleNamespace(end_user=None, operation="text")
        work = SimpleNamespace(
            request_id="req_1", caller=caller, tier="standard", plan=plan, line=line, line_run=None, asked=asked
        )
        asyncio.get_running_loop().call_later(0.0, time.sleep, 0.8)
        held = await holds.RequestHolds(ledger, None, Metrics(), None).place_hold(work)  # type: ignore[arg-type]
        assert isinstance(held, Held)
        await ledger.close()

    uvloop.run(run())


def test_what_comes_at_one_moment_is_spread_over_turns_in_its_order() -> None:
    begun: list[tuple[int, int]] = []
    turn = 0

    async def run() -> None:
        nonlocal turn
        pace = RequestPace()

        async def request(number: int) -> None:
            await pace.wait_turn()
            begun.append((turn, number))

        tasks = [asyncio.create_task(request(number)) for number in range(10 * AT_ONCE)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            turn += 1

    uvloop.run(run())
    assert [number for _, number in begun] == list(range(10 * AT_ONCE))
    turns = [turn for turn, _ in begun]
    assert max(turns.count(turn) for turn in turns) <= AT_ONCE


def test_whoever_leaves_the_line_takes_no_turn() -> None:
    async def run() -> None:
        pace = RequestPace()
        tasks = [asyncio.create_task(pace.wait_turn()) for _ in range(10 * AT_ONCE)]
        await asyncio.sleep(0)
        for task in tasks[AT_ONCE::2]:
            task.cancel()
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks, return_exceptions=True)
            await pace.wait_turn()

    uvloop.run(run())
