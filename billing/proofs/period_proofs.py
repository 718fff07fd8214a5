"""Proofs over a month or over all months: usage = roll-ups = invoices = exports.

The rows are summed again; a proof trusts no counter. It reads one unchanging view and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS
from billing.books import day_rollups, periods, rollups
from billing.books.rollups import HOUR
from billing.clock import DAY
from billing.day_tables import usage_days
from billing.proofs.imbalances import FINDINGS_MAX, Imbalance
from billing.proofs.queries import Amounts, Statement, differences, first_rows, month_bounds, of_month, select, sum_of

HOURS_AT_ONCE = 200  # in one statement: SQLite nests no deeper than 1000
BEGINNERS_MAX = 500  # tenants in their first period that a statement lists by id

_usage = tables.usage
_hours = tables.usage_hours
_days = usage_days
_periods = tables.billing_periods
_corrections = tables.corrections
_invoices = tables.invoices
_lines = tables.invoice_lines
_files = tables.export_invoices

_SUMMED = (
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "embedding_tokens",
    "made_tokens",
    "cost_picos",
)


def rolled_up(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """The usage rows of each period, up to the cursor = the period's roll-ups, by model, adapter, tier and price."""
    folded = rollups.read_cursor(connection).sequence
    key = ("model", "tier", "price_version_id")
    sums = {name: column for name, column in rollups.usage_sums().items() if name in _SUMMED}
    raw = select(
        _periods.c.id.label("period_id"),
        *(_usage.c[name] for name in key),
        sa.func.coalesce(_usage.c.adapter, rollups.NOTHING).label("adapter"),
        *(column.label(name) for name, column in sums.items()),
    ).join(_periods, periods.usage_in_period())
    raw = of_month(raw, month).where(_usage.c.sequence <= folded, *_readable(connection, month))
    raw = raw.group_by(_periods.c.id, *(_usage.c[name] for name in key), _usage.c.adapter)
    kept = select(
        _hours.c.period_id,
        *(_hours.c[name] for name in key),
        _hours.c.adapter,
        *((-sa.func.sum(_hours.c[name])).label(name) for name in _SUMMED),
    ).join(_periods, _periods.c.id == _hours.c.period_id)
    kept = of_month(kept, month).group_by(_hours.c.period_id, *(_hours.c[name] for name in key), _hours.c.adapter)
    return _roll_up_imbalances(connection, raw, kept, ("period_id", *key, "adapter"), "usage less roll-ups")


def rolled_up_hours(connection: sa.Connection, first: int, last: int) -> list[Imbalance]:
    """Usage = roll-ups by tenant and hour, for the hours in which usage rows with first < sequence ≤ last finished."""
    batch = sa.and_(_usage.c.sequence > first, _usage.c.sequence <= last)
    hours = sorted(connection.execute(select(rollups.hour()).where(batch).distinct()).scalars())
    found: list[Imbalance] = []
    for at in range(0, len(hours), HOURS_AT_ONCE):
        found += _in_hours(connection, hours[at : at + HOURS_AT_ONCE])
    return found[:FINDINGS_MAX]


def _in_hours(connection: sa.Connection, hours: Sequence[int]) -> list[Imbalance]:
    folded = rollups.read_cursor(connection).sequence
    within = sa.or_(*(_usage.c.finished_at.between(hour, hour + HOUR - 1) for hour in hours))
    sums = {name: column for name, column in rollups.usage_sums().items() if name in _SUMMED}
    raw = (
        select(_usage.c.tenant_id, rollups.hour().label("hour"), *(column.label(name) for name, column in sums.items()))
        .where(within, _usage.c.sequence <= folded)
        .group_by(_usage.c.tenant_id, rollups.hour())
    )
    kept = (
        select(_hours.c.tenant_id, _hours.c.hour, *((-sa.func.sum(_hours.c[n])).label(n) for n in _SUMMED))
        .where(_hours.c.hour.in_(hours))
        .group_by(_hours.c.tenant_id, _hours.c.hour)
    )
    return _roll_up_imbalances(connection, raw, kept, ("tenant_id", "hour"), "usage less roll-ups")


