"""The proofs of single transactions: a request's usage row, its entries and its hold; a correction and its entries.

`balanced`, `charged_as_held` and `recorded` read all rows. `settled` reads a batch of new usage rows, and proves with
the same conditions and in the same statement as the prices that they are balanced and charged as held.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS, all_unit_prices
from billing.books import rollups
from billing.proofs.imbalances import Imbalance
from billing.proofs.queries import Statement, first_rows, received_picos, select, sum_of
from billing.proofs.sums import Sums, sums_of_usage

_usage = tables.usage
_entries = tables.entries
_holds = tables.holds
_corrections = tables.corrections
_unit = all_unit_prices()

_HOLD = (_holds.c.state, _holds.c.settled_picos, _holds.c.hold_picos)


def balanced(connection: sa.Connection, transaction_ids: Statement | None = None) -> list[Imbalance]:
    """The entries of each transaction sum to 0. `transaction_ids`: a query for the ids of the transactions to check;
    None: all."""
    total = sum_of(_entries.c.amount_picos)
    query = select(_entries.c.transaction_id, total).group_by(_entries.c.transaction_id).having(total != 0)
    if transaction_ids is not None:
        query = query.where(_entries.c.transaction_id.in_(transaction_ids))
    return [_unbalanced(transaction_id, picos) for transaction_id, picos in first_rows(connection, query)]


def charged_as_held(connection: sa.Connection) -> list[Imbalance]:
    """Each usage row's hold is settled, and cost = settled amount of the hold ≤ held amount."""
    query = select(_usage.c.request_id, _usage.c.cost_picos.label("cost"), *_HOLD)
    query = query.join(_holds, _holds.c.request_id == _usage.c.request_id)
    rows = first_rows(connection, query.where(_differs_from_hold(_usage.c.cost_picos, _holds.c)))
    return [_hold_imbalance(row) for row in rows]


def recorded(connection: sa.Connection) -> list[Imbalance]:
    """Each settled hold has a usage row."""
    query = select(_holds.c.request_id).outerjoin(_usage, _usage.c.request_id == _holds.c.request_id)
    missing = query.where(_holds.c.state == "settled", _usage.c.request_id.is_(None))
    return [Imbalance("usage rows of a settled hold", row.request_id, 1, 0) for row in first_rows(connection, missing)]


def settled(connection: sa.Connection, first: int, last: int) -> tuple[list[Imbalance], list[Sums]]:
    """For each usage row with first < sequence ≤ last: cost = tokens × prices = receivable; each meter's revenue = its
    tokens × price; the entries are in the row's currency and `balanced`; the row is `charged_as_held`. Returns the
    violations, and the sums over all rows. One statement reads each row once; only rows with a violation are read
    again."""
    rows = _settlements(sa.and_(_usage.c.sequence > first, _usage.c.sequence <= last))
    wrong = sa.case((_is_wrong(rows), 1), else_=0)
    amounts = (sa.func.count().label("n"), sum_of(rows.c.cost), sum_of(rows.c.received), sum_of(wrong).label("wrong"))
    of_all = connection.execute(select(rows.c.currency, *amounts).group_by(rows.c.currency)).all()
    if not any(row.wrong for row in of_all):
        return [], [Sums(row[0], *map(int, row[1:4])) for row in sorted(of_all)]
    found: list[Imbalance] = []
    for row in first_rows(connection, select(rows).where(_is_wrong(rows))):
        found += _imbalances_of(row)
    return found, sums_of_usage(connection, first, last)


def _settlements(batch: sa.ColumnElement[bool]) -> Any:
    """A row for each usage row in the batch: the amount due by meter, the sums of its entries, and its hold."""
    tokens = {name: column.label(name) for name, column in rollups.meters().items()}
    revenue = {m: sa.case((_entries.c.meter == m, _entries.c.amount_picos), else_=0) for m in METERS}
    booked = (
        select(
            *(_usage.c[name] for name in ("request_id", "currency", "tier", "price_version_id")),
            _usage.c.cost_picos.label("cost"),
            *tokens.values(),
            sa.func.coalesce(sum_of(_entries.c.amount_picos), 0).label("total"),
            sa.func.coalesce(received_picos(), 0).label("received"),
            *(sa.func.coalesce(sum_of(column), 0).label(f"{m}_revenue") for m, column in revenue.items()),
            sum_of(sa.case((_entries.c.currency != _usage.c.currency, 1), else_=0)).label("foreign"),
        )
        .outerjoin(_entries, _entries.c.transaction_id == _usage.c.request_id)
        .where(batch)
        .group_by(_usage.c.sequence)
        .subquery()
    )
    unit = _unit_prices()
    at_price = unit.c.version == booked.c.price_version_id, unit.c.tier == booked.c.tier
    due = (sa.func.coalesce(booked.c[f"{m}_tokens"] * unit.c[m], 0).label(f"{m}_due") for m in METERS)
    return (
        select(booked, *due, *_HOLD)
        .outerjoin(unit, sa.and_(*at_price))
        .outerjoin(_holds, _holds.c.request_id == booked.c.request_id)
        .subquery()
    )


