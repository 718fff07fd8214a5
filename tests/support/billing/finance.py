"""Moments, settled requests and closed months, short to ask for in tests of what finance uses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from billing.accounts.prices import PriceBook
from billing.books import day_rollups, invoices, rollups
from billing.books.invoices import Invoice
from billing.ledger.messages import Held, HoldRequest, Settlement
from billing.ledger.transaction import LedgerTransaction
from support.billing.books import Books, settlement


def at(text: str) -> int:
    """`2031-03-30T01:00` UTC as microseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def run_group(
    books: Books, now: int, holds: Sequence[HoldRequest] = (), endings: Sequence[Settlement] = ()
) -> list[Held]:
    """One transaction of the ledger at the moment `now`."""
    group = LedgerTransaction("gw_1", 1e9, lambda _connection: now, PriceBook())
    held, ended = books.database.write_sync(lambda connection: group.run(connection, holds, endings))
    for answer in (*held, *ended):
        assert not isinstance(answer, Exception), answer
    return held  # type: ignore[return-value]


def use(
    books: Books,
    now: int,
    *,
    prompt: int = 10,
    cached: int = 0,
    made: int = 5,
    held_at: int | None = None,
    engines: dict[str, int] | None = None,
    **names: str,
) -> HoldRequest:
    """A request that is held and settled at the moment `now`."""
    request = books.request(prompt=prompt, most=max(made, 1), **names)
    run_group(books, now if held_at is None else held_at, [request])
    run_group(books, now, endings=[settlement(request, made, prompt=prompt, cached=cached, engines=engines)])
    return request


def fold(books: Books, now: int) -> None:
    books.database.write_sync(lambda c: rollups.fold_all(c, lambda _connection: now))
    books.database.write_sync(day_rollups.fold_days)


def close(books: Books, month: str, now: int, tenant_id: str | None = None) -> Invoice:
    def change(connection: sa.Connection) -> Invoice:
        tenant = tenant_id or books.tenant.id
        return invoices.close(connection, tenant, month, actor="me", clock=lambda _connection: now)

    return books.database.write_sync(change)
