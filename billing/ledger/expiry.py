"""Ends the open holds of dead gateways: gateways without a valid lease. A hold with a checkpoint is settled with it;
the others expire."""

from __future__ import annotations

import asyncio
import logging

import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import PriceBook
from billing.clock import SECOND, Clock, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger.checkpoints import DELETED_AT_ONCE, delete_ended, endings_of_dead
from billing.ledger.leases import LEASE_S, is_live
from billing.ledger.transaction import LedgerTransaction

EXPIRE_GROUP_MAX = 500
AUDIT_S = 5.0

_log = logging.getLogger("laneway.billing")
_holds = tables.holds
_leases = tables.leases
_audits = tables.audits

_LEASES = sa.select(_leases.c.gateway_id, _leases.c.renewed_at, _leases.c.expires_at)
_LOCK_LEASES = _LEASES.order_by(_leases.c.gateway_id).with_for_update()
_LOCK_AUDITS = sa.select(_audits.c.seen_at, _audits.c.unbroken_from).with_for_update()
_OPEN_HOLDS = sa.select(_holds.c.request_id).where(_holds.c.state == "held").order_by(_holds.c.request_id)


def expire_dead(connection: sa.Connection, gateway_id: str, now: int, limit: int = EXPIRE_GROUP_MAX) -> list[str]:
    """End at most `limit` holds whose gateway has no lease that is valid at `now`; return their request ids. The
    auditing gateway `gateway_id` counts as alive. The lease rows remain locked until the transaction ends, so no
    gateway renews meanwhile."""
    rows = connection.execute(_LOCK_LEASES).all()
    alive = [row.gateway_id for row in rows if is_live(row.renewed_at, row.expires_at, now)] + [gateway_id]
    # The query locks the rows that it reads, and omits holds that were settled meanwhile.
    orphans = _OPEN_HOLDS.where(_holds.c.gateway_id.not_in(alive)).limit(limit).with_for_update()
    request_ids = list(connection.execute(orphans).scalars())
    if request_ids:
        group = LedgerTransaction(gateway_id, 0.0, lambda _connection: now, PriceBook())
        group.run(connection, [], endings_of_dead(connection, request_ids))
    if len(request_ids) < limit:
        connection.execute(sa.delete(_leases).where(_leases.c.gateway_id.not_in(alive)))
    return request_ids


class Auditor:
    """Expires the holds of dead gateways. After the database was unavailable, or its clock jumped, the leases of living
    gateways have expired too; the auditor then waits one lease, so that they can renew first. All auditors share the
    row of `audits`, which has the time since which the database was reachable without a gap. So a starting gateway does
    not wait if another gateway has audited. On SQLite no auditor waits: the file lock proves that no other gateway
    lives."""

    def __init__(
        self, database: Database, gateway_id: str, *, lease_s: float = LEASE_S, clock: Clock = database_now
    ) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._lease = round(lease_s * SECOND)
        self._clock = clock

    async def run(self, every_s: float = AUDIT_S) -> None:
        """Audit until cancelled."""
        while True:
            try:
                await self.run_once()
            except DatabaseUnavailable as error:
                _log.warning("audit: the database is unavailable: %s", error)
            await asyncio.sleep(every_s)

    async def run_once(self) -> list[str]:
        """End all holds of dead gateways that may end now; return their request ids. Raises DatabaseUnavailable."""
        expired: list[str] = []
        while True:
            batch = await self._database.write(self._expire)
            expired += batch
            if batch:
                _log.warning("audit: ended %d holds of dead gateways", len(batch))
            if len(batch) < EXPIRE_GROUP_MAX:
                break
        while await self._database.write_in_background(delete_ended) == DELETED_AT_ONCE:
            pass
        return expired

    def _expire(self, connection: sa.Connection) -> list[str]:
        if not self._database.is_sqlite and self._watched(connection) < self._lease:
            return []
        return expire_dead(connection, self._gateway_id, self._clock(connection))

    def _watched(self, connection: sa.Connection) -> int:
        """Record this audit. Returns the microseconds for which auditors have reached the database without a gap of
        half a lease."""
        seen_at, unbroken_from = connection.execute(_LOCK_AUDITS).one()
        now = self._clock(connection)  # read under the row's lock, so that no other auditor has recorded a later time
        if abs(now - seen_at) > self._lease / 2:
            unbroken_from = now
        connection.execute(sa.update(_audits).values(seen_at=now, unbroken_from=unbroken_from))
        return int(now - unbroken_from)
