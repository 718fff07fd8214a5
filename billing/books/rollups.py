"""Roll-ups: sums of usage by hour and period. Usage rows are folded in the order of their sequence, each row once.

A row gets its sequence before its transaction commits, so a row may become visible after rows with higher sequences.
`complete_up_to` finds the sequence up to which no further row can appear, at no cost for settling transactions.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import periods
from billing.clock import SECOND, Clock, database_now

FOLD_MAX = 50_000  # usage rows in one transaction
HOUR = 3600 * SECOND
PATIENCE_S = 2.0  # wait for settlements in progress
POLL_S = 0.002
# The key columns of usage_hours that usage rows have, without nulls.
OWN = ("tenant_id", "key_id", "model", "tier")
COUNTED = ("made_tokens", "discarded_tokens", "preemptions", "swapped_tokens", "cost_picos", "device_s")

_usage = tables.usage
_recompute = tables.usage_recompute
_attempts = tables.usage_attempts
_hours = tables.usage_hours
_recompute_hours = tables.recompute_hours
_cursor = tables.rollup_cursor

# Usage rows of one fold. Its statements are built once, with these two parameters.
FOLDED = sa.and_(
    _usage.c.sequence > sa.bindparam("after", type_=sa.BigInteger),
    _usage.c.sequence <= sa.bindparam("upto", type_=sa.BigInteger),
)
# A literal, not a parameter: an expression in GROUP BY must be the same text as in the column list.
NOTHING: sa.ColumnElement[str] = sa.literal_column(f"'{tables.NONE}'", sa.String)
_LOCK = sa.select(_cursor).where(_cursor.c.id == 1).with_for_update()
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(_usage.c.sequence), 0))
# An INSERT locks the table in this mode from before it gets its sequence until its rows are visible.
_SETTLING = sa.text(
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' "
    "AND relation = CAST('usage' AS regclass) AND granted AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class RollupCursor(msgspec.Struct, frozen=True):
    """A row of rollup_cursor."""

    id: int
    sequence: int
    requests: int
    made_tokens: int
    folded_at: int


class FoldResult(msgspec.Struct, frozen=True):
    """Usage rows with sequence_from < sequence ≤ sequence_to are in the roll-ups now. `more`: rows above them exist."""

    sequence_from: int
    sequence_to: int
    more: bool


def read_cursor(connection: sa.Connection) -> RollupCursor:
    return RollupCursor(*connection.execute(sa.select(_cursor).where(_cursor.c.id == 1)).one())


def lock_cursor(connection: sa.Connection) -> RollupCursor:
    """Lock the cursor. Until this transaction ends, no other transaction folds usage, closes a period or makes a
    correction."""
    return RollupCursor(*connection.execute(_LOCK).one())


def complete_up_to(connection: sa.Connection, patience_s: float = PATIENCE_S) -> int | None:
    """The highest sequence up to which the next statement of this transaction sees all rows, present and future; None
    if a settlement in progress takes longer than `patience_s`. On PostgreSQL the transaction must be READ COMMITTED,
    and sessions must not cache the column's sequence (CACHE 1, the default)."""
    newest = int(connection.execute(_NEWEST).scalar_one())
    if connection.dialect.name == "sqlite":
        return newest  # no other transaction writes now
    settling = set(connection.execute(_SETTLING).scalars())
    deadline = time.monotonic() + patience_s
    while settling:
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)
        settling.intersection_update(connection.execute(_SETTLING).scalars())
    return newest


def fold_usage(connection: sa.Connection, *, limit: int = FOLD_MAX, clock: Clock = database_now) -> FoldResult:
    """Add the usage rows after the cursor, about `limit` of them, to their periods and the roll-ups. Needs a writing
    transaction."""
    cursor = lock_cursor(connection)
    newest = complete_up_to(connection)
    if newest is None or newest <= cursor.sequence:
        return FoldResult(cursor.sequence, cursor.sequence, False)
    upto = min(newest, cursor.sequence + limit)
    batch = {"after": cursor.sequence, "upto": upto}
    now = clock(connection)
    spans = {tenant_id: (int(first), int(last)) for tenant_id, first, last in connection.execute(_SPANS, batch)}
    periods.ensure(connection, spans, now)
    requests, made = connection.execute(_COUNTS, batch).one()
    before = int(connection.execute(_REQUESTS, batch).scalar_one())
    for statement in _fold_statements(connection.dialect.name):
        connection.execute(statement, batch)
    added = int(connection.execute(_REQUESTS, batch).scalar_one()) - before
    assert added == requests, f"{requests} usage rows up to {upto}, of which {added} have a period"
    connection.execute(
        sa.update(_cursor)
        .where(_cursor.c.id == 1)
        .values(
            sequence=upto,
            requests=cursor.requests + int(requests),
            made_tokens=cursor.made_tokens + int(made),
            folded_at=now,
        )
    )
    return FoldResult(cursor.sequence, upto, upto < newest)


