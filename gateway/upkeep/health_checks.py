"""Whether what this gateway needs is well: each part really asked, within a bound, and never twice at once.

It knows the parts and what is wrong with them. It must never know HTTP, and mends nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger import leases
from billing.ledger.settler import Settler
from billing.proofs import reconcile
from gateway.catalog.served_models import ServedModels
from gateway.config.file import Config
from gateway.engines.engine import Engine
from gateway.host.workers import WorkerIndex, Workers
from gateway.upkeep.revision_watch import RevisionWatch

Status = Literal["ok", "degraded", "down"]
RANK: dict[Status, int] = {"ok": 0, "degraded": 1, "down": 2}

CHECK_S_MAX = 2.0
# An answer of the database or of Redis that takes longer is told as slow.
SLOW_S = 0.25
# The newest reconciling is late after so many times its interval, and an export in the queue after so long.
RECONCILE_LATE = 3
QUEUED_S_MAX = 600
FAILED_S = 24 * 3600  # for how long a failed export is told


class HealthItem(msgspec.Struct, frozen=True, kw_only=True):
    """`since`: when this gateway process first found it so, without finding it otherwise since (Unix seconds)."""

    name: str
    status: Status
    since: int
    detail: str


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is that of the worst."""

    status: Status
    at: int
    data: list[HealthItem]
    object: Literal["list"] = "list"


Finding = tuple[Status, str]


