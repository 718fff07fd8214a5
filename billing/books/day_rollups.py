"""Roll-ups by UTC day: a report over months reads a row for each key and day instead of a row for each key and hour.

Usage rows are folded after the hours have them, with a cursor of their own: a gateway of a version without these
roll-ups leaves rows behind, and the next gateway of this version folds them. Reports read rows after the cursor from
the usage rows. All moments are microseconds UTC.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import rollups
from billing.books.rollups import FOLD_MAX, FoldResult
from billing.clock import DAY, Clock, database_now
from billing.day_tables import day_cursor, usage_days

_usage = tables.usage


class DayCursor(msgspec.Struct, frozen=True):
    """A row of day_cursor."""

    id: int
    sequence: int
    folded_at: int


def read_day_cursor(connection: sa.Connection) -> DayCursor:
    return DayCursor(*connection.execute(sa.select(day_cursor).where(day_cursor.c.id == 1)).one())


def fold_days(connection: sa.Connection, *, limit: int = FOLD_MAX, clock: Clock = database_now) -> FoldResult:
    """Add the usage rows after the cursor that the hours have, about `limit` of them, to their days. Needs a writing
    transaction."""
    cursor = DayCursor(*connection.execute(sa.select(day_cursor).where(day_cursor.c.id == 1).with_for_update()).one())
    newest = rollups.read_cursor(connection).sequence
    if newest <= cursor.sequence:
        return FoldResult(cursor.sequence, cursor.sequence, False)
    upto = min(newest, cursor.sequence + limit)
    statement = _fold_statement(connection.dialect.name)
    connection.execute(statement, {"after": cursor.sequence, "upto": upto})
    values = {"sequence": upto, "folded_at": clock(connection)}
    connection.execute(sa.update(day_cursor).where(day_cursor.c.id == 1).values(values))
    return FoldResult(cursor.sequence, upto, upto < newest)


@functools.cache
def _fold_statement(dialect: str) -> sa.Executable:
    """Add the sums of rollups.FOLDED to the days."""
    return rollups.sums_insert(dialect, usage_days, *_day_sums(rollups.FOLDED))


def day() -> sa.ColumnElement[int]:
    return _usage.c.finished_at - _usage.c.finished_at % sa.literal_column(str(DAY), sa.BigInteger)


def _day_sums(batch: sa.ColumnElement[bool]) -> tuple[sa.Select[Any], dict[str, sa.ColumnElement[Any]]]:
    key: dict[str, sa.ColumnElement[Any]] = {
        **{name: _usage.c[name] for name in rollups.OWN},
        "adapter": sa.func.coalesce(_usage.c.adapter, rollups.NOTHING),
        "project_id": sa.func.coalesce(_usage.c.project_id, rollups.NOTHING),
        "day": day(),
        "price_version_id": _usage.c.price_version_id,
        "currency": _usage.c.currency,
    }
    columns = key | rollups.usage_sums() | rollups.sequences()
    return sa.select(*columns.values()).where(batch).group_by(*key.values()), columns