def fold_all(connection: sa.Connection, clock: Clock = database_now) -> int | None:
    """Fold all rows in this transaction; return the cursor's sequence, or None if settlements in progress take longer
    than PATIENCE_S."""
    newest = complete_up_to(connection)
    if newest is None:
        return None
    folded = fold_usage(connection, clock=clock)
    while folded.sequence_to < newest:
        upto = folded.sequence_to
        folded = fold_usage(connection, clock=clock)
        if folded.sequence_to == upto:
            return None
    return folded.sequence_to


def _requests_in() -> sa.Select[Any]:
    """The requests that the roll-ups have for the tenants and hours of FOLDED."""
    touched = sa.select(_usage.c.tenant_id, hour().label("hour")).where(FOLDED).distinct().subquery()
    joined = _hours.join(touched, sa.and_(_hours.c.tenant_id == touched.c.tenant_id, _hours.c.hour == touched.c.hour))
    return sa.select(sa.func.coalesce(sa.func.sum(_hours.c.requests), 0)).select_from(joined)


@functools.cache
def _fold_statements(dialect: str) -> tuple[sa.Executable, ...]:
    """Add the sums of FOLDED to the roll-ups."""
    sums_of = {
        _hours: _sums(FOLDED),
        tables.tag_hours: _tag_sums(FOLDED),
        _recompute_hours: _recompute_sums(FOLDED),
        tables.engine_ledger: _engine_sums(FOLDED),
    }
    return tuple(sums_insert(dialect, table, rows, columns) for table, (rows, columns) in sums_of.items())


def hour() -> sa.ColumnElement[int]:
    return _usage.c.finished_at - _usage.c.finished_at % sa.literal_column(str(HOUR), sa.BigInteger)


def _key(open_periods: sa.Subquery) -> dict[str, sa.ColumnElement[Any]]:
    """The key columns that both roll-ups have."""
    return {
        **{name: _usage.c[name] for name in OWN},
        "adapter": sa.func.coalesce(_usage.c.adapter, NOTHING),
        "project_id": sa.func.coalesce(_usage.c.project_id, NOTHING),
        "hour": hour(),
        "period_id": open_periods.c.id,
    }


def _is_counted_in(open_periods: sa.Subquery) -> sa.ColumnElement[bool]:
    moment = _usage.c.finished_at
    return sa.and_(
        open_periods.c.tenant_id == _usage.c.tenant_id, moment >= open_periods.c.from_at, moment < open_periods.c.end_at
    )


def meters() -> dict[str, sa.ColumnElement[int]]:
    """Tokens of a usage row by meter, named as in usage_hours."""
    embeds = _usage.c.operation == sa.literal_column("'embedding'", sa.String)
    return {
        "input_tokens": sa.case((embeds, 0), else_=_usage.c.prompt_tokens - _usage.c.cached_tokens),
        "cached_input_tokens": _usage.c.cached_tokens.expression,
        "output_tokens": _usage.c.completion_tokens.expression,
        "embedding_tokens": sa.case((embeds, _usage.c.prompt_tokens), else_=0),
    }


def usage_sums() -> dict[str, sa.ColumnElement[Any]]:
    """The sums of usage rows, by their columns in usage_hours."""
    columns = meters() | {name: _usage.c[name].expression for name in COUNTED}
    return {"requests": sa.func.count()} | {name: sa.func.sum(column) for name, column in columns.items()}


def sequences() -> dict[str, sa.ColumnElement[int]]:
    """The lowest and the highest sequence of usage rows, by their columns in usage_hours."""
    return {"sequence_min": sa.func.min(_usage.c.sequence), "sequence_max": sa.func.max(_usage.c.sequence)}


