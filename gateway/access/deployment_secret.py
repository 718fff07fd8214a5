"""All gateways of a database share one server secret. The database has the secret's fingerprint, and every gateway
compares its own secret with the fingerprint at its start.

Behind one address, a gateway with another secret would refuse every text that another gateway encrypted.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa

from billing.clock import database_now
from gateway.config.server_secrets import ServerSecrets
from gateway.tables import server_secret as _table

_log = logging.getLogger(__name__)


class WrongSecret(Exception):
    """The file `gateway.secret_file` has no secret of this database's deployment."""

    def __init__(self) -> None:
        super().__init__(
            "gateway.secret_file is not that of the other gateways of this database. Copy the file from one of them. "
            "If no copy is left, run 'laneway secret adopt': texts that the old secret encrypted are lost then"
        )


def check_secrets(connection: sa.Connection, secrets: ServerSecrets) -> None:
    """Record the current secret if the database has no secret, or has the other secret of a rotation. Raises
    WrongSecret."""
    noted = sa.select(_table.c.fingerprint)
    known = connection.execute(noted).scalar_one()
    if not known and not _note_secret(connection, secrets, known):  # another gateway was first
        known = connection.execute(noted).scalar_one()
    if not known or known == secrets.fingerprints()[0]:
        return
    if known not in secrets.fingerprints():
        raise WrongSecret
    _note_secret(connection, secrets, known)


def adopt_secrets(connection: sa.Connection, secrets: ServerSecrets) -> None:
    """Replace the database's fingerprint by that of the current secret, without a check."""
    _note_secret(connection, secrets, connection.execute(sa.select(_table.c.fingerprint)).scalar_one())


def _note_secret(connection: sa.Connection, secrets: ServerSecrets, known: str) -> bool:
    """Returns False if another gateway has replaced the fingerprint `known` in the database."""
    new = secrets.fingerprints()[0]
    update = sa.update(_table).where(_table.c.fingerprint == known)
    changed = connection.execute(update.values(fingerprint=new, changed_at=database_now(connection))).rowcount > 0
    if changed:
        _log.info("secret.noted", extra={"fields": {"fingerprint": new[:8]}})
    return changed