def _is_wrong(row: Any) -> sa.ColumnElement[bool]:
    """The cost is compared with the sum of the meters' revenues, each of which is compared with tokens × price."""
    revenue: sa.ColumnElement[Any] = sum((row.c[f"{m}_revenue"] for m in METERS), row.c.cost)
    return sa.or_(
        revenue != 0,
        row.c.received != row.c.cost,
        row.c.total != 0,
        *(row.c[f"{m}_revenue"] != -row.c[f"{m}_due"] for m in METERS),
        row.c.foreign != 0,
        row.c.state.is_(None),
        _differs_from_hold(row.c.cost, row.c),
    )


def _imbalances_of(row: Any) -> list[Imbalance]:
    due = {m: int(getattr(row, f"{m}_due")) for m in METERS}
    pairs = [
        ("price × tokens", sum(due.values()), row.cost),
        ("receivable", row.cost, row.received),
        *((f"revenue of {m}", -due[m], getattr(row, f"{m}_revenue")) for m in METERS),
        ("entries in another currency", 0, row.foreign),
    ]
    found = [Imbalance(what, row.request_id, int(due), int(there)) for what, due, there in pairs if due != there]
    if row.total:
        found.append(_unbalanced(row.request_id, row.total))
    if row.state != "settled" or row.settled_picos != row.cost or row.cost > row.hold_picos:
        found.append(_hold_imbalance(row))
    return found


def _unbalanced(transaction_id: str, total: Any) -> Imbalance:
    return Imbalance("entries of one transaction", transaction_id, 0, int(total))


def _differs_from_hold(cost: sa.ColumnElement[int], hold: Any) -> sa.ColumnElement[bool]:
    """`hold`: the columns of _HOLD, of one hold."""
    return sa.or_(hold.state != "settled", hold.settled_picos != cost, cost > hold.hold_picos)


def _hold_imbalance(row: Any) -> Imbalance:
    """`row`: `request_id`, `cost` and the columns of _HOLD, which are None without a hold, of a row that differs."""
    if row.state != "settled":
        return Imbalance("settled holds of a usage row", row.request_id, 1, 0)
    if row.settled_picos != row.cost:
        return Imbalance("settled amount of a hold", row.request_id, row.cost, row.settled_picos)
    return Imbalance("cost up to the held amount", row.request_id, row.hold_picos, row.cost)


def _unit_prices() -> Any:
    """A row for each price version and tier, with a column for each meter."""
    prices = (sum_of(sa.case((_unit.c.meter == m, _unit.c.picos), else_=0)).label(m) for m in METERS)
    version = _unit.c.price_version_id.label("version")
    return select(version, _unit.c.tier, *prices).group_by(_unit.c.price_version_id, _unit.c.tier).subquery()


def corrected(connection: sa.Connection, since: int = 0) -> list[Imbalance]:
    """Each correction made at `since` or later = its receivable, and its entries are `balanced`."""
    received = sa.func.coalesce(received_picos(), 0)
    query = (
        select(_corrections.c.id, _corrections.c.picos, received)
        .outerjoin(_entries, _entries.c.transaction_id == _corrections.c.id)
        .where(_corrections.c.created_at >= since)
        .group_by(_corrections.c.id, _corrections.c.picos)
        .having(received != _corrections.c.picos)
    )
    rows = first_rows(connection, query)
    found = [Imbalance("correction's receivable", row[0], int(row[1]), int(row[2])) for row in rows]
    return found + balanced(connection, select(_corrections.c.id).where(_corrections.c.created_at >= since))