def _sums(batch: sa.ColumnElement[bool]) -> tuple[sa.Select[Any], dict[str, sa.ColumnElement[Any]]]:
    open_periods = periods.open_period_starts()
    key = _key(open_periods) | {"price_version_id": _usage.c.price_version_id, "currency": _usage.c.currency}
    columns = key | usage_sums() | sequences()
    source = _usage.join(open_periods, _is_counted_in(open_periods))
    return sa.select(*columns.values()).select_from(source).where(batch).group_by(*key.values()), columns


def _tag_sums(batch: sa.ColumnElement[bool]) -> tuple[sa.Select[Any], dict[str, sa.ColumnElement[Any]]]:
    """The sums of the rows with tags, by tag set too."""
    rows, columns = _sums(batch)
    tag_set_id = _usage.c.tag_set_id
    rows = rows.add_columns(tag_set_id).where(tag_set_id.is_not(None)).group_by(tag_set_id)
    return rows, columns | {"tag_set_id": tag_set_id.expression}


def _recompute_sums(batch: sa.ColumnElement[bool]) -> tuple[sa.Select[Any], dict[str, sa.ColumnElement[Any]]]:
    open_periods = periods.open_period_starts()
    key = _key(open_periods) | {"caused_by": _recompute.c.tier.expression}
    columns = key | {name: sa.func.sum(_recompute.c[name]) for name in ("tokens", "device_s")}
    source = _usage.join(open_periods, _is_counted_in(open_periods)).join(
        _recompute, _recompute.c.request_id == _usage.c.request_id
    )
    return sa.select(*columns.values()).select_from(source).where(batch).group_by(*key.values()), columns


def made_by_epoch(batch: sa.ColumnElement[bool]) -> sa.Select[tuple[str, int]]:
    """The made tokens of usage rows by the epoch of the engine that made them, of the rows that name it."""
    return _engine_sums(batch)[0]


def _engine_sums(batch: sa.ColumnElement[bool]) -> tuple[sa.Select[Any], dict[str, sa.ColumnElement[Any]]]:
    newest, others = _usage.c.engine_epoch, _attempts.c.epoch
    joined = _usage.join(_attempts, _attempts.c.request_id == _usage.c.request_id)
    made = sa.union_all(
        sa.select(newest.label("epoch"), _usage.c.made_tokens.label("made_tokens")).where(batch),
        sa.select(others, _attempts.c.made_tokens).select_from(joined).where(batch),
        sa.select(newest, -_attempts.c.made_tokens).select_from(joined).where(batch),
    ).subquery()
    columns: dict[str, sa.ColumnElement[Any]] = {
        "epoch": made.c.epoch,
        "made_tokens": sa.func.sum(made.c.made_tokens),
    }
    return sa.select(*columns.values()).where(made.c.epoch.is_not(None)).group_by(made.c.epoch), columns


def add_sums(
    connection: sa.Connection, table: sa.Table, rows: sa.Select[Any], columns: dict[str, sa.ColumnElement[Any]]
) -> None:
    """Insert the rows, or add their sums to existing rows."""
    connection.execute(sums_insert(connection.dialect.name, table, rows, columns))


def sums_insert(
    dialect: str, table: sa.Table, rows: sa.Select[Any], columns: dict[str, sa.ColumnElement[Any]]
) -> sa.Executable:
    """The statement of `add_sums`. Building it takes milliseconds, for which SQLite's only writer would wait."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    into = insert(table).from_select(list(columns), rows)
    key = [column.name for column in table.primary_key]
    new = into.excluded
    added: dict[str, Any] = {
        name: table.c[name] + new[name]
        for name in columns
        if name not in key and name not in ("currency", "sequence_min", "sequence_max")
    }
    if "sequence_max" in columns:  # batches are in order, so sequence_min of an existing row does not change
        added["sequence_max"] = new["sequence_max"]
    return into.on_conflict_do_update(index_elements=key, set_=added)


_SPANS = (
    sa.select(_usage.c.tenant_id, sa.func.min(_usage.c.finished_at), sa.func.max(_usage.c.finished_at))
    .where(FOLDED)
    .group_by(_usage.c.tenant_id)
)
_COUNTS = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_usage.c.made_tokens), 0)).where(FOLDED)
_REQUESTS = _requests_in()
