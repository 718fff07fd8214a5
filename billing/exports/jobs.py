"""Export jobs: one row each. Any living gateway may run them, one at a time.

A job belongs to the gateway that claimed it while that gateway's lease is valid, like a hold. This module knows no
process and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.clock import Clock, database_now
from billing.errors import InvalidValue, RowNotFound
from billing.exports import export
from billing.exports.export import ExportSpec, Format, Kind
from billing.focus.manifest import Manifest
from billing.ids import new_id
from billing.lists import ListColumns, ListPage, ListQuery, select_page

# The most active jobs that export all tenants, and of each tenant, so that one tenant cannot use up the limit of
# another.
WAITING_MAX = 100
TENANT_WAITING_MAX = 24
ATTEMPTS_MAX = 3
ERROR_CHARS_MAX = 500
LIST_MAX = 1000
# Exit statuses of a job's process, beside 0.
EXIT_REFUSED, EXIT_STOPPED, EXIT_AGAIN = 2, 3, 75

State = Literal["queued", "running", "done", "failed", "cancelled", "removed"]
ACTIVE = ("queued", "running")

_exports = tables.exports
_leases = tables.leases


_SORTED = ListColumns(
    sorts={name: _exports.c[name] for name in ("created_at", "month", "kind", "state")},
    unique=_exports.c.sequence,
    searched=(_exports.c.id, _exports.c.month, _exports.c.actor, sa.func.coalesce(_exports.c.tenant_id, "")),
)


class ExportJob(msgspec.Struct, frozen=True):
    """A row of exports, in the order of its columns. Progress: `read_rows` of the ledger's `all_rows` have been
    read."""

    sequence: int
    id: str
    tenant_id: str | None
    month: str
    kind: Kind
    format: Format
    state: State
    actor: str
    created_at: int
    gateway_id: str | None
    host: str | None
    attempts: int
    started_at: int | None
    finished_at: int | None
    read_rows: int
    all_rows: int | None
    rows: int
    file: str | None
    size_bytes: int | None
    sha256: str | None
    error: str | None

    @property
    def spec(self) -> ExportSpec:
        return ExportSpec(kind=self.kind, format=self.format, month=self.month, tenant_id=self.tenant_id)


def queue_export(connection: sa.Connection, spec: ExportSpec, *, actor: str, clock: Clock = database_now) -> ExportJob:
    """Queue an export. Raises InvalidValue, also if too many jobs are active, and RowNotFound if there is no period."""
    spec.check()
    next(export.of_spec(connection, spec))
    waiting = sa.select(sa.func.count()).where(
        _exports.c.state.in_(ACTIVE), _exports.c.tenant_id.is_not_distinct_from(spec.tenant_id)
    )
    limit, whose = (WAITING_MAX, "all tenants") if spec.tenant_id is None else (TENANT_WAITING_MAX, "the tenant")
    if connection.execute(waiting).scalar_one() >= limit:
        raise InvalidValue(f"{limit} exports of {whose} are waiting already; try again when some are done")
    made = sa.insert(_exports).values(
        id=new_id("exp"),
        tenant_id=spec.tenant_id,
        month=spec.month,
        kind=spec.kind,
        format=spec.format,
        state="queued",
        actor=actor,
        created_at=clock(connection),
        attempts=0,
        read_rows=0,
        rows=0,
    )
    return ExportJob(*connection.execute(made.returning(*_exports.c)).one())


def get_export(connection: sa.Connection, export_id: str) -> ExportJob:
    """Raises RowNotFound."""
    row = connection.execute(sa.select(_exports).where(_exports.c.id == export_id)).one_or_none()
    if row is None:
        raise RowNotFound(f"there is no export {export_id!r}")
    return ExportJob(*row)


def list_exports(
    connection: sa.Connection, *, tenant_id: str | None = None, before: int | None = None, limit: int = LIST_MAX
) -> list[ExportJob]:
    """Jobs, newest first; a page begins below sequence `before`."""
    query = sa.select(_exports).order_by(_exports.c.sequence.desc()).limit(min(limit, LIST_MAX))
    if tenant_id is not None:
        query = query.where(_exports.c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(_exports.c.sequence < before)
    return [ExportJob(*row) for row in connection.execute(query)]


def query_exports(
    connection: sa.Connection, list_query: ListQuery, *, tenant_id: str | None = None
) -> ListPage[ExportJob]:
    """A page of jobs. Raises InvalidValue."""
    query = sa.select(_exports)
    if tenant_id is not None:
        query = query.where(_exports.c.tenant_id == tenant_id)
    return select_page(connection, query, _SORTED, list_query, lambda row: ExportJob(*row), lambda job: job.sequence)


def cancel_export(connection: sa.Connection, export_id: str, clock: Clock = database_now) -> ExportJob:
    """Cancel a queued or running job, or mark the file of a done job as removed. A job in another state does not
    change. Raises RowNotFound."""
    job = get_export(connection, export_id)
    state = "cancelled" if job.state in ACTIVE else "removed" if job.state == "done" else job.state
    if state == job.state:
        return job
    changed = (
        sa.update(_exports)
        .where(_exports.c.id == export_id, _exports.c.state == job.state)
        .values(state=state, finished_at=clock(connection))
    )
    connection.execute(changed)
    return get_export(connection, export_id)


# ---- for the gateway that runs the jobs


def _dead(now: int) -> sa.ColumnElement[bool]:
    lease = sa.select(_leases.c.gateway_id).where(
        _leases.c.gateway_id == _exports.c.gateway_id, _leases.c.expires_at > now
    )
    return ~lease.exists()


def _head(now: int) -> sa.Select[Any]:
    """The oldest active job, and whether it is free to be claimed."""
    free = sa.or_(_exports.c.state == "queued", _dead(now)).label("free")
    active = _exports.c.state.in_(ACTIVE)
    return sa.select(_exports.c.id, _exports.c.attempts, free).where(active).order_by(_exports.c.sequence).limit(1)


def has_waiting(connection: sa.Connection, clock: Clock = database_now) -> bool:
    """Whether `claim_export` would find a job; a cheap query."""
    head = connection.execute(_head(clock(connection))).one_or_none()
    return head is not None and bool(head.free)


def claim_export(
    connection: sa.Connection, gateway_id: str, host: str, clock: Clock = database_now
) -> ExportJob | None:
    """Claim the oldest active job, unless a live gateway runs it: one job runs at a time. Returns None if there is no
    job to claim. A job that has been started ATTEMPTS_MAX times is marked as failed."""
    now = clock(connection)
    head = connection.execute(_head(now).with_for_update(of=_exports)).one_or_none()
    if head is None or not head.free:
        return None
    mine = sa.update(_exports).where(_exports.c.id == head.id, _exports.c.state.in_(ACTIVE))
    if head.attempts >= ATTEMPTS_MAX:
        error = f"was begun {ATTEMPTS_MAX} times, and each time its gateway died"
        connection.execute(mine.values(state="failed", finished_at=now, error=error))
        return None
    row = connection.execute(
        mine.values(
            state="running",
            gateway_id=gateway_id,
            host=host,
            attempts=head.attempts + 1,
            started_at=now,
            read_rows=0,
            all_rows=None,
            rows=0,
        ).returning(*_exports.c)
    ).one_or_none()
    return None if row is None else ExportJob(*row)


def _own(export_id: str, gateway_id: str) -> sa.Update:
    return sa.update(_exports).where(
        _exports.c.id == export_id, _exports.c.gateway_id == gateway_id, _exports.c.state == "running"
    )


def record_progress(
    connection: sa.Connection, export_id: str, gateway_id: str, *, read_rows: int, all_rows: int, rows: int
) -> bool:
    """False if the job was cancelled or claimed by another gateway: the caller must stop."""
    change = _own(export_id, gateway_id).values(read_rows=read_rows, all_rows=all_rows, rows=rows)
    return connection.execute(change).rowcount == 1


def finish_export(
    connection: sa.Connection, export_id: str, gateway_id: str, made: Manifest, clock: Clock = database_now
) -> bool:
    """Mark the job as done. Returns False as `record_progress` does."""
    change = _own(export_id, gateway_id).values(
        state="done",
        finished_at=clock(connection),
        read_rows=sa.func.coalesce(_exports.c.all_rows, 0),
        rows=made.rows,
        file=made.file,
        size_bytes=made.size_bytes,
        sha256=made.sha256,
        error=None,
    )
    if connection.execute(change).rowcount != 1:
        return False
    picos = {invoice_id: int(invoice.total.scaleb(12)) for invoice_id, invoice in made.invoices.items()}
    rows = [{"export_id": export_id, "invoice_id": invoice_id, "picos": sum_} for invoice_id, sum_ in picos.items()]
    if rows:
        connection.execute(sa.insert(tables.export_invoices), rows)
    return True


def fail_export(
    connection: sa.Connection,
    export_id: str,
    gateway_id: str,
    reason: str,
    *,
    again: bool,
    clock: Clock = database_now,
) -> None:
    """End a failed attempt. With `again` the job is queued once more, unless it had ATTEMPTS_MAX attempts."""
    job = get_export(connection, export_id)
    last = not again or job.attempts >= ATTEMPTS_MAX
    state, finished = ("failed", clock(connection)) if last else ("queued", None)
    values = {"state": state, "finished_at": finished, "gateway_id": None, "error": reason[:ERROR_CHARS_MAX]}
    connection.execute(_own(export_id, gateway_id).values(values))


def release_claim(connection: sa.Connection, export_id: str, gateway_id: str) -> None:
    """Give the job back when the gateway stops: another gateway may claim it at once, and this attempt does not
    count."""
    values = {"state": "queued", "gateway_id": None, "attempts": _exports.c.attempts - 1}
    connection.execute(_own(export_id, gateway_id).values(values))


def active_jobs(connection: sa.Connection, names: Sequence[str]) -> list[ExportJob]:
    """Queued, running and done jobs with these ids, newest first."""
    query = sa.select(_exports).where(_exports.c.id.in_(names), _exports.c.state.in_((*ACTIVE, "done")))
    return [ExportJob(*row) for row in connection.execute(query.order_by(_exports.c.sequence.desc()))]


def mark_files_removed(connection: sa.Connection, export_ids: Sequence[str]) -> None:
    """Mark the jobs' files as removed."""
    change = sa.update(_exports).where(_exports.c.id.in_(export_ids), _exports.c.state == "done")
    connection.execute(change.values(state="removed"))
