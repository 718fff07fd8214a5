"""Rows of files, for functions that run in a transaction. A batch uses its input file from its creation to its end, and
the row of an output file is inserted in the transaction that ends its batch.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from gateway import errors
from gateway.config.files_settings import FilesSection
from gateway.files.contents import WrittenFile
from gateway.limits.quotas import Quota, quota_of
from gateway.stored.texts import TextKey, TextKeys
from gateway.tables import files, text_keys

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
FILENAME_CHARS_MAX = 255
UPLOAD_PURPOSE, OUTPUT_PURPOSE = "batch", "batch_output"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file. Moments are microseconds UTC. `sha256`: of the plain content, hex. `expires_at` None: never."""

    id: str
    purpose: str
    filename: str
    bytes: int
    sha256: str
    created_at: int
    expires_at: int | None


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a file beside its content. `key_id`: of the API key. `expires_s`: seconds from its row's
    insertion until it expires."""

    id: str
    tenant_id: str
    key_id: str
    purpose: str
    filename: str
    expires_s: int


class OwnedFile(msgspec.Struct, frozen=True):
    """A file with its tenant, the API key that uploaded it or created its batch, and the batches that read it."""

    file: StoredFile
    tenant_id: str
    key_id: str
    uses: int


_COLUMNS = [files.c[name] for name in StoredFile.__struct_fields__]


def new_file_id() -> str:
    """Random: an id names the content in the store."""
    return f"file-{uuid.uuid4().hex}"


def insert_file(
    connection: sa.Connection, new: NewFile, key: TextKey, written: WrittenFile, *, inline: bool = False
) -> StoredFile:
    """Insert the row of a file whose content is written. Its quota is not checked: see `lock_quota`. `inline`: the
    file has the requests of a batch that were in the body of its creation: the tenant never sees the file, and one
    batch uses it."""
    now = database_now(connection)
    stored = StoredFile(
        id=new.id,
        purpose=new.purpose,
        filename=new.filename,
        bytes=written.size,
        sha256=written.sha256,
        created_at=now,
        expires_at=now + new.expires_s * SECOND,
    )
    values = msgspec.structs.asdict(stored) | {
        "tenant_id": new.tenant_id,
        "key_id": new.key_id,
        "text_key_id": key.id,
    }
    if inline:
        values |= {"deleted_at": now, "uses": 1}
    connection.execute(sa.insert(files).values(values))
    return stored


def visible_files(connection: sa.Connection, tenant_id: str) -> sa.Select[Any]:
    """Selects the tenant's files that are neither deleted nor expired, and whose key exists."""
    return _with_key(tenant_id).where(*_visible(database_now(connection)))


def visible_to_tenants(now: int) -> sa.Select[Any]:
    """Selects the files of all tenants as `visible_files` does; `now` in microseconds UTC. See `owned_file`."""
    joined = files.join(text_keys, text_keys.c.id == files.c.text_key_id)
    query = sa.select(*_COLUMNS, files.c.tenant_id, files.c.key_id, files.c.uses).select_from(joined)
    return query.where(text_keys.c.wrapped.is_not(None), *_visible(now))


def owned_file(row: sa.Row[Any]) -> OwnedFile:
    """The file in a row of `visible_to_tenants`."""
    return OwnedFile(stored_file(row), row.tenant_id, row.key_id, row.uses)


