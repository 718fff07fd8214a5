"""Sums of usage and corrections, and of their ledger entries, by currency."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.proofs.queries import Statement, in_period_of, received_picos, select, sum_of

_usage = tables.usage
_entries = tables.entries
_periods = tables.billing_periods
_corrections = tables.corrections


class Sums(msgspec.Struct, frozen=True):
    """Sums in one currency. `owed_picos`: of `transactions` usage rows and corrections. `entered_picos`: of receivable
    entries."""

    currency: str
    transactions: int
    owed_picos: int
    entered_picos: int


def sum_transactions(connection: sa.Connection, month: str | None) -> list[Sums]:
    """Sums by currency of a month, or (None) of all months. A usage row counts in the month of finished_at, a
    correction in that of created_at, an entry in that of recorded_at."""
    of_usage = select(_usage.c.currency, sa.func.count().label("n"), sum_of(_usage.c.cost_picos).label("picos"))
    moved = select(_corrections.c.currency, sa.func.count().label("n"), sum_of(_corrections.c.picos).label("picos"))
    booked = select(_entries.c.currency, sa.literal_column("0").label("n"), received_picos().label("picos"))
    if month is not None:
        of_usage = of_usage.join(_periods, in_period_of(month, _usage.c.tenant_id, _usage.c.finished_at))
        moved = moved.join(_periods, in_period_of(month, _corrections.c.tenant_id, _corrections.c.created_at))
        booked = booked.join(_periods, in_period_of(month, _entries.c.tenant_id, _entries.c.recorded_at))
    return _by_currency(
        connection,
        [of_usage.group_by(_usage.c.currency), moved.group_by(_corrections.c.currency)],
        booked.group_by(_entries.c.currency),
    )


def sums_of_usage(connection: sa.Connection, first: int, last: int) -> list[Sums]:
    """Sums of usage with first < sequence ≤ last, and of its entries."""
    batch = sa.and_(_usage.c.sequence > first, _usage.c.sequence <= last)
    owed = select(_usage.c.currency, sa.func.count().label("n"), sum_of(_usage.c.cost_picos).label("picos"))
    booked = select(_entries.c.currency, sa.literal_column("0").label("n"), received_picos().label("picos"))
    booked = booked.join(_usage, _usage.c.request_id == _entries.c.transaction_id).where(batch)
    return _by_currency(
        connection, [owed.where(batch).group_by(_usage.c.currency)], booked.group_by(_entries.c.currency)
    )


def _by_currency(connection: sa.Connection, owed: list[Statement], booked: Statement) -> list[Sums]:
    found: dict[str, list[int]] = {}
    for side, queries in ((1, owed), (2, [booked])):
        for query in queries:
            for currency, number, picos in connection.execute(query):
                row = found.setdefault(currency, [0, 0, 0])
                row[0] += number
                row[side] += int(picos)
    return [Sums(currency, *row) for currency, row in sorted(found.items())]
