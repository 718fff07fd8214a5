"""Cancelling batches of tenants, and deleting their files. No text of a request or an answer is read here."""

from __future__ import annotations

import sqlalchemy as sa

from billing.errors import RowNotFound
from gateway.admin.refusals import BatchEnded
from gateway.admin.writes import Actor, Writes
from gateway.batches import rows as batch_rows
from gateway.batches.rows import CANCELLABLE, BatchRow
from gateway.files import rows as file_rows
from gateway.files.rows import OwnedFile


class BatchWrites:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def cancel(self, connection: sa.Connection, batch_id: str) -> BatchRow:
        """Ask the worker to end a batch, as its tenant can. A batch that is being cancelled, or was, is not changed and
        has no further audit line. Raises BatchEnded."""
        self._writes.lock(connection)
        before = batch_seen(connection, batch_id, self._writes.actor)
        if before.status not in (*CANCELLABLE, "cancelling", "cancelled"):
            raise BatchEnded(f"the batch {batch_id} has the status {before.status!r}; its lines have ended")
        after = batch_rows.cancel_batch(connection, before.tenant_id, batch_id) or before
        if before.status not in CANCELLABLE:
            return after
        states = {"before": {"status": before.status}, "after": {"status": after.status}}
        self._writes.record_line(connection, "batch.cancel", batch_id, before.tenant_id, **states)
        return after


class FileWrites:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def delete(self, connection: sa.Connection, file_id: str) -> OwnedFile:
        """Hide a file at once, as its tenant can; its content is removed when no batch uses it."""
        self._writes.lock(connection)
        found = file_seen(connection, file_id, self._writes.actor)
        file_rows.hide_files(connection, found.tenant_id, [file_id])
        before = {"purpose": found.file.purpose, "bytes": found.file.bytes}
        self._writes.record_line(connection, "file.delete", file_id, found.tenant_id, before=before)
        return found


def batch_seen(connection: sa.Connection, batch_id: str, actor: Actor) -> BatchRow:
    """A batch that `actor` sees. Raises RowNotFound."""
    row = batch_rows.read_any_batch(connection, batch_id)
    if row is None or not actor.sees(row.tenant_id):
        raise RowNotFound(f"there is no batch {batch_id!r}")
    return row


def file_seen(connection: sa.Connection, file_id: str, actor: Actor) -> OwnedFile:
    """A file that `actor` sees. Raises RowNotFound, also for a deleted or expired file."""
    found = file_rows.read_any_visible(connection, file_id)
    if found is None or not actor.sees(found.tenant_id):
        raise RowNotFound(f"there is no file {file_id!r}")
    return found
