"""Encrypts the texts that are stored for a tenant: AES-256-GCM under a random key of the tenant's.

The table text_keys has the key, encrypted with the server secret. Deleting the key makes every stored text of the
tenant unreadable, even with the database and the server secret. The row of a deleted key remains, without the
key, until `scrub` has removed the key's bytes from the database's files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from billing.clock import database_now
from billing.ids import new_id
from gateway.config.server_secrets import ServerSecrets
from gateway.tables import text_keys

FORMAT = 1
KEY_BYTES, NONCE_BYTES = 32, 12
_PURPOSE = b"laneway: keys of stored texts, format 1: tenant "


class TextUnreadable(Exception):
    """The text or its key was changed, moved, or encrypted with a secret that is not known any more."""


class TextKey(msgspec.Struct, frozen=True):
    """The key of one tenant. A text is bound to `place`, for example a row and a column."""

    id: str
    tenant_id: str
    key: bytes

    def seal(self, text: bytes, place: str) -> bytes:
        return _seal(self.key, text, self._bound(place))

    def open(self, sealed: bytes, place: str) -> bytes:
        """Raises TextUnreadable."""
        return _open([self.key], sealed, self._bound(place))

    def _bound(self, place: str) -> bytes:
        return f"{self.tenant_id} {place}".encode()


class TextKeys:
    """The keys of all tenants."""

    def __init__(self, secrets: ServerSecrets) -> None:
        self._secrets = secrets

    def key_of(self, connection: sa.Connection, tenant_id: str) -> TextKey | None:
        """Raises TextUnreadable."""
        query = sa.select(text_keys.c.id, text_keys.c.wrapped).where(text_keys.c.tenant_id == tenant_id)
        row = connection.execute(query).one_or_none()
        return None if row is None else self.unwrap(row.id, tenant_id, row.wrapped)

    def ensure_key(self, connection: sa.Connection, tenant_id: str) -> TextKey:
        """The tenant's key; a new key for a tenant without one. Raises TextUnreadable."""
        if (known := self.key_of(connection, tenant_id)) is not None:
            return known
        key = TextKey(new_id("txk"), tenant_id, os.urandom(KEY_BYTES))
        wrapped = _seal(self._secret_keys(tenant_id)[0], key.key, key.id.encode())
        values = {"id": key.id, "tenant_id": tenant_id, "wrapped": wrapped, "created_at": database_now(connection)}
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(text_keys).values(values))
        except sa.exc.IntegrityError:  # another gateway made it meanwhile
            known = self.key_of(connection, tenant_id)
            assert known is not None
            return known
        return key

    def unwrap(self, key_id: str, tenant_id: str, wrapped: bytes) -> TextKey:
        """Raises TextUnreadable."""
        return TextKey(key_id, tenant_id, _open(self._secret_keys(tenant_id), wrapped, key_id.encode()))

    def rewrap(self, connection: sa.Connection) -> int:
        """Encrypt the keys of all tenants with the current secret, so that the other one can be dropped. Returns how
        many were encrypted with the other one. Raises TextUnreadable."""
        changed = 0
        for row in connection.execute(sa.select(text_keys).where(text_keys.c.wrapped.is_not(None))).all():
            current = self._secret_keys(row.tenant_id)[0]
            with contextlib.suppress(TextUnreadable):
                _open([current], row.wrapped, row.id.encode())
                continue
            key = self.unwrap(row.id, row.tenant_id, row.wrapped)
            wrapped = _seal(current, key.key, row.id.encode())
            connection.execute(sa.update(text_keys).where(text_keys.c.id == row.id).values(wrapped=wrapped))
            changed += 1
        return changed

    def delete_unreadable_keys(self, connection: sa.Connection) -> int:
        """Delete the keys that no known secret decrypts, so that their tenants get new keys. Returns their number."""
        deleted = 0
        for row in connection.execute(sa.select(text_keys).where(text_keys.c.wrapped.is_not(None))).all():
            try:
                self.unwrap(row.id, row.tenant_id, row.wrapped)
            except TextUnreadable:
                delete_text_key(connection, row.tenant_id)
                deleted += 1
        return deleted

    def _secret_keys(self, tenant_id: str) -> list[bytes]:
        return self._secrets.derive_keys(_PURPOSE + tenant_id.encode())


def delete_text_key(connection: sa.Connection, tenant_id: str) -> None:
    """Make every stored text of the tenant unreadable. `responses.delete_unreadable` deletes the rows later."""
    with _overwriting(connection):
        row = sa.update(text_keys).where(text_keys.c.tenant_id == tenant_id)
        connection.execute(row.values(tenant_id=None, wrapped=None))


@contextlib.contextmanager
def _overwriting(connection: sa.Connection) -> Iterator[None]:
    """Within the block SQLite overwrites deleted data with zeros."""
    if connection.dialect.name != "sqlite":
        yield
        return
    connection.exec_driver_sql("PRAGMA secure_delete = ON")
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA secure_delete = OFF")


# Whether PostgreSQL keeps the old version of a changed row. It does for every snapshot of its database that is older
# than the change, and a running transaction of any database makes new snapshots as old as itself. `age` compares ids of
# transactions across their wraparound, from one moment in one statement: the older transaction has the greater age.
_IS_HELD = f"""
SELECT coalesce(max(older.age), 0) >= (SELECT min(age(xmin)) FROM {text_keys.name} WHERE wrapped IS NULL) FROM (
    SELECT age(backend_xmin) FROM pg_stat_activity
    WHERE coalesce(datname, current_database()) = current_database() AND pid <> pg_backend_pid()
    UNION ALL SELECT age(backend_xid) FROM pg_stat_activity
    UNION ALL SELECT age(xmin) FROM pg_replication_slots
    UNION ALL SELECT age(transaction) FROM pg_prepared_xacts
) AS older (age)
"""


def scrub(connection: sa.Connection) -> bool:
    """Remove the bytes of deleted keys from the database's files. The connection has no transaction. False: there are
    none, or a reader or an older transaction still holds the bytes, so that it must be tried again."""
    deleted = text_keys.c.wrapped.is_(None)
    ids = list(connection.execute(sa.select(text_keys.c.id).where(deleted)).scalars())
    if not ids:
        return False
    if connection.dialect.name == "sqlite":
        busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
        if busy:
            return False
    else:
        if connection.exec_driver_sql(_IS_HELD).scalar_one():
            return False
        connection.exec_driver_sql(f"VACUUM FULL {text_keys.name}")
    connection.execute(sa.delete(text_keys).where(text_keys.c.id.in_(ids), deleted))
    return True


def _seal(key: bytes, text: bytes, bound: bytes) -> bytes:
    """Format, nonce, ciphertext and tag."""
    nonce = os.urandom(NONCE_BYTES)
    return bytes((FORMAT,)) + nonce + AESGCM(key).encrypt(nonce, text, bytes((FORMAT,)) + bound)


def _open(keys: list[bytes], sealed: bytes, bound: bytes) -> bytes:
    """Raises TextUnreadable."""
    if sealed[:1] != bytes((FORMAT,)):
        raise TextUnreadable("it has another format")
    nonce, ciphertext = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
    for key in keys:
        with contextlib.suppress(InvalidTag, ValueError):
            return AESGCM(key).decrypt(nonce, ciphertext, bytes((FORMAT,)) + bound)
    raise TextUnreadable("it does not decrypt")
