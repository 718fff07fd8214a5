"""Parts that the proofs' queries share: the periods of a month, sums of entries, and groups whose amounts differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from billing import tables
from billing.proofs.imbalances import FINDINGS_MAX, Imbalance

_entries = tables.entries
_periods = tables.billing_periods

Amounts = dict[tuple[str, ...], int]
Statement = Any  # composed at run time: the types of its columns are unknown


def select(*columns: Any) -> Statement:
    return sa.select(*columns)


def sum_of(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.sum(column)


def received_picos() -> sa.ColumnElement[Any]:
    """The sum of the entries of the account `receivable`."""
    return sum_of(sa.case((_entries.c.account == "receivable", _entries.c.amount_picos), else_=0))


def first_rows(connection: sa.Connection, query: Statement) -> Sequence[Any]:
    """At most FINDINGS_MAX rows."""
    return connection.execute(query.limit(FINDINGS_MAX)).all()


def of_month(query: Statement, month: str | None) -> Statement:
    return query if month is None else query.where(_periods.c.month == month)


def month_bounds(connection: sa.Connection, month: str) -> tuple[int, int]:
    """The earliest start and the latest end of the tenants' periods of the month."""
    query = select(sa.func.min(_periods.c.start_at), sa.func.max(_periods.c.end_at)).where(_periods.c.month == month)
    first, last = connection.execute(query).one()
    return (0, 0) if first is None else (int(first), int(last))


def in_period_of(month: str | None, tenant_id: sa.ColumnElement[str], moment: sa.ColumnElement[int]) -> Any:
    """Join condition: the tenant's period of the month contains `moment`."""
    return sa.and_(
        _periods.c.tenant_id == tenant_id,
        _periods.c.month == month,
        moment >= _periods.c.start_at,
        moment < _periods.c.end_at,
    )


def in_month(
    connection: sa.Connection,
    query: Statement,
    month: str | None,
    tenant_id: sa.ColumnElement[str],
    moment: sa.ColumnElement[int],
) -> Statement:
    """`query` for rows whose `moment` is in their tenant's period of the month; None: all rows. A condition with the
    earliest and the latest bound of all tenants lets an index find the rows. If all tenants have the same bounds, the
    join with the periods is omitted, which halves the time over millions of rows."""
    if month is None:
        return query
    first, last = month_bounds(connection, month)
    query = query.where(moment >= first, moment < last)
    bounds = select(_periods.c.start_at, _periods.c.end_at).where(_periods.c.month == month).distinct()
    if len(connection.execute(bounds.limit(2)).all()) == 1:
        return query
    return query.join(_periods, in_period_of(month, tenant_id, moment))


def differing_keys(expected: Amounts, found: Amounts) -> set[tuple[str, ...]]:
    """Keys with different amounts; a missing key has the amount 0."""
    return {key for key in expected.keys() | found.keys() if expected.get(key, 0) != found.get(key, 0)}


def differences(what: str, expected: Amounts, found: Amounts) -> list[Imbalance]:
    """An imbalance for each of the first FINDINGS_MAX differing keys."""
    keys = sorted(differing_keys(expected, found))
    return [Imbalance(what, " ".join(key), expected.get(key, 0), found.get(key, 0)) for key in keys[:FINDINGS_MAX]]