class HealthChecks:
    """One per gateway process."""

    def __init__(
        self,
        config: Config,
        *,
        database: Database,
        watch: RevisionWatch,
        leases: leases.Leases,
        engine: Engine,
        models: ServedModels,
        siblings: Workers,
        place: WorkerIndex,
        settler: Settler,
        unrecordable: Callable[[], str | None],
    ) -> None:
        """`unrecordable`: why usage of one request more could not be recorded; None: it could."""
        self._config = config
        self._read = database.read
        self._watch = watch
        self._leases = leases
        self._client = engine
        self._base_models = models
        self._siblings = siblings
        self._place = place
        self._settler = settler
        self._unrecordable = unrecordable
        self._checks: dict[str, Callable[[], Awaitable[Finding]]] = {
            "database": self._database,
            "redis": self._redis,
            "engine": self._engine,
            "models": self._models,
            "gateways": self._gateways,
            "workers": self._workers,
            "journal": self._journal,
            "books": self._books,
            "exports": self._exports,
        }
        # A check that does not end is waited for again, and not begun again.
        self._running: dict[str, asyncio.Task[Finding]] = {}
        self._standing: dict[str, tuple[Status, int]] = {}

    async def report(self) -> HealthReport:
        """Takes little more than CHECK_S_MAX, whatever hangs."""
        findings = await asyncio.gather(*(self._check(name) for name in self._checks))
        now = int(time.time())
        items = []
        for name, (status, detail) in zip(self._checks, findings, strict=True):
            if name not in self._standing or self._standing[name][0] != status:
                self._standing[name] = status, now
            items.append(HealthItem(name=name, status=status, since=self._standing[name][1], detail=detail))
        return HealthReport(status=max((item.status for item in items), key=RANK.__getitem__), at=now, data=items)

    async def _check(self, name: str) -> Finding:
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.create_task(self._find(name), name=f"health-{name}")
            task.add_done_callback(lambda _: self._running.pop(name))
        done, _ = await asyncio.wait([task], timeout=CHECK_S_MAX)
        return task.result() if done else ("down", f"no answer within {CHECK_S_MAX:g} s")

    async def _find(self, name: str) -> Finding:
        try:
            return await self._checks[name]()
        except DatabaseUnavailable as error:
            return "down", f"the database is away: {error}"
        except OSError as error:
            return "down", str(error) or type(error).__name__

    # ---- the parts

    async def _database(self) -> Finding:
        began = time.perf_counter()
        await self._read(lambda connection: connection.execute(sa.select(1)).scalar_one())
        if not self._watch.fresh:
            return "down", "the revision row was not read within the last second"
        if not self._leases.held:
            return "down", "this gateway's lease has run out"
        return _timed(time.perf_counter() - began)

    async def _redis(self) -> Finding:
        url = self._config.redis.url
        if not url:
            return "ok", "not configured: each gateway limits by itself"
        import redis.asyncio
        import redis.exceptions

        began = time.perf_counter()
        client = redis.asyncio.Redis.from_url(url, socket_timeout=CHECK_S_MAX, socket_connect_timeout=CHECK_S_MAX)
        try:
            await client.ping()
        except redis.exceptions.RedisError as error:
            return "degraded", f"each gateway limits by itself: {error}"
        finally:
            await client.aclose()
        return _timed(time.perf_counter() - began)

    async def _engine(self) -> Finding:
        engine = self._client
        beat = engine.last_heartbeat
        if not engine.ready:
            return "down", "no engine is connected and loaded"
        if engine.stuck:
            return "down", "the engine answers, and its loop does not move"
        if beat is None:
            return "ok", "connected, and not heard of yet"
        return "ok", f"step {beat.step}; {beat.running} requests run, {beat.waiting} wait"

    async def _models(self) -> Finding:
        refused = self._base_models.all_refused()
        served = len(self._base_models.active()) - len(refused)
        if not refused:
            return "ok", f"{served} are served"
        each = "; ".join(f"{name}: {reason}" for name, reason in sorted(refused.items()))
        return "degraded" if served else "down", f"{len(refused)} cannot be loaded, {served} are served: {each}"

    async def _gateways(self) -> Finding:
        renew_s = self._config.lease.renew_s

        def count(connection: sa.Connection) -> tuple[int, int]:
            now, row = database_now(connection), tables.leases.c
            held = sa.select(sa.func.count()).where(row.expires_at > now)
            return leases.live(connection, now, renew_s), int(connection.execute(held).scalar_one())

        live, held = await self._read(count)
        if held > live:
            return (
                "degraded",
                f"{live} renew their leases, {held - live} do not: what those hold is freed as they expire",
            )
        return "ok", f"{live} renew their leases"

    async def _workers(self) -> Finding:
        silent = await self._siblings.silent_workers()
        workers = self._place.workers
        if silent:
            which = ", ".join(map(str, silent))
            return "degraded", f"{len(silent)} of {workers} workers of this host do not answer: {which}"
        return "ok", f"{workers} on this host"

    async def _journal(self) -> Finding:
        if (why := self._unrecordable()) is not None:
            return "down", why
        used, limit = self._settler.bytes_used, self._config.journal.bytes_max
        if used:
            return "degraded", f"{used} of {limit} bytes wait for the database"
        return "ok", "empty"

    async def _books(self) -> Finding:
        def read(connection: sa.Connection) -> tuple[reconcile.OpenFindings, int]:
            return reconcile.open_findings(connection), database_now(connection)

        standing, now = await self._read(read)
        if standing.imbalances or standing.overshot:
            return "down", f"{standing.imbalances} sums differ, {standing.overshot} budgets hold more than their limit"
        if standing.at is None:
            return "ok", "not reconciled yet"
        age_s = (now - standing.at) // SECOND
        if age_s > RECONCILE_LATE * self._config.billing.reconcile_s:
            return "degraded", f"reconciled {age_s} s ago, which is late"
        return "ok", f"reconciled {age_s} s ago, and sound"

    async def _exports(self) -> Finding:
        row = tables.exports.c

        def count(connection: sa.Connection) -> tuple[int, int, int, int]:
            now = database_now(connection)
            late = sa.and_(row.state == "queued", row.created_at < now - QUEUED_S_MAX * SECOND)
            failed = sa.and_(row.state == "failed", row.finished_at >= now - FAILED_S * SECOND)
            wheres = (row.state == "queued", row.state == "running", late, failed)
            found = [connection.execute(sa.select(sa.func.count()).where(where)).scalar_one() for where in wheres]
            return found[0], found[1], found[2], found[3]

        queued, running, late, failed = await self._read(count)
        if late or failed:
            return "degraded", f"{late} wait for over {QUEUED_S_MAX} s, {failed} failed within a day"
        return "ok", f"{running} run, {queued} wait"


def _timed(seconds: float) -> Finding:
    detail = f"answered within {seconds * 1000:.1f} ms"
    return ("ok", detail) if seconds <= SLOW_S else ("degraded", f"{detail}, which is slow")
