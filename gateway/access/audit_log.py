"""The audit log: who changed what, from what to what, written in the transaction of the change itself.

It never holds a secret: what is given as `before` and `after` is what may be shown. Triggers keep its lines unchanged.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import clock
from billing.lists import ListColumns, ListPage, ListQuery, page
from gateway.tables import audit_log

LIST_MAX = 1000


_SORTED = ListColumns(
    sorts={"at": audit_log.c.id},  # in the order they were written
    unique=audit_log.c.id,
    searched=(
        audit_log.c.action,
        audit_log.c.object_id,
        audit_log.c.actor,
        sa.func.coalesce(audit_log.c.request_id, ""),
        sa.func.coalesce(audit_log.c.tenant_id, ""),
    ),
)


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One administrative write. `at` in microseconds UTC; `tenant_id` None: of something that is the operator's."""

    id: int
    at: int
    actor: str
    action: str
    object_id: str
    tenant_id: str | None
    request_id: str | None
    before: Any
    after: Any


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Every given value must match; `start` ≤ at < `end`, in microseconds UTC."""

    tenant_id: str | None = None
    actor: str | None = None
    action: str | None = None
    object_id: str | None = None
    start: int | None = None
    end: int | None = None


def host_actor() -> str:
    """Who runs a command on this host."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:  # a user id without a name, as in a container
        return f"cli:{os.getuid()}"


def record(
    connection: sa.Connection,
    *,
    actor: str,
    action: str,
    object_id: str,
    tenant_id: str | None = None,
    before: Any = None,
    after: Any = None,
    request_id: str | None = None,
) -> None:
    """Add one line. `actor` is a key id or `host_actor`; `before` and `after` are structs or plain JSON data."""
    connection.execute(
        sa.insert(audit_log).values(
            at=clock.database_now(connection),
            actor=actor,
            action=action,
            object_id=object_id,
            tenant_id=tenant_id,
            request_id=request_id,
            before=msgspec.to_builtins(before),
            after=msgspec.to_builtins(after),
        )
    )


def listing(
    connection: sa.Connection, which: AuditFilter, *, before: int | None = None, limit: int = 100
) -> list[AuditLine]:
    """The newest first; a page begins below the line with the id `before`."""
    query = _matching(which).order_by(audit_log.c.id.desc()).limit(min(limit, LIST_MAX))
    if before is not None:
        query = query.where(audit_log.c.id < before)
    return [AuditLine(**row._mapping) for row in connection.execute(query)]


def found(connection: sa.Connection, which: AuditFilter, asked: ListQuery) -> ListPage[AuditLine]:
    """Raises InvalidValue."""
    return page(
        connection, _matching(which), _SORTED, asked, lambda row: AuditLine(**row._mapping), lambda line: line.id
    )


def _matching(which: AuditFilter) -> sa.Select[Any]:
    query = sa.select(audit_log)
    for name in ("tenant_id", "actor", "action", "object_id"):
        if getattr(which, name) is not None:
            query = query.where(audit_log.c[name] == getattr(which, name))
    if which.start is not None:
        query = query.where(audit_log.c.at >= which.start)
    if which.end is not None:
        query = query.where(audit_log.c.at < which.end)
    return query
