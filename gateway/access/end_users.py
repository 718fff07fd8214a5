"""Digests of the names of end users: HMAC-SHA-256 under a random key of the deployment's.

The database has the key, encrypted with the server secret, so that a rotation of the secret changes no digest. A digest
covers the tenant, so two tenants' end users of one name have different digests. Names are neither stored nor logged.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os

import sqlalchemy as sa

from gateway.access.sealed_values import SealedValues, ValueUnreadable
from gateway.config.server_secrets import ServerSecrets
from gateway.tables import server_secret as _table

KEY_BYTES = 32
_PURPOSE = "key of end users, format 1"
_PLACE = "server_secret"
_SEALED = sa.select(_table.c.end_user_key)


class EndUserDigests:
    """The digests of one process. `load_key` or `make_key` must run before `digest`."""

    def __init__(self, secrets: ServerSecrets) -> None:
        self._secrets = secrets
        self._sealed = SealedValues(secrets, _PURPOSE)
        self._key: bytes | None = None

    def load_key(self, connection: sa.Connection) -> bool:
        """False: no gateway has made the key yet, so no end user has a budget. Raises ValueUnreadable."""
        sealed = connection.execute(_SEALED).scalar_one()
        self._key = None if sealed is None else self._sealed.unseal(sealed, _PLACE)
        return self._key is not None

    def make_key(self, connection: sa.Connection) -> None:
        """Make the key if the database does not have it, and load it. While the secret is rotated, encrypt the key with
        the current secret, so that the older one can be dropped. Raises ValueUnreadable."""
        if self.load_key(connection):
            if len(self._secrets.fingerprints()) > 1:
                rewrap_end_user_key(connection, self._secrets)
            return
        sealed = self._sealed.seal(os.urandom(KEY_BYTES), _PLACE)
        # If several gateways start at once, only the first of them stores a key.
        connection.execute(sa.update(_table).where(_table.c.end_user_key.is_(None)).values(end_user_key=sealed))
        self.load_key(connection)

    def digest(self, tenant_id: str, name: str) -> str:
        """64 hexadecimal digits."""
        assert self._key is not None, "the key is loaded at the start"
        text = f"{tenant_id}\0{name}".encode(errors="backslashreplace")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


def rewrap_end_user_key(connection: sa.Connection, secrets: ServerSecrets) -> None:
    """Encrypt the key with the current secret, so that the other secret can be dropped. A key that no known secret
    decrypts is not changed."""
    values = SealedValues(secrets, _PURPOSE)
    sealed = connection.execute(_SEALED).scalar_one()
    if sealed is None:
        return
    with contextlib.suppress(ValueUnreadable):
        changed = values.seal(values.unseal(sealed, _PLACE), _PLACE)
        connection.execute(sa.update(_table).values(end_user_key=changed))


def delete_unreadable_key(connection: sa.Connection, secrets: ServerSecrets) -> bool:
    """Delete the key if no known secret decrypts it; the next gateway that starts makes another. Returns whether it
    was deleted: then all end users begin new budgets."""
    sealed = connection.execute(_SEALED).scalar_one()
    if sealed is None:
        return False
    try:
        SealedValues(secrets, _PURPOSE).unseal(sealed, _PLACE)
    except ValueUnreadable:
        connection.execute(sa.update(_table).values(end_user_key=None))
        return True
    return False
