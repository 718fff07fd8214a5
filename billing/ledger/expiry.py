"""The ledger checked against itself: holds of dead gateways expire, and every sum is computed again from the rows.

It trusts no counter. It may end a hold only as expired, and only when its gateway's lease is dead.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import PriceBook
from billing.clock import SECOND, Clock, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger.leases import LEASE_S, is_live
from billing.ledger.messages import Expire
from billing.ledger.transaction import LedgerTransaction

EXPIRE_GROUP_MAX = 500
AUDIT_S = 5.0
FINDINGS_MAX = 100

_log = logging.getLogger("laneway.billing")
_holds = tables.holds
_leases = tables.leases
_audits = tables.audits

_LEASES = sa.select(_leases.c.gateway_id, _leases.c.renewed_at, _leases.c.expires_at)
_LOCK_LEASES = _LEASES.order_by(_leases.c.gateway_id).with_for_update()
_LOCK_AUDITS = sa.select(_audits.c.seen_at, _audits.c.unbroken_from).with_for_update()
_OPEN_HOLDS = sa.select(_holds.c.request_id).where(_holds.c.state == "held").order_by(_holds.c.request_id)


def expire_dead(connection: sa.Connection, gateway_id: str, now: int, limit: int = EXPIRE_GROUP_MAX) -> list[str]:
    """Expire at most `limit` holds whose gateway has no lease that lives at `now`; return their request ids. The
    auditor's own gateway is alive. The lease rows stay locked, so a gateway that comes back does so before or after."""
    rows = connection.execute(_LOCK_LEASES).all()
    alive = [row.gateway_id for row in rows if is_live(row.renewed_at, row.expires_at, now)] + [gateway_id]
    # Locked as they are read: one that settles meanwhile is no orphan any more.
    orphans = _OPEN_HOLDS.where(_holds.c.gateway_id.not_in(alive)).limit(limit).with_for_update()
    request_ids = list(connection.execute(orphans).scalars())
    if request_ids:
        group = LedgerTransaction(gateway_id, 0.0, lambda _connection: now, PriceBook())
        group.run(connection, [], [Expire(request_id) for request_id in request_ids])
    if len(request_ids) < limit:
        connection.execute(sa.delete(_leases).where(_leases.c.gateway_id.not_in(alive)))
    return request_ids


class Auditor:
    """Expires the holds of dead gateways. After the database was away, or its clock jumped, living gateways look dead
    too: then it waits one lease, so that they can renew first. What all auditors saw of the database is in one row, so
    one that starts need not wait where others watched; and on SQLite none waits: there the file lock proves that no
    other gateway lives."""

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
                _log.warning("audit: the database is away: %s", error)
            await asyncio.sleep(every_s)

    async def run_once(self) -> list[str]:
        """Expire what may be expired now; return the request ids. Raises DatabaseUnavailable."""
        expired: list[str] = []
        while True:
            batch = await self._database.write(self._expire)
            expired += batch
            if batch:
                _log.warning("audit: expired %d holds of dead gateways", len(batch))
            if len(batch) < EXPIRE_GROUP_MAX:
                return expired

    def _expire(self, connection: sa.Connection) -> list[str]:
        if not self._database.is_sqlite and self._watched(connection) < self._lease:
            return []
        return expire_dead(connection, self._gateway_id, self._clock(connection))

    def _watched(self, connection: sa.Connection) -> int:
        """Microseconds for which auditors have seen the database without a gap of half a lease. This is a look too."""
        seen_at, unbroken_from = connection.execute(_LOCK_AUDITS).one()
        now = self._clock(connection)  # with the row locked: no other auditor's look lies after it
        if abs(now - seen_at) > self._lease / 2:
            unbroken_from = now
        connection.execute(sa.update(_audits).values(seen_at=now, unbroken_from=unbroken_from))
        return int(now - unbroken_from)


class Findings(msgspec.Struct, frozen=True):
    """What does not add up; all empty or 0 in a sound ledger. Lists are cut at FINDINGS_MAX."""

    unbalanced: list[str]  # transactions whose entries do not sum to 0
    cost_difference_picos: int  # Σ usage cost + Σ corrections − Σ receivable entries
    wrong_counters: list[str]  # budget windows that differ from their holds
    overshot: list[str]  # windows of hard budgets over their limit, as it was when it was reached
    oversettled: list[str]  # settled above what was held, or a usage row without its settled hold
    unrecorded: list[str]  # settled holds without a usage row
    orphaned: list[str]  # open holds of gateways without a living lease
    open_holds: int  # not a fault while requests run

    @property
    def sound(self) -> bool:
        """Everything that is a fault at any moment is absent. `orphaned` may be a passing state."""
        faults = (self.unbalanced, self.wrong_counters, self.overshot, self.oversettled, self.unrecorded)
        return not any(faults) and self.cost_difference_picos == 0


