"""Background work on stored rows: deletes rows older than `[retention]` allows, in bounded transactions, adds lines of
older versions to the audit log's chain, and signs its checkpoints.

It must never delete usage, ledger entries or invoices.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import connectors, sla
from billing.clock import DAY, SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from gateway.access import audit_chain
from gateway.access.audit_chain import AuditCheckpoint, CheckpointSigner
from gateway.access.write_replays import KEEP_S, delete_old_writes
from gateway.batches.rows import delete_old_batches
from gateway.config.file import Config
from gateway.config.server_secrets import ServerSecrets
from gateway.error_tables import request_error_counts as _counts
from gateway.error_tables import request_errors as _errors
from gateway.tables import restores
from gateway.upkeep.error_recorder import QUARTER

DELETED_AT_ONCE = 1000  # rows of one transaction
# SQLite has one writer at a time: settlements wait for a transaction.
DELETED_AT_ONCE_SQLITE = 200
EVERY_S = 60.0

_log = logging.getLogger(__name__)
_holds = tables.holds


class Retention:
    """One per gateway. Any number of gateways may run it on one database."""

    def __init__(self, database: Database, config: Config, secrets: ServerSecrets) -> None:
        self._database = database
        self._settings = config.retention
        self._signer = CheckpointSigner(secrets)
        self._checkpoints_file = config.audit_checkpoints_file
        self._limit = DELETED_AT_ONCE_SQLITE if database.is_sqlite else DELETED_AT_ONCE

    async def run(self, every_s: float = EVERY_S) -> None:
        """Run until cancelled; a first round at once."""
        while True:
            try:
                await self.run_once()
            except (DatabaseUnavailable, OSError) as error:
                _log.warning("retention.waits", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    async def run_once(self) -> None:
        """Raises DatabaseUnavailable; OSError when a checkpoint cannot be written to its file."""
        await self._repeat(audit_chain.chain_unhashed)
        made = await self._database.write_in_background(lambda c: audit_chain.make_checkpoint(c, self._signer))
        if made is not None:
            # In the log and in a file too: a person with rights in the database can delete its checkpoints.
            _log.info("audit.checkpoint", extra={"fields": msgspec.to_builtins(made)})
            await asyncio.to_thread(append_checkpoint, self._checkpoints_file, made)
        await self._repeat(lambda c, limit: delete_old_writes(c, database_now(c) - KEEP_S * SECOND, limit))
        await self._delete("requests", self._settings.requests_days, delete_uncharged)
        await self._delete("audit", self._settings.audit_days, self._prune)
        await self._delete("request_errors", self._settings.request_errors_days, delete_errors)
        await self._delete("request_error_counts", self._settings.request_errors_days, delete_error_counts)
        await self._delete("exports", self._settings.exports_days, remove_exports)
        await self._delete("batches", self._settings.batch_days, delete_old_batches)
        await self._delete("connector_hours", self._settings.connector_days, connectors.fold_old_hours)
        await self._delete("sla", self._settings.sla_days, sla.delete_quarters)

    async def _delete(self, kind: str, days: int, delete: Callable[[sa.Connection, int, int], int]) -> None:
        if not days:
            return
        deleted = await self._repeat(lambda c, limit: delete(c, database_now(c) - days * DAY, limit))
        if deleted:
            _log.info("retention.deleted", extra={"fields": {"kind": kind, "rows": deleted}})

    async def _repeat(self, work: Callable[[sa.Connection, int], int]) -> int:
        """Repeat a bounded write until it finds less than its limit. Returns the rows of all."""
        rows = 0
        while True:
            done = await self._database.write_in_background(lambda c: work(c, self._limit))
            rows += done
            if done < self._limit:
                return rows

    def _prune(self, connection: sa.Connection, before: int, limit: int) -> int:
        return audit_chain.prune(connection, self._signer, before, limit)


def delete_uncharged(connection: sa.Connection, before: int, limit: int) -> int:
    """Delete at most `limit` requests that ended before a moment without a charge or a lost token, with the budget
    windows that they were held in. Returns their number."""
    ended = sa.and_(tables.UNSETTLED, _holds.c.ended_at < before, _holds.c.lost_tokens == 0)
    oldest = sa.select(_holds.c.request_id).where(ended).order_by(_holds.c.ended_at).limit(limit)
    request_ids = list(connection.execute(oldest.with_for_update(skip_locked=True)).scalars())
    if request_ids:
        for table in (tables.hold_charges, tables.checkpoints, _holds):
            connection.execute(sa.delete(table).where(table.c.request_id.in_(request_ids)))
    return len(request_ids)


def delete_errors(connection: sa.Connection, before: int, limit: int) -> int:
    """Delete at most `limit` rows of refused and failed requests that ended before a moment. Returns their number."""
    old = sa.select(_errors.c.request_id).where(_errors.c.at < before).order_by(_errors.c.at).limit(limit)
    return connection.execute(sa.delete(_errors).where(_errors.c.request_id.in_(old))).rowcount


def delete_error_counts(connection: sa.Connection, before: int, limit: int) -> int:
    """Delete at most `limit` counts of quarter-hours that ended before a moment. Returns their number."""
    key = sa.tuple_(*_counts.primary_key)
    old = sa.select(*_counts.primary_key).where(_counts.c.quarter < before - QUARTER).order_by(_counts.c.quarter)
    return connection.execute(sa.delete(_counts).where(key.in_(old.limit(limit)))).rowcount


def remove_exports(connection: sa.Connection, before: int, limit: int) -> int:
    """Mark at most `limit` exports that were done before a moment as removed; the exporter of each host deletes their
    files. Returns their number."""
    exports = tables.exports
    done = sa.and_(exports.c.state == "done", exports.c.finished_at < before)
    ids = list(connection.execute(sa.select(exports.c.id).where(done).limit(limit)).scalars())
    if ids:
        connection.execute(sa.update(exports).where(exports.c.id.in_(ids), done).values(state="removed"))
    return len(ids)


def append_checkpoint(path: Path, made: AuditCheckpoint) -> None:
    """Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        file.write(msgspec.json.encode(made) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_checkpoints(path: Path) -> list[AuditCheckpoint]:
    """The checkpoints of a file that `append_checkpoint` wrote; a missing file has none. Raises OSError,
    msgspec.DecodeError."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=AuditCheckpoint) for line in path.read_bytes().splitlines() if line.strip()]


def since_restores(connection: sa.Connection, checkpoints: Sequence[AuditCheckpoint]) -> list[AuditCheckpoint]:
    """The checkpoints without the checkpoints of a time that a restore from a backup has lost."""
    query = sa.select(restores.c.taken_at, restores.c.began_at).where(restores.c.finished_at.is_not(None))
    lost = connection.execute(query).all()
    return [made for made in checkpoints if not any(row.taken_at < made.at < row.began_at for row in lost)]
