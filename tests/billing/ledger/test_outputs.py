"""Outputs of a batch's lines: recorded with their settlement, under the lease of the batch's worker."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.clock import SECOND
from billing.ledger import expiry
from billing.ledger.journal import paths
from billing.ledger.ledger import Ledger, LedgerUnavailable
from billing.ledger.messages import HoldRequest, LineOutput, Settlement
from billing.ledger.outputs import LeaseLost, lock_lease, record_unheld, take_lease
from billing.ledger.settler import Settler
from billing.output_tables import line_outputs, output_leases
from support.billing.books import CANNOT_SERVE, Books, beginning_with, settlement

BATCH = "batch_1"
NOW = 1_900_000_000 * SECOND
LATER = NOW + 3600 * SECOND


def lease(books: Books, epoch: int = 1) -> None:
    row = {"batch_id": BATCH, "gateway_id": "gw_1", "epoch": epoch}
    books.database.write_sync(lambda connection: connection.execute(sa.insert(output_leases).values(row)))


def claim(books: Books, epoch: int) -> int | None:
    return books.database.write_sync(lambda connection: take_lease(connection, BATCH, "gw_2", epoch))


def with_output(
    request: HoldRequest, line: int = 1, epoch: int = 1, tokens: int = 7, engines: dict[str, int] | None = None
) -> Settlement:
    output = LineOutput(BATCH, line, epoch, b"sealed " + request.request_id.encode())
    return msgspec.structs.replace(settlement(request, tokens, engines=engines), batch_id=BATCH, output=output)


def outputs(books: Books) -> list[Any]:
    query = sa.select(line_outputs).order_by(line_outputs.c.line)
    return books.database.read_sync(lambda connection: list(connection.execute(query).all()))


def hold_row(books: Books, request: HoldRequest) -> Any:
    query = sa.select(tables.holds).where(tables.holds.c.request_id == request.request_id)
    return books.database.read_sync(lambda connection: connection.execute(query).one())


async def test_an_output_and_its_charge_are_one_transaction(books: Books) -> None:
    lease(books)
    ledger, request, budget = Ledger(books.database, "gw_1"), books.request(), books.budget(1_000)
    await ledger.hold(request)
    ended = await ledger.settle(with_output(request))
    assert ended.outcome == "settled"
    [row] = outputs(books)
    assert (row.line, row.request_id, bytes(row.sealed)) == (1, request.request_id, b"sealed req_0")
    assert not row.is_error
    usage = books.database.read_sync(lambda c: c.execute(sa.select(tables.usage)).one())
    assert (usage.batch_id, usage.cost_picos) == (BATCH, ended.cost_picos)
    assert await ledger.settle(with_output(request)) == ended, "a repeated settlement changes nothing"
    assert len(outputs(books)) == 1
    assert books.state(budget) == (17, 0)
    books.assert_sound()


async def test_a_worker_that_lost_its_lease_charges_nothing(books: Books) -> None:
    lease(books)
    ledger, request, budget = Ledger(books.database, "gw_1"), books.request(), books.budget(1_000)
    await ledger.hold(request)
    assert claim(books, 1) == 2
    late = await ledger.settle(with_output(request, engines={"eng_1": 4, "eng_2": 3}))
    assert (late.outcome, late.cost_picos) == ("expired", 0)
    assert outputs(books) == []
    row = hold_row(books, request)
    assert (row.state, row.ending, row.lost_tokens) == ("expired", "gateway_dead", 7)
    lost = sa.select(tables.lost_attempts.c.epoch, tables.lost_attempts.c.lost_tokens)
    assert dict(books.database.read_sync(lambda c: list(c.execute(lost)))) == {"eng_1": 4, "eng_2": 3}
    assert books.state(budget) == (0, 0)
    assert await ledger.settle(with_output(request, engines={"eng_1": 4, "eng_2": 3})) == late
    assert hold_row(books, request).lost_tokens == 7
    books.assert_sound()


async def test_a_line_has_one_output(books: Books) -> None:
    """Two attempts of a line end in one transaction, under one lease."""
    lease(books)
    ledger, requests = Ledger(books.database, "gw_1"), [books.request() for _ in range(2)]
    for request in requests:
        await ledger.hold(request)
    endings = await asyncio.gather(*(ledger.settle(with_output(request)) for request in requests))
    assert sorted(ending.outcome for ending in endings) == ["expired", "settled"]
    assert len(outputs(books)) == 1
    third = books.request()
    await ledger.hold(third)
    assert (await ledger.settle(with_output(third))).outcome == "expired", "nor in a later transaction"
    assert len(outputs(books)) == 1
    books.assert_sound()


async def test_a_hold_that_expired_with_its_gateway_gets_no_output(books: Books) -> None:
    lease(books)
    ledger, request = Ledger(books.database, "gw_1", clock=lambda _connection: NOW), books.request()
    await ledger.hold(request)
    books.database.write_sync(lambda connection: expiry.expire_dead(connection, "gw_auditor", LATER))
    late = await ledger.settle(with_output(request))
    assert late.outcome == "expired"
    assert outputs(books) == []
    assert hold_row(books, request).lost_tokens == 7
    books.assert_sound()


async def test_a_refused_settlement_records_no_output(books: Books) -> None:
    lease(books)
    ledger, request = Ledger(books.database, "gw_1"), books.request(most=5)
    await ledger.hold(request)
    with pytest.raises(AssertionError, match="more completion tokens"):
        await ledger.settle(with_output(request, tokens=7))
    assert outputs(books) == []
    await ledger.void(request.request_id, "test")
    books.assert_sound()


async def test_an_output_of_a_line_without_a_hold_needs_the_lease_too(books: Books) -> None:
    lease(books, epoch=3)
    made = [("req_a", LineOutput(BATCH, 1, 3, b"a", is_error=True)), ("req_b", LineOutput(BATCH, 2, 2, b"b"))]

    def record() -> list[bool]:
        return books.database.write_sync(lambda connection: record_unheld(connection, made, NOW))

    assert record() == [True, False]
    assert record() == [False, False], "the line has an output already"
    [row] = outputs(books)
    assert (row.line, row.request_id, bool(row.is_error), row.created_at) == (1, "req_a", True, NOW)


async def test_two_gateways_claim_one_lease_once(books: Books) -> None:
    lease(books)
    assert [claim(books, 1), claim(books, 1)] == [2, None]
    with pytest.raises(LeaseLost):
        books.database.write_sync(lambda connection: lock_lease(connection, BATCH, 1))
    books.database.write_sync(lambda connection: lock_lease(connection, BATCH, 2))
    with pytest.raises(LeaseLost):
        books.database.write_sync(lambda connection: lock_lease(connection, "batch_unknown", 1))


async def test_a_line_never_settles_through_the_journal(postgres_books: Books, tmp_path: Any) -> None:
    """While the database takes no writes the settlement waits; then it is in the database, with its output."""
    books = postgres_books
    lease(books)
    ledger, request = Ledger(books.database, "gw_1"), books.request()
    settler = Settler(ledger, tmp_path, "gw_1", bytes_max=2**20, disk_free_min_bytes=0, wait_s=0.05)
    await settler.start()
    await ledger.hold(request)
    with beginning_with(books.database, CANNOT_SERVE[0]):
        waiting = asyncio.create_task(settler.settle_unjournaled(with_output(request)))
        with pytest.raises(LedgerUnavailable):
            await ledger.settle(with_output(request))
        assert not waiting.done()
        assert settler.bytes_used == 0
    assert (await waiting).outcome == "settled"
    assert len(outputs(books)) == 1
    await ledger.close()
    await settler.close()
    assert paths(tmp_path) == []
    books.assert_sound()
