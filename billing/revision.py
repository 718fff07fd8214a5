"""One number that grows with every administrative write, and a log of what each write concerns.

A gateway compares the number with the last one it read, and drops the part of its memory that the log names. The number
moves inside the transaction that makes the change: nobody sees one without the other. The log keeps the last KEPT
writes. A number without its row (a write by a process of an older version, or one that was pruned) concerns everything.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing import tables

KEPT = 1000  # rows of the log; a gateway looks several times a second
PRUNE_EVERY = 100  # writes
# Kinds of writes after which prices, currencies or time zones may be others. `price_token` moves with them alone.
OF_PRICES = ("everything", "prices", "tenants")

_log = tables.revision_log


class Change(msgspec.Struct, frozen=True):
    """What one write concerns: the kind of row, and whose it is. Without a tenant: the operator's own."""

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
# For the ledger: it moves with writes that may concern prices, and with those of processes that know of no log.
price_token = sa.select(_row.c.number - _row.c.unpriced).where(_row.c.id == 1).scalar_subquery()


def lock(connection: sa.Connection) -> None:
    """Take the row's lock until the transaction ends: administrative writes run one after another. Nothing moves."""
    connection.execute(_LOCK).scalar_one()


def bump(connection: sa.Connection, change: Change = EVERYTHING) -> None:
    """Move the number, and log what the write concerns. Takes the lock too."""
    unpriced_by = 0 if change.kind in OF_PRICES else 1
    number = connection.execute(_BUMP, {"unpriced_by": unpriced_by}).scalar_one()
    connection.execute(sa.insert(_log).values(number=number, kind=change.kind, tenant_id=change.tenant_id))
    if number % PRUNE_EVERY == 0:
        connection.execute(sa.delete(_log).where(_log.c.number <= number - KEPT))


def read(connection: sa.Connection) -> int:
    return int(connection.execute(_READ).scalar_one())


def since(connection: sa.Connection, seen: int | None, number: int) -> Sequence[Change] | None:
    """What the writes after `seen` up to `number` concern, each Change once. None: everything."""
    if seen is None or not 0 <= number - seen <= KEPT:
        return None
    logged = sa.select(_log.c.kind, _log.c.tenant_id).where(_log.c.number > seen, _log.c.number <= number)
    rows = connection.execute(logged).all()
    if len(rows) < number - seen:
        return None
    return list(dict.fromkeys(Change(kind, tenant_id) for kind, tenant_id in rows))
