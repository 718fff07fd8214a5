"""Leases: a gateway counts as alive while it renews its lease row, and its open holds expire with the lease.

SQLite allows one gateway, which holds a lock on a file beside the database; the system releases the lock when the
process ends. This module knows no request or budget.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from typing import IO

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from billing import tables
from billing.clock import SECOND, Clock, database_now
from billing.database import LOCK_TIMEOUT_S, Database, DatabaseUnavailable

LEASE_S = 60.0
RENEW_S = 5.0

_log = logging.getLogger("laneway.billing")
_leases = tables.leases


class GatewayRefused(Exception):
    """Another gateway serves from this SQLite database."""


def _extend(insert: sqlite.Insert | postgresql.Insert) -> sa.Insert:
    return insert.on_conflict_do_update(
        index_elements=[_leases.c.gateway_id],
        set_={"renewed_at": insert.excluded.renewed_at, "expires_at": insert.excluded.expires_at},
    )


_EXTEND = {"sqlite": _extend(sqlite.insert(_leases)), "postgresql": _extend(postgresql.insert(_leases))}


def extend(connection: sa.Connection, gateway_id: str, lease_s: float, now: int) -> None:
    """Create or renew this gateway's lease, so that it ends `lease_s` after `now`."""
    row = {
        "gateway_id": gateway_id,
        "acquired_at": now,
        "renewed_at": now,
        "expires_at": now + round(lease_s * SECOND),
    }
    connection.execute(_EXTEND[connection.dialect.name], row)


# Microseconds by which a living gateway's `renewed_at` may be later than the `now` of a caller that has waited for
# locks since it read the clock.
AHEAD_MAX = 2 * LOCK_TIMEOUT_S * SECOND


def is_live(renewed_at: int, expires_at: int, now: int) -> bool:
    """Whether the lease is valid at `now`. A renewal further in the future than both AHEAD_MAX and the lease's length
    means that the clock was set back and the gateway has not renewed since; such a lease counts as expired. Callers
    must first give living gateways the length of a lease to renew."""
    return now < expires_at and renewed_at <= now + max(AHEAD_MAX, expires_at - renewed_at)


def count_live_gateways(connection: sa.Connection, now: int, renew_s: float = RENEW_S) -> int:
    """The number of living gateways; rate limits are divided by it while Redis is unavailable. A gateway that missed
    three renewals does not count: it cannot reach the database, and admits no request."""
    renewed = _leases.c.renewed_at > now - round(3 * renew_s * SECOND)
    ahead = _leases.c.renewed_at > now + AHEAD_MAX  # renewed before the clock was set back
    query = sa.select(sa.func.count()).select_from(_leases).where(_leases.c.expires_at > now, renewed, ~ahead)
    return int(connection.execute(query).scalar_one())


class Leases:
    """This gateway's lease. `gateway_id` is unique per process: a restarted gateway has another id."""

    def __init__(
        self,
        database: Database,
        gateway_id: str,
        *,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        clock: Clock = database_now,
    ) -> None:
        assert 0 < renew_s < lease_s
        self._database = database
        self._gateway_id = gateway_id
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._clock = clock
        self._lock_file: IO[bytes] | None = None
        self._renewed: float | None = None

    @property
    def held(self) -> bool:
        """Whether the last renewal was less than a lease's length ago, by this process's monotonic clock."""
        return self._renewed is not None and time.monotonic() - self._renewed < self._lease_s

    @property
    def write_fault(self) -> str:
        """Why the database takes no writes, as the last one found: `Database.write_fault`."""
        return self._database.write_fault

    async def acquire(self) -> None:
        """Take the lease. Raises GatewayRefused when another process serves from this SQLite database, and
        DatabaseUnavailable."""
        if self._database.is_sqlite and self._lock_file is None:
            self._lock_file = self._take_file_lock()
        await self.renew()
        if self._lock_file is not None:
            await self._database.write(self._end_others)

    async def renew(self) -> None:
        requested_at = time.monotonic()
        await self._database.write(
            lambda connection: extend(connection, self._gateway_id, self._lease_s, self._clock(connection))
        )
        self._renewed = requested_at

    async def run(self) -> None:
        """Renew the lease every `renew_s` until cancelled, also after a failed renewal."""
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self.renew()
            except DatabaseUnavailable as error:
                fields = {"reason": str(error), "cause": error.write_fault}
                _log.warning("lease.not_renewed", extra={"fields": fields})

    async def release_lease(self) -> None:
        """Delete the lease when the gateway stops. The Auditor expires holds that are still open then."""
        delete = sa.delete(_leases).where(_leases.c.gateway_id == self._gateway_id)
        try:
            await self._database.write(lambda connection: connection.execute(delete).rowcount)
        finally:
            self._renewed = None
            if self._lock_file is not None:
                self._lock_file.close()
                self._lock_file = None

    def _take_file_lock(self) -> IO[bytes]:
        path = self._database.sqlite_path
        assert path is not None
        file = open(path.with_name(path.name + ".gateway-lock"), "wb")  # noqa: SIM115 - open as long as the lease
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise GatewayRefused(
                f"another gateway serves from {path}. SQLite allows one gateway; more need PostgreSQL."
            ) from error
        return file

    def _end_others(self, connection: sa.Connection) -> None:
        """Delete all other leases: this process holds the file lock, so no other living gateway uses this database."""
        others = _leases.c.gateway_id != self._gateway_id
        connection.execute(sa.delete(_leases).where(others))
