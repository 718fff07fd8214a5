"""The proofs: each equality of the books is a query whose rows are its violations. Sound books give no row.

The sums are computed again from the rows; no counter is trusted. A proof reads one unchanging view, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS
from billing.books import periods, rollups
from billing.books.rollups import HOUR
from billing.clock import DAY, rfc3339

FINDINGS_MAX = 100  # of one proof
HOURS_AT_ONCE = 200  # in one statement: SQLite nests no deeper than 1000
BEGINNERS_MAX = 500  # tenants in their first month that a statement lists by id
# How far a gateway's clock (usage's finished_at) may be ahead of the database's clock (entries' recorded_at).
CLOCKS_APART = DAY

_usage = tables.usage
_entries = tables.entries
_holds = tables.holds
_hours = tables.usage_hours
_periods = tables.billing_periods
_corrections = tables.corrections
_invoices = tables.invoices
_lines = tables.invoice_lines
_files = tables.export_invoices
_unit = tables.unit_prices

_SUMMED = ("requests", "input_tokens", "cached_input_tokens", "output_tokens", "made_tokens", "cost_picos")


class Imbalance(msgspec.Struct, frozen=True):
    """Two amounts that should be equal: tokens, requests or picos, as `what` says. `where` names the row or group."""

    what: str
    where: str
    expected: int
    found: int


class Sums(msgspec.Struct, frozen=True):
    """Sums in one currency, owed by usage and corrections and entered in the ledger. `transactions`: of the former."""

    currency: str
    transactions: int
    owed_picos: int
    entered_picos: int


Amounts = dict[tuple[str, ...], int]
Statement = Any  # composed at run time: the types of its columns are unknown


def _select(*columns: Any) -> Statement:
    return sa.select(*columns)


def rolled_up(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """Usage in each period, up to the cursor = the roll-ups of that period, by model, adapter, tier and price."""
    folded = rollups.read_cursor(connection).sequence
    key = ("model", "tier", "price_version_id")
    sums = {name: column for name, column in rollups.sums().items() if name in _SUMMED}
    raw = _select(
        _periods.c.id.label("period_id"),
        *(_usage.c[name] for name in key),
        sa.func.coalesce(_usage.c.adapter, rollups.NOTHING).label("adapter"),
        *(column.label(name) for name, column in sums.items()),
    ).join(_periods, periods.usage_in_period())
    raw = _of(raw, month).where(_usage.c.sequence <= folded, *_readable(connection, month))
    raw = raw.group_by(_periods.c.id, *(_usage.c[name] for name in key), _usage.c.adapter)
    kept = _select(
        _hours.c.period_id,
        *(_hours.c[name] for name in key),
        _hours.c.adapter,
        *((-sa.func.sum(_hours.c[name])).label(name) for name in _SUMMED),
    ).join(_periods, _periods.c.id == _hours.c.period_id)
    kept = _of(kept, month).group_by(_hours.c.period_id, *(_hours.c[name] for name in key), _hours.c.adapter)
    return _differences(connection, raw, kept, ("period_id", *key, "adapter"), "usage less roll-ups")


def rolled_up_hours(connection: sa.Connection, first: int, last: int) -> list[Imbalance]:
    """As `rolled_up` by tenant, for the hours in which usage with first < sequence ≤ last finished."""
    batch = sa.and_(_usage.c.sequence > first, _usage.c.sequence <= last)
    hours = sorted(connection.execute(_select(rollups.hour()).where(batch).distinct()).scalars())
    found: list[Imbalance] = []
    for at in range(0, len(hours), HOURS_AT_ONCE):
        found += _in_hours(connection, hours[at : at + HOURS_AT_ONCE])
    return found[:FINDINGS_MAX]


def _in_hours(connection: sa.Connection, hours: Sequence[int]) -> list[Imbalance]:
    folded = rollups.read_cursor(connection).sequence
    within = sa.or_(*(_usage.c.finished_at.between(hour, hour + HOUR - 1) for hour in hours))
    sums = {name: column for name, column in rollups.sums().items() if name in _SUMMED}
    raw = (
        _select(
            _usage.c.tenant_id, rollups.hour().label("hour"), *(column.label(name) for name, column in sums.items())
        )
        .where(within, _usage.c.sequence <= folded)
        .group_by(_usage.c.tenant_id, rollups.hour())
    )
    kept = (
        _select(_hours.c.tenant_id, _hours.c.hour, *((-sa.func.sum(_hours.c[n])).label(n) for n in _SUMMED))
        .where(_hours.c.hour.in_(hours))
        .group_by(_hours.c.tenant_id, _hours.c.hour)
    )
    return _differences(connection, raw, kept, ("tenant_id", "hour"), "usage less roll-ups")


def settled(connection: sa.Connection, first: int, last: int) -> tuple[list[Imbalance], list[Sums]]:
    """For each usage row with first < sequence ≤ last: cost = tokens × prices = receivable = settled amount of the hold
    ≤ held amount; each meter's revenue = its tokens × price; the entries sum to 0, in the row's currency. Returns the
    violations, and the sums over all rows. One statement reads each row once; only wrong rows are read again."""
    rows = _settlements(sa.and_(_usage.c.sequence > first, _usage.c.sequence <= last))
    wrong = sa.case((_is_wrong(rows), 1), else_=0)
    sums = (sa.func.count().label("n"), _sum(rows.c.cost), _sum(rows.c.received), _sum(wrong).label("wrong"))
    of_all = connection.execute(_select(rows.c.currency, *sums).group_by(rows.c.currency)).all()
    if not any(row.wrong for row in of_all):
        return [], [Sums(row[0], *map(int, row[1:4])) for row in sorted(of_all)]
    found: list[Imbalance] = []
    for row in _some(connection, _select(rows).where(_is_wrong(rows))):
        found += _wrongs(row)
    return found, _sums_of_usage(connection, first, last)


def _settlements(batch: sa.ColumnElement[bool]) -> Any:
    """A row for each usage row in the batch: the amount due by meter, the sums of its entries, and its hold."""
    tokens = {name: column.label(name) for name, column in rollups.meters().items()}
    revenue = {m: sa.case((_entries.c.meter == m, _entries.c.amount_picos), else_=0) for m in METERS}
    booked = (
        _select(
            *(_usage.c[name] for name in ("request_id", "currency", "tier", "price_version_id")),
            _usage.c.cost_picos.label("cost"),
            *tokens.values(),
            sa.func.coalesce(_sum(_entries.c.amount_picos), 0).label("total"),
            sa.func.coalesce(_received(), 0).label("received"),
            *(sa.func.coalesce(_sum(column), 0).label(f"{m}_revenue") for m, column in revenue.items()),
            _sum(sa.case((_entries.c.currency != _usage.c.currency, 1), else_=0)).label("foreign"),
        )
        .outerjoin(_entries, _entries.c.transaction_id == _usage.c.request_id)
        .where(batch)
        .group_by(_usage.c.sequence)
        .subquery()
    )
    unit = _unit_prices()
    at_price = unit.c.version == booked.c.price_version_id, unit.c.tier == booked.c.tier
    due = (sa.func.coalesce(booked.c[f"{m}_tokens"] * unit.c[m], 0).label(f"{m}_due") for m in METERS)
    hold = (_holds.c[name] for name in ("state", "settled_picos", "hold_picos"))
    return (
        _select(booked, *due, *hold)
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
        row.c.state != "settled",
        row.c.settled_picos != row.c.cost,
        row.c.cost > row.c.hold_picos,
    )


def _wrongs(row: Any) -> list[Imbalance]:
    due = {m: int(getattr(row, f"{m}_due")) for m in METERS}
    pairs = [
        ("price × tokens", sum(due.values()), row.cost),
        ("receivable", row.cost, row.received),
        ("entries of one transaction", 0, row.total),
        *((f"revenue of {m}", -due[m], getattr(row, f"{m}_revenue")) for m in METERS),
        ("entries in another currency", 0, row.foreign),
    ]
    found = [Imbalance(what, row.request_id, int(due), int(there)) for what, due, there in pairs if due != there]
    if row.state != "settled" or row.settled_picos != row.cost or row.cost > row.hold_picos:
        found.append(Imbalance("settled hold", row.request_id, row.cost, row.settled_picos or 0))
    return found


def _unit_prices() -> Any:
    """A row for each price version and tier, with a column for each meter."""
    prices = (_sum(sa.case((_unit.c.meter == m, _unit.c.picos), else_=0)).label(m) for m in METERS)
    version = _unit.c.price_version_id.label("version")
    return _select(version, _unit.c.tier, *prices).group_by(_unit.c.price_version_id, _unit.c.tier).subquery()


def entered(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """Usage and corrections between the bounds of each period = their entries, by tenant, currency, account and meter.
    First the entries recorded between the bounds, which needs no join. An ending that was in a journal at a bound is
    recorded in a later month than it ended in, so tenants that differ are compared again by transaction."""
    expected, found = _expected_entries(connection, month), _found_entries(connection, month)
    if month is not None:  # a tenant without a period of the month has no usage folded into it
        having = set(connection.execute(_select(_periods.c.tenant_id).where(_periods.c.month == month)).scalars())
        expected, found = ({k: v for k, v in sums.items() if k[0] in having} for sums in (expected, found))
    differ = _differing(expected, found)
    if differ and month is not None:
        tenant_ids = sorted({key[0] for key in differ})
        found = {key: picos for key, picos in found.items() if key[0] not in tenant_ids}
        found |= _entries_of_month(connection, month, tenant_ids)
        differ = _differing(expected, found)
    if not differ:
        return []
    single = _transactions(connection, sorted({key[0] for key in differ}))
    return single[:FINDINGS_MAX] or _listed("entries", expected, found)


def invoiced(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """Each closed period has its invoice, whose lines and head = the roll-ups by meter and the corrections."""
    closed = _of(_select(_periods.c.id, _invoices), month).where(_periods.c.state == "closed")
    heads = connection.execute(closed.outerjoin(_invoices, _invoices.c.period_id == _periods.c.id)).all()
    found = [Imbalance("invoices of a closed period", row[0], 1, 0) for row in heads if row.period_id is None]
    expected: Amounts = {}
    for name, table, column in (("usage", _hours, "cost_picos"), ("correction", _corrections, "picos")):
        sums = _select(table.c.period_id, _sum(table.c[column])).join(_periods, _periods.c.id == table.c.period_id)
        sums = _of(sums, month).where(_periods.c.state == "closed").group_by(table.c.period_id)
        expected |= {(period_id, name): int(picos) for period_id, picos in connection.execute(sums)}
    meters = [_sum(_hours.c[f"{meter}_tokens"]) for meter in METERS]
    tokens = _of(_select(_hours.c.period_id, *meters).join(_periods, _periods.c.id == _hours.c.period_id), month)
    for row in connection.execute(tokens.where(_periods.c.state == "closed").group_by(_hours.c.period_id)):
        expected |= {(row[0], meter): int(row[at]) for at, meter in enumerate(METERS, 1)}
    heads_say: Amounts = {}
    lines_say: Amounts = {key: value for key, value in expected.items() if value == 0}
    for row in heads:
        if row.period_id is not None:
            heads_say[row.period_id, "usage"] = row.usage_picos
            heads_say[row.period_id, "correction"] = row.correction_picos
    by_line = _select(_invoices.c.period_id, _lines.c.kind, _lines.c.meter, _sum(_lines.c.tokens), _sum(_lines.c.picos))
    by_line = by_line.join(_invoices, _invoices.c.id == _lines.c.invoice_id)
    by_line = _of(by_line.join(_periods, _periods.c.id == _invoices.c.period_id), month)
    for period_id, kind, meter, count, picos in connection.execute(
        by_line.group_by(_invoices.c.period_id, _lines.c.kind, _lines.c.meter)
    ):
        lines_say[period_id, kind] = lines_say.get((period_id, kind), 0) + int(picos)
        if kind == "usage":
            lines_say[period_id, meter] = int(count)
    picos_only = {key: value for key, value in expected.items() if key[1] in ("usage", "correction")}
    found += _listed("invoice", picos_only, heads_say)
    return (found + _listed("invoice lines", expected, lines_say))[:FINDINGS_MAX]


def exported(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """The sum of a finished export's rows for an invoice = that invoice's total."""
    done = tables.exports.c.state == "done"
    query = _select(_files.c.export_id, _files.c.invoice_id, _invoices.c.total_picos, _files.c.picos)
    query = query.join(tables.exports, tables.exports.c.id == _files.c.export_id)
    query = query.join(_invoices, _invoices.c.id == _files.c.invoice_id)
    query = _of(query.join(_periods, _periods.c.id == _invoices.c.period_id), month)
    differ = query.where(done, _files.c.picos != _invoices.c.total_picos).limit(FINDINGS_MAX)
    return [
        Imbalance("export", f"{export_id} of {invoice_id}", int(owed), int(picos))
        for export_id, invoice_id, owed, picos in connection.execute(differ)
    ]


def corrected(connection: sa.Connection, since: int = 0) -> list[Imbalance]:
    """Each correction made at `since` or later = its receivable, and its entries sum to 0."""
    received = sa.func.coalesce(_received(), 0)
    total = sa.func.coalesce(sa.func.sum(_entries.c.amount_picos), 0)
    query = (
        _select(_corrections.c.id, _corrections.c.picos, received)
        .outerjoin(_entries, _entries.c.transaction_id == _corrections.c.id)
        .where(_corrections.c.created_at >= since)
        .group_by(_corrections.c.id, _corrections.c.picos)
        .having(sa.or_(received != _corrections.c.picos, total != 0))
    )
    return [Imbalance("correction's receivable", row[0], int(row[1]), int(row[2])) for row in _some(connection, query)]


def sums(connection: sa.Connection, month: str | None) -> list[Sums]:
    """Sums of a month, or of everything, by currency; usage by finished_at, entries by recorded_at."""
    of_usage = _select(_usage.c.currency, sa.func.count().label("n"), _sum(_usage.c.cost_picos).label("picos"))
    moved = _select(_corrections.c.currency, sa.func.count().label("n"), _sum(_corrections.c.picos).label("picos"))
    booked = _select(_entries.c.currency, sa.literal_column("0").label("n"), _received().label("picos"))
    if month is not None:
        of_usage = of_usage.join(_periods, _between(month, _usage.c.tenant_id, _usage.c.finished_at))
        moved = moved.join(_periods, _between(month, _corrections.c.tenant_id, _corrections.c.created_at))
        booked = booked.join(_periods, _between(month, _entries.c.tenant_id, _entries.c.recorded_at))
    return _beside(
        connection,
        [of_usage.group_by(_usage.c.currency), moved.group_by(_corrections.c.currency)],
        booked.group_by(_entries.c.currency),
    )


def _sums_of_usage(connection: sa.Connection, first: int, last: int) -> list[Sums]:
    """Sums of usage with first < sequence ≤ last, and of its entries."""
    batch = sa.and_(_usage.c.sequence > first, _usage.c.sequence <= last)
    owed = _select(_usage.c.currency, sa.func.count().label("n"), _sum(_usage.c.cost_picos).label("picos"))
    booked = _select(_entries.c.currency, sa.literal_column("0").label("n"), _received().label("picos"))
    booked = booked.join(_usage, _usage.c.request_id == _entries.c.transaction_id).where(batch)
    return _beside(connection, [owed.where(batch).group_by(_usage.c.currency)], booked.group_by(_entries.c.currency))


def _beside(connection: sa.Connection, owed: list[Statement], booked: Statement) -> list[Sums]:
    found: dict[str, list[int]] = {}
    for side, query in ((1, owed), (2, [booked])):
        for one in query:
            for currency, number, picos in connection.execute(one):
                row = found.setdefault(currency, [0, 0, 0])
                row[0] += number
                row[side] += int(picos)
    return [Sums(currency, *row) for currency, row in sorted(found.items())]


def overshot(connection: sa.Connection) -> list[str]:
    """Windows of hard budgets over their limit, and over the amount that a lowered limit excused."""
    windows, budgets = tables.budget_windows, tables.budgets
    taken = windows.c.held + windows.c.posted
    query = (
        _select(windows.c.budget_id, windows.c.window_start)
        .join(budgets, budgets.c.id == windows.c.budget_id)
        .where(budgets.c.kind == "hard", taken > budgets.c.limit_amount, taken > windows.c.excused)
    )
    return [f"{budget_id}@{rfc3339(start)}" for budget_id, start in _some(connection, query)]


def _differing(expected: Amounts, found: Amounts) -> set[tuple[str, ...]]:
    return {key for key in expected.keys() | found.keys() if expected.get(key, 0) != found.get(key, 0)}


def _bounds(connection: sa.Connection, month: str) -> tuple[int, int]:
    """The earliest start and the latest end of the tenants' periods of the month."""
    query = _select(sa.func.min(_periods.c.start_at), sa.func.max(_periods.c.end_at)).where(_periods.c.month == month)
    first, last = connection.execute(query).one()
    return (0, 0) if first is None else (int(first), int(last))


