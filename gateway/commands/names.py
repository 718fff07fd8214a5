"""Names in place of ids, for the tables that commands print. JSON has the ids."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from billing import tables
from gateway.tables import adapters, keys


def names_of(connection: sa.Connection, ids: Iterable[str | None]) -> dict[str | None, str]:
    """The slug of each tenant, and the name of each project, key and adapter, by id. An id without a name maps
    to itself."""
    wanted = sorted({one for one in ids if one is not None})
    found: dict[str | None, str] = {one: one for one in wanted}
    for table, name in (
        (tables.tenants, tables.tenants.c.slug),
        (tables.projects, tables.projects.c.name),
        (keys, keys.c.name),
        (adapters, adapters.c.name),
    ):
        query = sa.select(table.c.id, name).where(table.c.id.in_(wanted))
        found |= {row[0]: row[1] for row in connection.execute(query)}
    return found
