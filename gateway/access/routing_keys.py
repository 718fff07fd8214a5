"""Encrypts the PagerDuty routing keys of webhooks with the server secret: AES-256-GCM, bound to the webhook.

The signing secret of a webhook is used by this deployment alone, and is stored unencrypted. A routing key is another
service's credential, so a copy of the database does not contain it.
"""

from __future__ import annotations

import contextlib
import os

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from billing.tables import webhooks
from gateway.config.server_secrets import ServerSecrets

FORMAT = b"\x01"
NONCE_BYTES = 12
_PURPOSE = b"laneway: routing keys of webhooks, format 1"
_SEALED = sa.select(webhooks.c.id, webhooks.c.routing_key).where(webhooks.c.routing_key.is_not(None))


class RoutingKeyUnreadable(Exception):
    """No known secret decrypts the routing key."""

    def __init__(self) -> None:
        super().__init__(
            "its routing key was encrypted with another server secret; remove the webhook and add it again"
        )


def seal_routing_key(secrets: ServerSecrets, webhook_id: str, key: str) -> bytes:
    """Format, nonce, ciphertext and tag."""
    nonce = os.urandom(NONCE_BYTES)
    return FORMAT + nonce + AESGCM(_keys(secrets)[0]).encrypt(nonce, key.encode(), FORMAT + webhook_id.encode())


def open_routing_key(secrets: ServerSecrets, webhook_id: str, sealed: bytes) -> str:
    """Raises RoutingKeyUnreadable."""
    return _open(_keys(secrets), webhook_id, sealed)


def rewrap_routing_keys(connection: sa.Connection, secrets: ServerSecrets) -> int:
    """Encrypt all routing keys with the current secret, so that the other one can be dropped. A key that no secret
    decrypts is not changed. Returns how many were encrypted with the other secret."""
    changed = 0
    for row in connection.execute(_SEALED).all():
        with contextlib.suppress(RoutingKeyUnreadable):
            _open(_keys(secrets)[:1], row.id, row.routing_key)
            continue
        with contextlib.suppress(RoutingKeyUnreadable):
            sealed = seal_routing_key(secrets, row.id, open_routing_key(secrets, row.id, row.routing_key))
            connection.execute(sa.update(webhooks).where(webhooks.c.id == row.id).values(routing_key=sealed))
            changed += 1
    return changed


def _keys(secrets: ServerSecrets) -> list[bytes]:
    return secrets.derive_keys(_PURPOSE)


def _open(keys: list[bytes], webhook_id: str, sealed: bytes) -> str:
    nonce, ciphertext = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
    for key in keys if sealed[:1] == FORMAT else []:
        with contextlib.suppress(InvalidTag, ValueError):
            return AESGCM(key).decrypt(nonce, ciphertext, FORMAT + webhook_id.encode()).decode()
    raise RoutingKeyUnreadable
