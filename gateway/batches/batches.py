"""Batches as their clients use them: created, read, listed and cancelled, at any gateway."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from billing.database import Database
from gateway.batches import rows
from gateway.batches.rows import BatchProgress, BatchRow, NewBatch
from gateway.config.batches_settings import BatchesSection


class Batches:
    """Creates, reads and cancels batches for the routes; each gateway process has one. The API of one `dialect` does
    not find batches of another. `notice`: called when a batch was created here, or is to be cancelled."""

    def __init__(self, database: Database, section: BatchesSection, notice: Callable[[], None]) -> None:
        self._database = database
        self._section = section
        self._notice = notice

    async def create_batch(self, new: NewBatch) -> BatchProgress:
        """Raises NotFound for an unknown input file, QuotaExceeded, IdempotencyMismatch, DatabaseUnavailable."""
        try:
            row = await self._database.write(lambda connection: rows.create_batch(connection, new, self._section))
        except sa.exc.IntegrityError:  # another call with this Idempotency-Key was committed meanwhile
            row = await self._database.write(lambda connection: rows.create_batch(connection, new, self._section))
        self._notice()
        return await self._with_progress(row)

    async def find_batch(self, tenant_id: str, batch_id: str, dialect: str) -> BatchProgress | None:
        """None: unknown, or another tenant's. Raises DatabaseUnavailable."""
        row = await self._database.read(lambda connection: rows.read_batch(connection, tenant_id, batch_id, dialect))
        return None if row is None else await self._with_progress(row)

    async def list_batches(
        self, tenant_id: str, dialect: str, after: str | None, limit: int, *, newer: bool = False
    ) -> list[BatchProgress] | None:
        """The newest first; `newer` as in `rows.list_batches`. None: `after` is no batch of the tenant. Raises
        DatabaseUnavailable."""

        def read(connection: sa.Connection) -> list[BatchProgress] | None:
            found = rows.list_batches(connection, tenant_id, dialect, after, limit, newer=newer)
            return None if found is None else rows.progress_of(connection, found)

        return await self._database.read(read)

    async def cancel_batch(self, tenant_id: str, batch_id: str, dialect: str) -> BatchProgress | None:
        """None: unknown, or another tenant's. Raises Conflict for a batch whose lines have ended;
        DatabaseUnavailable."""
        row = await self._database.write(lambda connection: rows.cancel_batch(connection, tenant_id, batch_id, dialect))
        self._notice()
        return None if row is None else await self._with_progress(row)

    async def delete_batch(self, tenant_id: str, batch_id: str, dialect: str) -> bool:
        """False: unknown, or another tenant's. Raises Conflict for a batch that has not ended; DatabaseUnavailable."""
        return await self._database.write(
            lambda connection: rows.delete_batch(connection, tenant_id, batch_id, dialect)
        )

    async def _with_progress(self, row: BatchRow) -> BatchProgress:
        return (await self._database.read(lambda connection: rows.progress_of(connection, [row])))[0]
