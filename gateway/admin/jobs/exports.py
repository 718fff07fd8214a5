"""Ordering and ending exports of usage."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing.errors import RowNotFound
from billing.exports import jobs
from billing.exports.export import ExportSpec
from billing.exports.jobs import ExportJob
from gateway.admin.writes import Actor, Writes


class ExportWrites:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def create(self, connection: sa.Connection, spec: ExportSpec) -> ExportJob:
        """Order an export; a gateway makes its file later."""
        self._writes.lock(connection)
        spec = msgspec.structs.replace(spec, tenant_id=self._writes.visible_tenant(connection, spec.tenant_id))
        job = jobs.queue_export(connection, spec, actor=self._writes.actor.id)
        return self._writes.record(connection, "export.create", None, job)

    def end(self, connection: sa.Connection, export_id: str) -> ExportJob:
        """Cancel an export that runs; of a completed one, delete the file."""
        self._writes.lock(connection)
        before = export_of(connection, export_id, self._writes.actor)
        return self._writes.record(connection, "export.end", before, jobs.cancel_export(connection, export_id))


def export_of(connection: sa.Connection, export_id: str, actor: Actor) -> ExportJob:
    """An export that `actor` sees. Raises RowNotFound."""
    job = jobs.get_export(connection, export_id)
    if not actor.sees(job.tenant_id):
        raise RowNotFound(f"there is no export {export_id!r}")
    return job