def reconcile(connection: sa.Connection, clock: Clock = database_now) -> Findings:
    """Recompute everything. Use it in `Database.read`: it needs one unchanging view."""
    usage, entries = tables.usage, tables.entries
    unbalanced = (
        sa.select(entries.c.transaction_id)
        .group_by(entries.c.transaction_id)
        .having(sa.func.sum(entries.c.amount_picos) != 0)
    )
    costs = sa.select(sa.func.coalesce(sa.func.sum(usage.c.cost_picos), 0))
    corrected = sa.select(sa.func.coalesce(sa.func.sum(tables.corrections.c.picos), 0))
    received = sa.select(sa.func.coalesce(sa.func.sum(entries.c.amount_picos), 0)).where(
        entries.c.account == "receivable"
    )
    oversettled = (
        sa.select(usage.c.request_id)
        .join(_holds, _holds.c.request_id == usage.c.request_id)
        .where(
            sa.or_(
                _holds.c.state != "settled",
                _holds.c.settled_picos != usage.c.cost_picos,
                usage.c.cost_picos > _holds.c.hold_picos,
            )
        )
    )
    unrecorded = (
        sa.select(_holds.c.request_id)
        .outerjoin(usage, usage.c.request_id == _holds.c.request_id)
        .where(_holds.c.state == "settled", usage.c.request_id.is_(None))
    )
    alive = sa.select(_leases.c.gateway_id).where(_leases.c.expires_at > clock(connection))
    orphaned = _OPEN_HOLDS.where(_holds.c.gateway_id.not_in(alive))
    open_holds = sa.select(sa.func.count()).select_from(_holds).where(_holds.c.state == "held")
    wrong, overshot = _check_counters(connection)
    return Findings(
        unbalanced=list(connection.execute(unbalanced.limit(FINDINGS_MAX)).scalars()),
        cost_difference_picos=int(connection.execute(costs).scalar_one())
        + int(connection.execute(corrected).scalar_one())
        - int(connection.execute(received).scalar_one()),
        wrong_counters=wrong,
        overshot=overshot,
        oversettled=list(connection.execute(oversettled.limit(FINDINGS_MAX)).scalars()),
        unrecorded=list(connection.execute(unrecorded.limit(FINDINGS_MAX)).scalars()),
        orphaned=list(connection.execute(orphaned.limit(FINDINGS_MAX)).scalars()),
        open_holds=int(connection.execute(open_holds).scalar_one()),
    )


def _check_counters(connection: sa.Connection) -> tuple[list[str], list[str]]:
    """Windows whose counters differ from the holds counted in them, and those over their limit."""
    budgets, windows, charges, usage = tables.budgets, tables.budget_windows, tables.hold_charges, tables.usage
    is_open = _holds.c.state == "held"
    in_tokens = budgets.c.unit == "tokens"
    held = sa.case(
        (sa.and_(is_open, in_tokens), _holds.c.prompt_tokens + _holds.c.max_tokens),
        (is_open, _holds.c.hold_picos),
        else_=0,
    )
    posted = sa.case(
        (usage.c.request_id.is_(None), 0),
        (in_tokens, usage.c.prompt_tokens + usage.c.completion_tokens),
        else_=usage.c.cost_picos,
    )
    recomputed = (
        sa.select(charges.c.budget_id, charges.c.window_start, sa.func.sum(held), sa.func.sum(posted))
        .join(budgets, budgets.c.id == charges.c.budget_id)
        .join(_holds, _holds.c.request_id == charges.c.request_id)
        .outerjoin(usage, usage.c.request_id == charges.c.request_id)
        .group_by(charges.c.budget_id, charges.c.window_start)
    )
    true = {(row[0], row[1]): (int(row[2]), int(row[3])) for row in connection.execute(recomputed)}
    stored = sa.select(windows, budgets.c.limit_amount, budgets.c.kind).join(
        budgets, budgets.c.id == windows.c.budget_id
    )
    wrong: list[str] = []
    overshot: list[str] = []
    for row in connection.execute(stored):
        key = (row.budget_id, row.window_start)
        if true.pop(key, (0, 0)) != (row.held, row.posted):
            wrong.append(f"{row.budget_id}@{row.window_start}")
        if row.kind == "hard" and row.held + row.posted > max(row.limit_amount, row.excused):
            overshot.append(f"{row.budget_id}@{row.window_start}")
    wrong += [f"{budget_id}@{start}" for budget_id, start in true]
    return wrong[:FINDINGS_MAX], overshot[:FINDINGS_MAX]
