"""Whether the database has every table and column that this version uses. A database of a newer version passes: it has
more of them (docs/contributors/schema.md)."""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata
from gateway.tables import restores  # the import adds the gateway's tables to the metadata

NAMED_MAX = 3  # missing names that a message has


class SchemaOutdated(Exception):
    """The database lacks tables or columns of this version."""


class RestoreUnfinished(SchemaOutdated):
    """A restore from a backup has begun, and its erasures and journals are not replayed yet."""


def missing_names(connection: sa.Connection, wanted: sa.MetaData = metadata) -> list[str]:
    """The tables, and the columns as table.column, that the database lacks."""
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    found = {
        (table, column["name"]) for (_, table), columns in inspector.get_multi_columns().items() for column in columns
    }
    missing = []
    for name, table in sorted(wanted.tables.items()):
        if name not in tables:
            missing.append(name)
        else:
            missing += [f"{name}.{column.name}" for column in table.columns if (name, column.name) not in found]
    return missing


def check_schema(connection: sa.Connection) -> None:
    """Raises SchemaOutdated, RestoreUnfinished."""
    if not (missing := missing_names(connection)):
        unfinished = sa.select(restores.c.archive).where(restores.c.finished_at.is_(None)).limit(1)
        if (archive := connection.execute(unfinished).scalar_one_or_none()) is not None:
            raise RestoreUnfinished(
                f"the restore of {archive} into this database has not finished; run `laneway restore --replace` again"
            )
        return
    named = ", ".join(missing[:NAMED_MAX]) + (f" and {more} more" if (more := len(missing) - NAMED_MAX) > 0 else "")
    raise SchemaOutdated(f"the database lacks {named}: it is of an older version; run `laneway db upgrade` first")
