"""Tokens that a caller can read before its request has ended: billed even if the gateway dies."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from billing import tables
from billing.clock import SECOND
from billing.ledger import expiry
from billing.ledger.checkpoints import Checkpoint, delete_ended, record_checkpoint, usage_so_far
from billing.ledger.ledger import Ledger
from billing.ledger.messages import HoldEnding
from support.billing.books import Books, settlement

NOW = 1_900_000_000 * SECOND
LATER = NOW + 3600 * SECOND


def record(books: Books, request_id: str, completion: int) -> bool:
    checkpoint = Checkpoint(request_id, 10, 4, completion)
    return books.database.write_sync(lambda connection: record_checkpoint(connection, checkpoint))


def end_dead(books: Books) -> list[str]:
    return books.database.write_sync(lambda connection: expiry.expire_dead(connection, "gw_auditor", LATER))


def hold_row(books: Books, request_id: str) -> Any:
    query = sa.select(tables.holds).where(tables.holds.c.request_id == request_id)
    return books.database.read_sync(lambda connection: connection.execute(query).one())


async def test_a_dead_gateways_hold_is_settled_with_its_checkpoint(books: Books) -> None:
    budget = books.budget(1_000)
    ledger = Ledger(books.database, "gw_dead", clock=lambda _connection: NOW)
    read, unread = books.request(), books.request()
    for request in (read, unread):
        await ledger.hold(request)
    for completion in (3, 7):
        assert record(books, read.request_id, completion)
    assert sorted(end_dead(books)) == sorted([read.request_id, unread.request_id])
    assert hold_row(books, unread.request_id).state == "expired"
    row = hold_row(books, read.request_id)
    assert (row.state, row.ending) == ("settled", "gateway_dead")
    usage = books.database.read_sync(lambda c: c.execute(sa.select(tables.usage)).one())
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (10, 4, 7)
    assert (usage.made_tokens, usage.ending) == (7, "gateway_dead")
    assert row.settled_picos == usage.cost_picos > 0
    assert books.state(budget) == (17, 0)
    books.assert_sound(open_holds=0)
    assert not record(books, read.request_id, 9), "no more tokens may become readable"
    assert not record(books, unread.request_id, 9)


async def test_a_gateway_taken_for_dead_loses_what_the_checkpoint_lacks(books: Books) -> None:
    ledger = Ledger(books.database, "gw_slow", clock=lambda _connection: NOW)
    request = books.request()
    await ledger.hold(request)
    record(books, request.request_id, 3)
    end_dead(books)
    for _ in range(2):
        late = await ledger.settle(settlement(request, 8))
        assert late.outcome == "settled"
        row = hold_row(books, request.request_id)
        assert (row.lost_tokens, row.settled_picos) == (5, late.cost_picos)
    books.assert_sound(open_holds=0)


async def test_a_checkpoint_ends_with_its_hold(books: Books) -> None:
    ledger = Ledger(books.database, "gw_1", clock=lambda _connection: NOW)
    request = books.request()
    await ledger.hold(request)
    record(books, request.request_id, 3)
    assert books.database.write_sync(delete_ended) == 0
    request_id = request.request_id

    def so_far() -> Checkpoint | None:
        return books.database.read_sync(lambda connection: usage_so_far(connection, request_id))

    assert so_far() == Checkpoint(request_id, 10, 4, 3)
    assert isinstance(await ledger.settle(settlement(request, 8)), HoldEnding)
    assert so_far() == Checkpoint(request_id, 10, 0, 8), "what is billed"
    assert record(books, request_id, 9), "the last group may be stored after its settlement"
    assert books.database.write_sync(delete_ended) == 1
    assert books.database.write_sync(delete_ended) == 0
    assert not record(books, "req_unknown", 1)
