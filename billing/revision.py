"""The revision, a number that every administrative write raises, and a log of the rows that each write concerns.

A gateway compares the number with the last number that it read, and drops the part of its caches that the log names.
The number changes in the transaction that makes the change, so neither is visible without the other. The log has the
last LOG_ROWS_MAX writes. A number without its row (a write by a process of an older version, or a pruned row) concerns
everything."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing import tables

LOG_ROWS_MAX = 1000  # gateways read the log several times a second
PRUNE_EVERY = 100  # writes
# Kinds of writes that may change prices, currencies or time zones. Of the logged writes, only these raise
# `price_token`.
OF_PRICES = ("everything", "prices", "tenants")

_log = tables.revision_log


class Change(msgspec.Struct, frozen=True):
    """The row that a write concerns: its kind, and the tenant that it belongs to; None: the operator."""

    kind: str
    tenant_id: str | None = None


EVERYTHING = Change("everything")

_row = tables.revision
_LOCK = sa.select(_row.c.number).where(_row.c.id == 1).with_for_update()
_BUMP = (
    sa.update(_row)
    .where(_row.c.id == 1)
    .values(number=_row.c.number + 1, unpriced=_row.c.unpriced + sa.bindparam("unpriced_by"))
    .returning(_row.c.number)
)
_READ = sa.select(_row.c.number).where(_row.c.id == 1)
# The ledger reloads its prices when this token grows. It grows with each write that may change prices, and with every
# write of a process of an older version, which logs no change.
price_token = sa.select(_row.c.number - _row.c.unpriced).where(_row.c.id == 1).scalar_subquery()


def lock(connection: sa.Connection) -> None:
    """Lock the row until the transaction ends, which serialises administrative writes. The number does not change."""
    connection.execute(_LOCK).scalar_one()


def bump(connection: sa.Connection, change: Change = EVERYTHING) -> None:
    """Raise the number and log the change. Locks the row, as `lock` does."""
    unpriced_by = 0 if change.kind in OF_PRICES else 1
    number = connection.execute(_BUMP, {"unpriced_by": unpriced_by}).scalar_one()
    connection.execute(sa.insert(_log).values(number=number, kind=change.kind, tenant_id=change.tenant_id))
    if number % PRUNE_EVERY == 0:
        connection.execute(sa.delete(_log).where(_log.c.number <= number - LOG_ROWS_MAX))


def read_revision(connection: sa.Connection) -> int:
    return int(connection.execute(_READ).scalar_one())


def changes_since(connection: sa.Connection, seen: int | None, number: int) -> Sequence[Change] | None:
    """The distinct changes of the writes after `seen` up to `number`. None: everything may have changed."""
    if seen is None or not 0 <= number - seen <= LOG_ROWS_MAX:
        return None
    logged = sa.select(_log.c.kind, _log.c.tenant_id).where(_log.c.number > seen, _log.c.number <= number)
    rows = connection.execute(logged).all()
    if len(rows) < number - seen:
        return None
    return list(dict.fromkeys(Change(kind, tenant_id) for kind, tenant_id in rows))