def _readable(connection: sa.Connection, month: str | None) -> list[sa.ColumnElement[bool]]:
    """Conditions that all tenants' usage rows of the month meet, so that few rows of other months are read: a row ended
    in the month, or was written after the month before was closed. A tenant's first month has all earlier rows too."""
    if month is None:
        return []
    first, last = _bounds(connection, month)
    of_month = _periods.c.month == month
    own = [_usage.c.finished_at >= first]
    after = _select(sa.func.min(_periods.c.late_after)).where(of_month, _periods.c.late_after > 0)
    if (late := connection.execute(after).scalar_one()) is not None:
        own.append(_usage.c.sequence > late)
    query = _select(_periods.c.tenant_id).where(of_month, _periods.c.late_after == 0)
    if beginners := list(connection.execute(query.limit(BEGINNERS_MAX + 1)).scalars()):
        if len(beginners) > BEGINNERS_MAX:
            return [_usage.c.finished_at < last]
        own.append(_usage.c.tenant_id.in_(beginners))
    return [_usage.c.finished_at < last, sa.or_(*own)]


def _of(query: Statement, month: str | None) -> Statement:
    return query if month is None else query.where(_periods.c.month == month)


def _sum(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.sum(column)


def _received() -> sa.ColumnElement[Any]:
    return _sum(sa.case((_entries.c.account == "receivable", _entries.c.amount_picos), else_=0))


def _some(connection: sa.Connection, query: Statement) -> Sequence[Any]:
    return connection.execute(query.limit(FINDINGS_MAX)).all()


def _differences(
    connection: sa.Connection, raw: Statement, kept: Statement, key: Iterable[str], what: str
) -> list[Imbalance]:
    """Groups whose sums are not 0; `kept` has the roll-ups' sums, negated."""
    both = sa.union_all(raw, kept).subquery()
    keys = [both.c[name] for name in key]
    sums = {name: _sum(both.c[name]) for name in _SUMMED}
    query = _select(*keys, *(column.label(name) for name, column in sums.items())).group_by(*keys)
    query = query.having(sa.or_(*(column != 0 for column in sums.values())))
    found = []
    for row in _some(connection, query):
        where = " ".join(str(value) for value in row[: len(keys)] if value not in (None, tables.NONE))
        differing = [(name, int(getattr(row, name))) for name in _SUMMED if getattr(row, name)]
        found += [Imbalance(f"{what}: {name}", where, 0, difference) for name, difference in differing]
    return found


def _listed(what: str, expected: Amounts, found: Amounts) -> list[Imbalance]:
    keys = sorted(_differing(expected, found))
    return [Imbalance(what, " ".join(key), expected.get(key, 0), found.get(key, 0)) for key in keys[:FINDINGS_MAX]]


def _between(month: str | None, tenant_id: sa.ColumnElement[str], moment: sa.ColumnElement[int]) -> Any:
    """Joins with the tenant's period of the month, if `moment` is between its bounds."""
    return sa.and_(
        _periods.c.tenant_id == tenant_id,
        _periods.c.month == month,
        moment >= _periods.c.start_at,
        moment < _periods.c.end_at,
    )


def _in_month(
    connection: sa.Connection,
    query: Statement,
    month: str | None,
    tenant_id: sa.ColumnElement[str],
    moment: sa.ColumnElement[int],
) -> Statement:
    """Rows whose moment is in their tenant's month. The earliest and latest bounds come first, so that an index finds
    the rows; if all tenants' bounds are equal, the join is left out, which halves the time over millions of rows."""
    if month is None:
        return query
    first, last = _bounds(connection, month)
    query = query.where(moment >= first, moment < last)
    bounds = _select(_periods.c.start_at, _periods.c.end_at).where(_periods.c.month == month).distinct()
    if len(connection.execute(bounds.limit(2)).all()) == 1:
        return query
    return query.join(_periods, _between(month, tenant_id, moment))


def _expected_entries(connection: sa.Connection, month: str | None) -> Amounts:
    tokens = rollups.meters()
    key = (_usage.c.tenant_id, _usage.c.currency, _usage.c.tier, _usage.c.price_version_id)
    grouped = _select(*key, *(_sum(column).label(name) for name, column in tokens.items()))
    grouped = _in_month(connection, grouped, month, _usage.c.tenant_id, _usage.c.finished_at)
    sums = grouped.group_by(*key).subquery()
    picos = sa.case(*((_unit.c.meter == m, sums.c[f"{m}_tokens"] * _unit.c.picos) for m in METERS), else_=0)
    query = (
        _select(sums.c.tenant_id, sums.c.currency, _unit.c.meter, _sum(picos))
        .join(_unit, sa.and_(_unit.c.price_version_id == sums.c.price_version_id, _unit.c.tier == sums.c.tier))
        .group_by(sums.c.tenant_id, sums.c.currency, _unit.c.meter)
    )
    moved = _select(_corrections.c.tenant_id, _corrections.c.currency, _corrections.c.meter, _sum(_corrections.c.picos))
    moved = _in_month(connection, moved, month, _corrections.c.tenant_id, _corrections.c.created_at)
    moved = moved.group_by(_corrections.c.tenant_id, _corrections.c.currency, _corrections.c.meter)
    expected: Amounts = {}
    for select in (query, moved):
        for tenant_id, currency, meter, amount in connection.execute(select):
            for account, name, sign in (("receivable", "", 1), ("revenue", meter or "", -1)):
                at = (tenant_id, currency, account, name)
                expected[at] = expected.get(at, 0) + sign * int(amount)
    return expected


def _found_entries(connection: sa.Connection, month: str | None) -> Amounts:
    key = (_entries.c.tenant_id, _entries.c.currency, _entries.c.account, _entries.c.meter)
    query = _select(*key, _sum(_entries.c.amount_picos))
    query = _in_month(connection, query, month, _entries.c.tenant_id, _entries.c.recorded_at)
    return _amounts(connection, query.group_by(*key))


def _entries_of_month(connection: sa.Connection, month: str, tenant_ids: Sequence[str]) -> Amounts:
    """Entries of these tenants: a request's by the month in which it ended, others by the month of recorded_at."""
    key = (_entries.c.tenant_id, _entries.c.currency, _entries.c.account, _entries.c.meter)
    moment = sa.func.coalesce(_usage.c.finished_at, _entries.c.recorded_at)
    query = (
        _select(*key, _sum(_entries.c.amount_picos))
        .outerjoin(_usage, _usage.c.request_id == _entries.c.transaction_id)
        .join(_periods, _between(month, _entries.c.tenant_id, moment))
        .where(
            _entries.c.tenant_id.in_(tenant_ids),
            _entries.c.recorded_at >= _bounds(connection, month)[0] - CLOCKS_APART,
        )
    )
    return _amounts(connection, query.group_by(*key))


def _amounts(connection: sa.Connection, query: Statement) -> Amounts:
    return {(row[0], row[1], row[2], row[3] or ""): int(row[4]) for row in connection.execute(query)}


def _transactions(connection: sa.Connection, tenant_ids: Sequence[str]) -> list[Imbalance]:
    """Requests and corrections of these tenants whose receivable differs, and entries that belong to neither."""
    of_usage = _select(_usage.c.request_id.label("id"), _usage.c.cost_picos.label("picos")).where(
        _usage.c.tenant_id.in_(tenant_ids)
    )
    of_corrections = _select(_corrections.c.id, _corrections.c.picos).where(_corrections.c.tenant_id.in_(tenant_ids))
    owed = sa.union_all(of_usage, of_corrections).subquery()
    booked = (
        _select(_entries.c.transaction_id, _received().label("received"), _sum(_entries.c.amount_picos).label("total"))
        .where(_entries.c.tenant_id.in_(tenant_ids))
        .group_by(_entries.c.transaction_id)
        .subquery()
    )
    picos, received = sa.func.coalesce(owed.c.picos, 0), sa.func.coalesce(booked.c.received, 0)
    query = (
        _select(sa.func.coalesce(owed.c.id, booked.c.transaction_id), picos, received)
        .select_from(owed.outerjoin(booked, booked.c.transaction_id == owed.c.id, full=True))
        .where(sa.or_(picos != received, sa.func.coalesce(booked.c.total, 0) != 0))
    )
    return [Imbalance("receivable", row[0], int(row[1]), int(row[2])) for row in _some(connection, query)]
