"""Names of the rows that ids stand for, for tables and lists."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books.reports import LINE_ITEM, LINE_ITEM_SEPARATOR, Report
from gateway.tables import adapters, keys

_NAMED = (
    (tables.tenants, tables.tenants.c.slug, tables.tenants.c.id),
    (tables.projects, tables.projects.c.name, tables.projects.c.tenant_id),
    (keys, keys.c.name, keys.c.tenant_id),
    (adapters, adapters.c.name, adapters.c.tenant_id),
)


def known_names(connection: sa.Connection, ids: Iterable[str | None], seen_by: str | None = None) -> dict[str, str]:
    """The slug of each tenant, and the name of each project, key and adapter, by id; other ids are omitted. `seen_by`:
    only rows of this tenant are named."""
    wanted = sorted({one for one in ids if one is not None})
    found: dict[str, str] = {}
    for table, name, tenant_id in _NAMED:
        query = sa.select(table.c.id, name).where(table.c.id.in_(wanted))
        if seen_by is not None:
            query = query.where(tenant_id == seen_by)
        found |= {row[0]: row[1] for row in connection.execute(query)}
    return found


def name_line_items(connection: sa.Connection, report: Report) -> Report:
    """The report with names in place of the ids of adapters in its line items (`ada_…, input`)."""
    ids = {str(item).partition(LINE_ITEM_SEPARATOR)[0] for row in report.rows if (item := row.groups.get(LINE_ITEM))}
    names = known_names(connection, ids)
    rows = []
    for row in report.rows:
        called, comma, meter = (row.groups.get(LINE_ITEM) or "").partition(LINE_ITEM_SEPARATOR)
        groups = row.groups | {LINE_ITEM: names[called] + comma + meter} if called in names else row.groups
        rows.append(msgspec.structs.replace(row, groups=groups))
    return msgspec.structs.replace(report, rows=rows)


def names_of(connection: sa.Connection, ids: Iterable[str | None]) -> dict[str | None, str]:
    """As `known_names`; an id without a name maps to itself. For the tables that commands print: JSON has the ids."""
    found: dict[str | None, str] = {one: one for one in ids if one is not None}
    found.update(known_names(connection, list(found)))
    return found
