"""The proof that the ledger's entries add up to usage and corrections, over a month or over all months."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS, all_unit_prices
from billing.books import rollups
from billing.clock import DAY
from billing.proofs.imbalances import FINDINGS_MAX, Imbalance
from billing.proofs.queries import (
    Amounts,
    Statement,
    differences,
    differing_keys,
    first_rows,
    in_month,
    in_period_of,
    month_bounds,
    received_picos,
    select,
    sum_of,
)

# Largest lead of a gateway's clock (usage's finished_at) over the database's clock (entries' recorded_at).
CLOCKS_APART = DAY

_usage = tables.usage
_entries = tables.entries
_periods = tables.billing_periods
_corrections = tables.corrections
_unit = all_unit_prices()


def entered(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """Usage and corrections between the bounds of each period = their entries, by tenant, currency, account and meter.
    Entries are first selected by recorded_at, which needs no join with usage. But the entries of an ending that was in
    a journal at the end of its month are recorded in the next month. So tenants whose sums differ are compared again,
    with entries selected by the moment of their request. The transactions of the remaining differences are then
    listed."""
    expected, found = _expected_entries(connection, month), _found_entries(connection, month)
    if month is not None:  # a tenant without a period of the month has no folded usage in it
        with_period = set(connection.execute(select(_periods.c.tenant_id).where(_periods.c.month == month)).scalars())
        expected, found = ({k: v for k, v in sums.items() if k[0] in with_period} for sums in (expected, found))
    differ = differing_keys(expected, found)
    if differ and month is not None:
        tenant_ids = sorted({key[0] for key in differ})
        found = {key: picos for key, picos in found.items() if key[0] not in tenant_ids}
        found |= _entries_of_month(connection, month, tenant_ids)
        differ = differing_keys(expected, found)
    if not differ:
        return []
    transactions = _transactions(connection, sorted({key[0] for key in differ}))
    return transactions[:FINDINGS_MAX] or differences("entries", expected, found)


def _expected_entries(connection: sa.Connection, month: str | None) -> Amounts:
    tokens = rollups.meters()
    key = (_usage.c.tenant_id, _usage.c.currency, _usage.c.tier, _usage.c.price_version_id)
    grouped = select(*key, *(sum_of(column).label(name) for name, column in tokens.items()))
    grouped = in_month(connection, grouped, month, _usage.c.tenant_id, _usage.c.finished_at)
    sums = grouped.group_by(*key).subquery()
    picos = sa.case(*((_unit.c.meter == m, sums.c[f"{m}_tokens"] * _unit.c.picos) for m in METERS), else_=0)
    query = (
        select(sums.c.tenant_id, sums.c.currency, _unit.c.meter, sum_of(picos))
        .join(_unit, sa.and_(_unit.c.price_version_id == sums.c.price_version_id, _unit.c.tier == sums.c.tier))
        .group_by(sums.c.tenant_id, sums.c.currency, _unit.c.meter)
    )
    moved = select(
        _corrections.c.tenant_id, _corrections.c.currency, _corrections.c.meter, sum_of(_corrections.c.picos)
    )
    moved = in_month(connection, moved, month, _corrections.c.tenant_id, _corrections.c.created_at)
    moved = moved.group_by(_corrections.c.tenant_id, _corrections.c.currency, _corrections.c.meter)
    expected: Amounts = {}
    for due in (query, moved):
        for tenant_id, currency, meter, amount in connection.execute(due):
            for account, name, sign in (("receivable", "", 1), ("revenue", meter or "", -1)):
                at = (tenant_id, currency, account, name)
                expected[at] = expected.get(at, 0) + sign * int(amount)
    return expected


def _found_entries(connection: sa.Connection, month: str | None) -> Amounts:
    key = (_entries.c.tenant_id, _entries.c.currency, _entries.c.account, _entries.c.meter)
    query = select(*key, sum_of(_entries.c.amount_picos))
    query = in_month(connection, query, month, _entries.c.tenant_id, _entries.c.recorded_at)
    return _amounts(connection, query.group_by(*key))


def _entries_of_month(connection: sa.Connection, month: str, tenant_ids: Sequence[str]) -> Amounts:
    """Sums of these tenants' entries of the month: entries of a request by the moment when it ended, others by
    recorded_at."""
    key = (_entries.c.tenant_id, _entries.c.currency, _entries.c.account, _entries.c.meter)
    moment = sa.func.coalesce(_usage.c.finished_at, _entries.c.recorded_at)
    query = (
        select(*key, sum_of(_entries.c.amount_picos))
        .outerjoin(_usage, _usage.c.request_id == _entries.c.transaction_id)
        .join(_periods, in_period_of(month, _entries.c.tenant_id, moment))
        .where(
            _entries.c.tenant_id.in_(tenant_ids),
            _entries.c.recorded_at >= month_bounds(connection, month)[0] - CLOCKS_APART,
        )
    )
    return _amounts(connection, query.group_by(*key))


def _amounts(connection: sa.Connection, query: Statement) -> Amounts:
    return {(row[0], row[1], row[2], row[3] or ""): int(row[4]) for row in connection.execute(query)}


def _transactions(connection: sa.Connection, tenant_ids: Sequence[str]) -> list[Imbalance]:
    """Transactions of these tenants whose receivable differs from the usage row or correction, including entries
    without either, or whose entries within these tenants do not sum to 0."""
    of_usage = select(_usage.c.request_id.label("id"), _usage.c.cost_picos.label("picos")).where(
        _usage.c.tenant_id.in_(tenant_ids)
    )
    of_corrections = select(_corrections.c.id, _corrections.c.picos).where(_corrections.c.tenant_id.in_(tenant_ids))
    owed = sa.union_all(of_usage, of_corrections).subquery()
    booked = (
        select(
            _entries.c.transaction_id,
            received_picos().label("received"),
            sum_of(_entries.c.amount_picos).label("total"),
        )
        .where(_entries.c.tenant_id.in_(tenant_ids))
        .group_by(_entries.c.transaction_id)
        .subquery()
    )
    picos = sa.func.coalesce(owed.c.picos, 0)
    received, total = sa.func.coalesce(booked.c.received, 0), sa.func.coalesce(booked.c.total, 0)
    query = (
        select(sa.func.coalesce(owed.c.id, booked.c.transaction_id), picos, received, total)
        .select_from(owed.outerjoin(booked, booked.c.transaction_id == owed.c.id, full=True))
        .where(sa.or_(picos != received, total != 0))
    )
    found = []
    for transaction_id, owed_picos, received_sum, entries_sum in first_rows(connection, query):
        if owed_picos != received_sum:
            found.append(Imbalance("receivable", transaction_id, int(owed_picos), int(received_sum)))
        else:
            found.append(Imbalance("these tenants' entries of one transaction", transaction_id, 0, int(entries_sum)))
    return found