def rolled_up_days(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """Usage = roll-ups by tenant and UTC day, of the days that are in the month by every tenant's clock."""
    folded = day_rollups.read_day_cursor(connection).sequence
    sums = {name: column for name, column in rollups.usage_sums().items() if name in _SUMMED}
    raw = select(_usage.c.tenant_id, day_rollups.day().label("day"), *(each.label(name) for name, each in sums.items()))
    raw = raw.where(_usage.c.sequence <= folded)
    kept = select(_days.c.tenant_id, _days.c.day, *((-sa.func.sum(_days.c[name])).label(name) for name in _SUMMED))
    if month is not None:
        first, last = month_bounds(connection, month)
        first, last = first + -first % DAY, last - last % DAY
        raw = raw.where(_usage.c.finished_at >= first, _usage.c.finished_at < last)
        kept = kept.where(_days.c.day >= first, _days.c.day < last)
    raw = raw.group_by(_usage.c.tenant_id, day_rollups.day())
    kept = kept.group_by(_days.c.tenant_id, _days.c.day)
    return _roll_up_imbalances(connection, raw, kept, ("tenant_id", "day"), "usage less roll-ups by day")


def invoiced(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """Each closed period has an invoice; the invoice's totals = the roll-ups and the corrections; its lines = the
    roll-ups by meter and the corrections."""
    closed = of_month(select(_periods.c.id, _invoices), month).where(_periods.c.state == "closed")
    invoice_rows = connection.execute(closed.outerjoin(_invoices, _invoices.c.period_id == _periods.c.id)).all()
    found = [Imbalance("invoices of a closed period", row[0], 1, 0) for row in invoice_rows if row.period_id is None]
    expected: Amounts = {}
    for name, table, column in (("usage", _hours, "cost_picos"), ("correction", _corrections, "picos")):
        sums = select(table.c.period_id, sum_of(table.c[column])).join(_periods, _periods.c.id == table.c.period_id)
        sums = of_month(sums, month).where(_periods.c.state == "closed").group_by(table.c.period_id)
        expected |= {(period_id, name): int(picos) for period_id, picos in connection.execute(sums)}
    meters = [sum_of(_hours.c[f"{meter}_tokens"]) for meter in METERS]
    tokens = of_month(select(_hours.c.period_id, *meters).join(_periods, _periods.c.id == _hours.c.period_id), month)
    for row in connection.execute(tokens.where(_periods.c.state == "closed").group_by(_hours.c.period_id)):
        expected |= {(row[0], meter): int(row[at]) for at, meter in enumerate(METERS, 1)}
    totals_found: Amounts = {}
    lines_found: Amounts = {key: value for key, value in expected.items() if value == 0}
    for row in invoice_rows:
        if row.period_id is not None:
            totals_found[row.period_id, "usage"] = row.usage_picos
            totals_found[row.period_id, "correction"] = row.correction_picos
    by_line = select(
        _invoices.c.period_id, _lines.c.kind, _lines.c.meter, sum_of(_lines.c.tokens), sum_of(_lines.c.picos)
    )
    by_line = by_line.join(_invoices, _invoices.c.id == _lines.c.invoice_id)
    by_line = of_month(by_line.join(_periods, _periods.c.id == _invoices.c.period_id), month)
    for period_id, kind, meter, count, picos in connection.execute(
        by_line.group_by(_invoices.c.period_id, _lines.c.kind, _lines.c.meter)
    ):
        lines_found[period_id, kind] = lines_found.get((period_id, kind), 0) + int(picos)
        if kind == "usage":
            lines_found[period_id, meter] = int(count)
    picos_only = {key: value for key, value in expected.items() if key[1] in ("usage", "correction")}
    found += differences("invoice", picos_only, totals_found)
    return (found + differences("invoice lines", expected, lines_found))[:FINDINGS_MAX]


def exported(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """The sum of a finished export's rows for an invoice = that invoice's total."""
    done = tables.exports.c.state == "done"
    query = select(_files.c.export_id, _files.c.invoice_id, _invoices.c.total_picos, _files.c.picos)
    query = query.join(tables.exports, tables.exports.c.id == _files.c.export_id)
    query = query.join(_invoices, _invoices.c.id == _files.c.invoice_id)
    query = of_month(query.join(_periods, _periods.c.id == _invoices.c.period_id), month)
    differ = query.where(done, _files.c.picos != _invoices.c.total_picos).limit(FINDINGS_MAX)
    return [
        Imbalance("export", f"{export_id} of {invoice_id}", int(owed), int(picos))
        for export_id, invoice_id, owed, picos in connection.execute(differ)
    ]


def _readable(connection: sa.Connection, month: str | None) -> list[sa.ColumnElement[bool]]:
    """Conditions that all usage rows of the month meet, of all tenants, so that few rows of other months are read: a
    row ended in the month, or was written after the previous month was closed, or is of a tenant whose first period
    this is."""
    if month is None:
        return []
    first, last = month_bounds(connection, month)
    of_month = _periods.c.month == month
    own = [_usage.c.finished_at >= first]
    after = select(sa.func.min(_periods.c.late_after)).where(of_month, _periods.c.late_after > 0)
    if (late := connection.execute(after).scalar_one()) is not None:
        own.append(_usage.c.sequence > late)
    query = select(_periods.c.tenant_id).where(of_month, _periods.c.late_after == 0)
    if beginners := list(connection.execute(query.limit(BEGINNERS_MAX + 1)).scalars()):
        if len(beginners) > BEGINNERS_MAX:
            return [_usage.c.finished_at < last]
        own.append(_usage.c.tenant_id.in_(beginners))
    return [_usage.c.finished_at < last, sa.or_(*own)]


def _roll_up_imbalances(
    connection: sa.Connection, raw: Statement, kept: Statement, key: Iterable[str], what: str
) -> list[Imbalance]:
    """An imbalance for each sum of `raw` + `kept` that is not 0, by `key`. `kept` has the roll-ups' sums, negated. The
    amounts are 0 and usage − roll-ups."""
    both = sa.union_all(raw, kept).subquery()
    keys = [both.c[name] for name in key]
    sums = {name: sum_of(both.c[name]) for name in _SUMMED}
    query = select(*keys, *(column.label(name) for name, column in sums.items())).group_by(*keys)
    query = query.having(sa.or_(*(column != 0 for column in sums.values())))
    found = []
    for row in first_rows(connection, query):
        where = " ".join(str(value) for value in row[: len(keys)] if value not in (None, tables.NONE))
        differing = [(name, int(getattr(row, name))) for name in _SUMMED if getattr(row, name)]
        found += [Imbalance(f"{what}: {name}", where, 0, difference) for name, difference in differing]
    return found
