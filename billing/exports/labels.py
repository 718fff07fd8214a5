"""Names in exports. All exports of a closed period use the names of its first export, even after a rename.

Billing does not know the names of keys and adapters: the caller of `store_names` adds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sqlalchemy as sa

from billing import tables
from billing.books.periods import Period
from billing.clock import Clock, database_now

PROVIDER = "provider"  # stands for the id of the invoice issuer
KEEP_MAX = 1000  # rows in one statement

_names = tables.export_names
_periods = tables.billing_periods


def named_ids(connection: sa.Connection, period: Period) -> list[str]:
    """Ids of the keys, adapters and projects in the period's rows."""
    hours, corrections = tables.usage_hours, tables.corrections
    found: set[str] = set()
    for name in ("key_id", "adapter", "project_id"):
        for table in (hours, corrections):
            query = sa.select(table.c[name]).where(table.c.period_id == period.id).distinct()
            found.update(connection.execute(query).scalars())
    return sorted(found - {tables.NONE, None})


def current_names(connection: sa.Connection, tenant_id: str) -> dict[str, str]:
    """The present names of the tenant and its projects."""
    tenants, projects = tables.tenants, tables.projects
    queries = (
        sa.select(tenants.c.id, tenants.c.name).where(tenants.c.id == tenant_id),
        sa.select(projects.c.id, projects.c.name).where(projects.c.tenant_id == tenant_id),
    )
    return {subject: name for query in queries for subject, name in connection.execute(query)}


def store_names(
    connection: sa.Connection, period: Period, names: Mapping[str, str], clock: Clock = database_now
) -> None:
    """Store the period's names, by subject id. Names that were stored after the period was closed do not change; names
    that were stored before are replaced."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    # Read and locked, since the period may have been closed after the caller read it.
    row = sa.select(_periods.c.closed_at).where(_periods.c.id == period.id).with_for_update(read=True)
    closed_at = connection.execute(row).scalar_one()
    now = clock(connection)
    into = insert(_names)
    statement = into.on_conflict_do_update(
        index_elements=[_names.c.period_id, _names.c.subject_id],
        set_={"name": into.excluded.name, "kept_at": now},
        where=None if closed_at is None else _names.c.kept_at < closed_at,
    )
    for part in _parts(names):
        rows = [
            {"period_id": period.id, "subject_id": subject, "name": name, "kept_at": now}
            for subject, name in part.items()
        ]
        connection.execute(statement, rows)


def _parts(names: Mapping[str, str]) -> Iterator[dict[str, str]]:
    ids = sorted(names)
    for at in range(0, len(ids), KEEP_MAX):
        yield {subject: names[subject] for subject in ids[at : at + KEEP_MAX]}


def stored_names(connection: sa.Connection, period: Period) -> dict[str, str]:
    """The period's stored names by subject id."""
    query = sa.select(_names.c.subject_id, _names.c.name).where(_names.c.period_id == period.id)
    return {row.subject_id: row.name for row in connection.execute(query)}
