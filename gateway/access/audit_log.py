"""The audit log: one line for each administrative write, with its actor and the object before and after, written in the
transaction of the change itself, and added to the hash chain (audit_chain.py).

`before` and `after` must hold no secret, since a reader of the log sees them. Triggers of the database refuse to update
or delete a line, but for retention and erasures.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import clock
from billing.lists import ListColumns, ListPage, ListQuery, select_page
from gateway.access import audit_chain
from gateway.tables import audit_log, people

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
        sa.func.coalesce(people.c.name, ""),
        sa.func.coalesce(people.c.email, ""),
    ),
)


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One administrative write. `at` in microseconds UTC; `tenant_id` None: the object is the operator's. `actor_name`:
    of a person, whose id is in the line itself."""

    id: int
    at: int
    actor: str
    actor_name: str | None
    action: str
    object_id: str
    tenant_id: str | None
    request_id: str | None
    before: Any
    after: Any


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Every given value must match; `start` ≤ at < `end`, in microseconds UTC. `names_of`: only people of this tenant
    are named."""

    tenant_id: str | None = None
    actor: str | None = None
    action: str | None = None
    object_id: str | None = None
    start: int | None = None
    end: int | None = None
    names_of: str | None = None


def host_actor() -> str:
    """The actor of a command that runs on this host: "cli:" and the operating system's user."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:  # a user id without a name, as in a container
        return f"cli:{os.getuid()}"


def add_audit_line(
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
    """Add one line. `actor` is the id of a key or a person, or `host_actor`; `before` and `after` are structs or plain
    JSON data. The chain's end is locked until the transaction ends."""
    head = audit_chain.lock_head(connection)  # before the clock is read, so that ids, moments and positions agree
    insert = sa.insert(audit_log).values(
        at=clock.database_now(connection),
        actor=actor,
        action=action,
        object_id=object_id,
        tenant_id=tenant_id,
        request_id=request_id,
        before=msgspec.to_builtins(before),
        after=msgspec.to_builtins(after),
    )
    audit_chain.append_to_chain(connection, head, [connection.execute(insert.returning(audit_log)).one()])


def list_audit_lines(
    connection: sa.Connection, only: AuditFilter, *, before: int | None = None, limit: int = 100
) -> list[AuditLine]:
    """At most `limit` lines (and LIST_MAX), newest first; with `before`, only lines with a smaller id."""
    query = _matching(only).order_by(audit_log.c.id.desc()).limit(min(limit, LIST_MAX))
    if before is not None:
        query = query.where(audit_log.c.id < before)
    return [AuditLine(**row._mapping) for row in connection.execute(query)]


def get_audit_line(connection: sa.Connection, line_id: int, *, names_of: str | None = None) -> AuditLine | None:
    """The line with this id. `names_of` as that of AuditFilter."""
    query = _matching(AuditFilter(names_of=names_of)).where(audit_log.c.id == line_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else AuditLine(**row._mapping)


def query_audit_lines(connection: sa.Connection, only: AuditFilter, query: ListQuery) -> ListPage[AuditLine]:
    """One page of the matching lines. Raises InvalidValue."""
    return select_page(
        connection, _matching(only), _SORTED, query, lambda row: AuditLine(**row._mapping), lambda line: line.id
    )


def _matching(only: AuditFilter) -> sa.Select[Any]:
    named = people.c.id == audit_log.c.actor
    if only.names_of is not None:
        named &= people.c.tenant_id == only.names_of
    actor_name = sa.func.coalesce(people.c.name, people.c.email, people.c.subject).label("actor_name")
    query = sa.select(audit_log, actor_name).select_from(audit_log.outerjoin(people, named))
    for name in ("tenant_id", "actor", "action", "object_id"):
        if getattr(only, name) is not None:
            query = query.where(audit_log.c[name] == getattr(only, name))
    if only.start is not None:
        query = query.where(audit_log.c.at >= only.start)
    if only.end is not None:
        query = query.where(audit_log.c.at < only.end)
    return query