def read_any_visible(connection: sa.Connection, file_id: str) -> OwnedFile | None:
    """A file of any tenant, for callers that check their actor's access themselves. None if the file is unknown,
    deleted or expired."""
    if not FILE_ID.fullmatch(file_id):
        return None
    query = visible_to_tenants(database_now(connection)).where(files.c.id == file_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else owned_file(row)


def visible_names(connection: sa.Connection, file_ids: list[str]) -> dict[str, str]:
    """The names of files by id, of any tenant; without files that are unknown, deleted or expired."""
    query = visible_to_tenants(database_now(connection)).where(files.c.id.in_(file_ids))
    return {row.id: row.filename for row in connection.execute(query)} if file_ids else {}


def _visible(now: int) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return files.c.deleted_at.is_(None), sa.or_(files.c.expires_at.is_(None), files.c.expires_at > now)


def read_visible(connection: sa.Connection, tenant_id: str, file_id: str) -> StoredFile | None:
    """The tenant's file with this id; None if it is unknown, deleted or expired."""
    if not FILE_ID.fullmatch(file_id):  # a database refuses some texts
        return None
    row = connection.execute(visible_files(connection, tenant_id).where(files.c.id == file_id)).one_or_none()
    return None if row is None else stored_file(row)


def read_row(
    connection: sa.Connection, keys: TextKeys, tenant_id: str, file_id: str, *, hidden: bool = False
) -> tuple[StoredFile, TextKey] | None:
    """A file and the key of its content. `hidden`: also a deleted or expired file, which a batch still uses. None:
    unknown, another tenant's, or its key is deleted. Raises TextUnreadable."""
    if not FILE_ID.fullmatch(file_id):
        return None
    query = _with_key(tenant_id) if hidden else visible_files(connection, tenant_id)
    row = connection.execute(query.where(files.c.id == file_id)).one_or_none()
    return None if row is None else (stored_file(row), keys.unwrap(row.text_key_id, tenant_id, row.wrapped))


def begin_use(connection: sa.Connection, tenant_id: str, file_id: str) -> StoredFile | None:
    """Retain the content until `end_use`, also if the file is deleted or expires. None: no visible file of the tenant
    has this id."""
    if (found := read_visible(connection, tenant_id, file_id)) is None:
        return None
    used = sa.update(files).where(files.c.id == file_id, files.c.deleted_at.is_(None)).values(uses=files.c.uses + 1)
    return found if connection.execute(used).rowcount else None


def end_use(connection: sa.Connection, tenant_id: str, file_id: str) -> None:
    """The opposite of a `begin_use`. Call it once, in the transaction that ends the batch."""
    used = sa.update(files).where(files.c.id == file_id, files.c.tenant_id == tenant_id, files.c.uses > 0)
    connection.execute(used.values(uses=files.c.uses - 1))


def hide_files(connection: sa.Connection, tenant_id: str, file_ids: list[str]) -> None:
    """Hide files of a tenant at once; the content of each is removed when no batch uses it."""
    own = (files.c.id.in_(file_ids), files.c.tenant_id == tenant_id, files.c.deleted_at.is_(None))
    connection.execute(sa.update(files).where(*own).values(deleted_at=database_now(connection)))


def lock_quota(connection: sa.Connection, key: TextKey) -> bool:
    """Let one transaction at a time check a tenant's quota and insert a file, by a lock on the row of its key. False:
    the key was deleted."""
    row = sa.select(text_keys.c.id).where(text_keys.c.id == key.id, text_keys.c.wrapped.is_not(None))
    return connection.execute(row.with_for_update()).one_or_none() is not None


def lock_tenant_key(connection: sa.Connection, tenant_id: str) -> str | None:
    """`lock_quota` by the tenant: the id of its key, locked; None: it has no key. A transaction that locks the tenant's
    row, a file's or a batch's as well takes this lock before them."""
    key = sa.select(text_keys.c.id).where(text_keys.c.tenant_id == tenant_id)
    return connection.execute(key.with_for_update()).scalar_one_or_none()


def files_of_key(connection: sa.Connection, tenant_id: str) -> int:
    """How many files would become unreadable with the tenant's key. No file is added until the transaction ends."""
    key_id = lock_tenant_key(connection, tenant_id)
    unexpired = sa.or_(files.c.expires_at.is_(None), files.c.expires_at > database_now(connection))
    is_needed = sa.or_(files.c.uses > 0, sa.and_(files.c.deleted_at.is_(None), unexpired))
    query = sa.select(sa.func.count()).where(files.c.text_key_id == key_id, is_needed)
    return int(connection.execute(query).scalar_one())


class BytesLeft(msgspec.Struct, frozen=True):
    """The bytes that a further file of a tenant may have under its quota."""

    count: int
    quota: Quota

    def exceeded(self) -> errors.QuotaExceeded:
        """The refusal of a larger file."""
        return errors.QuotaExceeded(
            f"The tenant's files would exceed {self.quota.value} bytes ({self.quota.source}). Delete some.",
            errors.ReachedLimit("tenant_file_bytes", self.quota.value),
        )


def bytes_left(connection: sa.Connection, section: FilesSection, tenant_id: str) -> BytesLeft:
    """Files whose content is not removed yet count. Raises QuotaExceeded for a tenant that may have no further file."""
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(files.c.bytes), 0))
    count, stored = connection.execute(query.where(files.c.tenant_id == tenant_id)).one()
    files_max = quota_of(connection, tenant_id, "files", section.tenant_files_max, "files.tenant_files_max")
    if count >= files_max.value:
        raise errors.QuotaExceeded(
            f"The tenant has {count} files; the limit is {files_max.value} ({files_max.source}). Delete some.",
            errors.ReachedLimit("tenant_files", files_max.value),
        )
    bytes_max = quota_of(connection, tenant_id, "total_file_bytes", section.tenant_bytes_max, "files.tenant_bytes_max")
    left = BytesLeft(bytes_max.value - int(stored), bytes_max)
    if left.count <= 0:
        raise left.exceeded()
    return left


def stored_file(row: sa.Row[Any]) -> StoredFile:
    """Of a row with the columns of StoredFile."""
    return StoredFile(**{name: getattr(row, name) for name in StoredFile.__struct_fields__})


def _with_key(tenant_id: str) -> sa.Select[Any]:
    joined = files.join(text_keys, text_keys.c.id == files.c.text_key_id)
    query = sa.select(*_COLUMNS, files.c.text_key_id, text_keys.c.wrapped).select_from(joined)
    return query.where(files.c.tenant_id == tenant_id, text_keys.c.wrapped.is_not(None))
