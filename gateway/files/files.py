"""Files of tenants: rows in the database, contents in the store. A file is looked up by tenant and id.

A row is inserted after its content is written, so a file that is found is complete. A content without a row is removed
when it is ORPHAN_S old: its upload or its batch's assembly did not end.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from gateway import errors
from gateway.config.files_settings import FilesSection
from gateway.files.backends import ContentStoreFailed
from gateway.files.contents import FileContents, WrittenFile
from gateway.files.rows import (
    FILE_ID,
    BytesLeft,
    NewFile,
    StoredFile,
    bytes_left,
    insert_file,
    lock_quota,
    read_row,
    read_visible,
    stored_file,
    visible_files,
)
from gateway.metrics import Metrics
from gateway.stored.texts import TextKey, TextKeys, TextUnreadable
from gateway.tables import files, text_keys

REMOVED_AT_ONCE = 100  # rows of one transaction
# A deleted or expired content is removed after this time, so that downloads that have begun can end.
READERS_S = 600
ORPHAN_S = 24 * 3600  # longer than an upload or an assembly takes
ORPHANS_EVERY_S = 3600.0  # between two listings of the store
IDS_AT_ONCE = 500

_log = logging.getLogger(__name__)


class FilePage(msgspec.Struct, frozen=True):
    files: list[StoredFile]
    more: bool


class Files:
    """Creates, reads and deletes the files of /v1/files; each gateway process has one."""

    def __init__(
        self, database: Database, contents: FileContents, keys: TextKeys, section: FilesSection, metrics: Metrics
    ) -> None:
        self.contents = contents
        self.section = section
        self._database = database
        self._keys = keys
        self._metrics = metrics

    async def begin_upload(self, tenant_id: str) -> tuple[TextKey, BytesLeft]:
        """The key for a further file of the tenant, and the bytes that its quota leaves. Raises QuotaExceeded,
        DatabaseUnavailable, InternalError."""
        left = await self._database.read(lambda connection: bytes_left(connection, self.section, tenant_id))
        return await self.tenant_key(tenant_id), left

    async def tenant_key(self, tenant_id: str) -> TextKey:
        """The key that seals the tenant's files, made if there is none. Raises DatabaseUnavailable, InternalError."""
        try:
            key = await self._database.read(lambda connection: self._keys.key_of(connection, tenant_id))
            if key is None:
                key = await self._database.write_in_background(
                    lambda connection: self._keys.ensure_key(connection, tenant_id)
                )
        except TextUnreadable as error:
            raise _key_unreadable(tenant_id, error) from None
        return key

    async def create_file(self, new: NewFile, key: TextKey, written: WrittenFile) -> StoredFile:
        """Insert the row of an uploaded file; a refusal removes its content. The quota is exact with several gateways.
        Raises QuotaExceeded, Conflict if the tenant's key was deleted, DatabaseUnavailable."""

        def insert(connection: sa.Connection) -> StoredFile:
            if not lock_quota(connection, key):
                raise errors.Conflict("The tenant's stored data was deleted during the upload. Upload the file again.")
            left = bytes_left(connection, self.section, new.tenant_id)
            if written.size > left.count:
                raise left.exceeded()
            return insert_file(connection, new, key, written)

        try:
            return await self._database.write_in_background(insert)
        except errors.ApiError:  # after any other error, or a cancellation, the row may have been committed
            await self.remove_content(new.id)
            raise

    async def find_file(self, tenant_id: str, file_id: str) -> StoredFile | None:
        """None: unknown, another tenant's, deleted or expired. Raises DatabaseUnavailable."""
        return await self._database.read(lambda connection: read_visible(connection, tenant_id, file_id))

    async def open_file(
        self, tenant_id: str, file_id: str, *, hidden: bool = False
    ) -> tuple[StoredFile, TextKey] | None:
        """A file, and the key that `contents` reads it with. `hidden`: also a deleted or expired file, for a batch that
        uses it. None: see `read_row`. Raises InternalError, DatabaseUnavailable."""
        try:
            return await self._database.read(
                lambda connection: read_row(connection, self._keys, tenant_id, file_id, hidden=hidden)
            )
        except TextUnreadable as error:
            raise _key_unreadable(tenant_id, error) from None

    async def list_files(
        self, tenant_id: str, after: str | None, limit: int, order: Literal["asc", "desc"], purpose: str | None
    ) -> FilePage | None:
        """Visible files in the order of their creation. `after`: the id before the page, of any file of the tenant.
        None: there is no such file. Raises DatabaseUnavailable."""
        if after is not None and not FILE_ID.fullmatch(after):
            return None
        position = sa.tuple_(files.c.created_at, files.c.id)
        sort = sa.asc if order == "asc" else sa.desc

        def read(connection: sa.Connection) -> FilePage | None:
            query = visible_files(connection, tenant_id).order_by(sort(files.c.created_at), sort(files.c.id))
            if purpose is not None:
                query = query.where(files.c.purpose == purpose)
            if after is not None:
                of_tenant = sa.select(files.c.created_at).where(files.c.id == after, files.c.tenant_id == tenant_id)
                created_at = connection.execute(of_tenant).scalar_one_or_none()
                if created_at is None:
                    return None
                cursor = sa.tuple_(sa.literal(created_at), sa.literal(after))
                query = query.where(position > cursor if order == "asc" else position < cursor)
            rows = connection.execute(query.limit(limit + 1)).all()
            return FilePage([stored_file(row) for row in rows[:limit]], len(rows) > limit)

        return await self._database.read(read)

    async def delete_file(self, tenant_id: str, file_id: str) -> bool:
        """Hide a file at once; its content is removed when no batch uses it. False: as `find_file` None. Raises
        DatabaseUnavailable."""

        def hide(connection: sa.Connection) -> bool:
            if read_visible(connection, tenant_id, file_id) is None:
                return False
            row = sa.update(files).where(files.c.id == file_id, files.c.deleted_at.is_(None))
            return connection.execute(row.values(deleted_at=database_now(connection))).rowcount > 0

        return await self._database.write_in_background(hide)

    # ---- removal of contents that nothing reads

    async def run(self, every_s: float) -> None:
        """Remove contents of deleted, expired, keyless and orphaned files every `every_s` seconds until cancelled."""
        listed_after_s = 0.0
        while True:
            await asyncio.sleep(every_s)
            try:
                while await self.remove_unused() == REMOVED_AT_ONCE:
                    pass
                await self.measure_files()
                listed_after_s -= every_s
                if listed_after_s <= 0:
                    listed_after_s = ORPHANS_EVERY_S
                    await self.remove_orphans()
            except (DatabaseUnavailable, ContentStoreFailed) as error:
                _log.warning("files.not_removed", extra={"fields": {"reason": str(error)}})

    async def remove_unused(self, readers_s: float = READERS_S) -> int:
        """Remove up to REMOVED_AT_ONCE files that were hidden `readers_s` ago and that no batch uses. The content is
        removed before its row, so a failure in between is repeated. Returns their number. Raises DatabaseUnavailable,
        ContentStoreFailed."""
        ids = await self._database.read(lambda connection: _unused_ids(connection, int(readers_s * SECOND)))
        for file_id in ids:
            await self.contents.delete(file_id)
        if ids:
            rows = sa.delete(files).where(files.c.id.in_(ids))
            await self._database.write_in_background(lambda connection: connection.execute(rows).rowcount)
        return len(ids)

    async def remove_orphans(self, age_s: float = ORPHAN_S) -> int:
        """Remove contents without a row that are `age_s` old. Returns their number. Raises DatabaseUnavailable,
        ContentStoreFailed."""
        names = await self.contents.backend.old_names(age_s)
        removed = 0
        for first in range(0, len(names), IDS_AT_ONCE):
            part = names[first : first + IDS_AT_ONCE]
            known = await self._database.read(functools.partial(_known_ids, ids=part))
            for name in part:
                if name not in known:
                    await self.contents.delete(name)
                    removed += 1
        return removed

    async def measure_files(self) -> None:
        """Set the gauges of files. Raises DatabaseUnavailable."""
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(files.c.bytes), 0))
        count, size = await self._database.report(lambda connection: connection.execute(query).one())
        self._metrics.files_stored.set(count)
        self._metrics.file_bytes_stored.set(int(size))

    async def remove_content(self, file_id: str) -> None:
        """Remove the content of an upload that failed. `remove_orphans` removes it later if the store fails."""
        try:
            await self.contents.delete(file_id)
        except ContentStoreFailed as error:
            _log.warning("files.not_removed", extra={"fields": {"file": file_id, "reason": str(error)}})


def _unused_ids(connection: sa.Connection, readers: int) -> list[str]:
    """Files without a reader: hidden `readers` microseconds ago and in no use, or without a key."""
    before = database_now(connection) - readers
    hidden = sa.and_(sa.or_(files.c.deleted_at <= before, files.c.expires_at <= before), files.c.uses == 0)
    keyless = ~sa.exists().where(text_keys.c.id == files.c.text_key_id, text_keys.c.wrapped.is_not(None))
    query = sa.select(files.c.id).where(sa.or_(hidden, keyless)).limit(REMOVED_AT_ONCE)
    return list(connection.execute(query).scalars())


def _known_ids(connection: sa.Connection, ids: list[str]) -> set[str]:
    return set(connection.execute(sa.select(files.c.id).where(files.c.id.in_(ids))).scalars())


def _key_unreadable(tenant_id: str, error: TextUnreadable) -> errors.InternalError:
    _log.error("files.key_unreadable", extra={"fields": {"tenant": tenant_id, "reason": str(error)}})
    return errors.InternalError()
