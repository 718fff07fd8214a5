"""One number that grows with every administrative write, so that gateways know when to drop what they remember.

It must be bumped inside the transaction that makes the change: then nobody sees one without the other.
"""

from __future__ import annotations

import sqlalchemy as sa

from billing import tables

_BUMP = sa.update(tables.revision).where(tables.revision.c.id == 1).values(number=tables.revision.c.number + 1)
_READ = sa.select(tables.revision.c.number).where(tables.revision.c.id == 1)


def bump(connection: sa.Connection) -> None:
    result = connection.execute(_BUMP)
    assert result.rowcount == 1, "the migrations make the one revision row"


def read(connection: sa.Connection) -> int:
    return int(connection.execute(_READ).scalar_one())
