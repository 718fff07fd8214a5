"""Replays erasures in a database from before them: at a restore, and at every start of a gateway, since a database can
also be brought back by PostgreSQL's own tools."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from billing import revision
from gateway.access.audit_log import host_actor
from gateway.admin import erasure_file
from gateway.admin.administration import Administration
from gateway.admin.erasure_file import Erasure
from gateway.admin.writes import Actor
from gateway.config.file import Config
from gateway.tables import erasures


def replay(connection: sa.Connection, config: Config, known: Iterable[Erasure]) -> int:
    """Erase tenants again that the restored database still has. Returns the number of erasures."""
    wanted = {erasure.tenant_id: erasure for erasure in known}
    if wanted.keys() <= _erased(connection):
        return 0
    revision.lock(connection)  # gateways that start at the same time replay in turn
    done = _erased(connection)
    administration = Administration(config, Actor(host_actor()))
    missing = {tenant_id: erasure for tenant_id, erasure in wanted.items() if tenant_id not in done}
    for erasure in missing.values():
        administration.tenants.replay_erasure(connection, erasure.id, erasure.tenant_id, erasure.at)
    return len(missing)


def _erased(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(erasures.c.tenant_id)).scalars())


def replay_file(connection: sa.Connection, config: Config) -> None:
    """Replay the erasures of this host's file. Raises ErasuresUnreadable, OSError."""
    if known := erasure_file.read_erasures(config.erasures_file):
        replay(connection, config, known)
