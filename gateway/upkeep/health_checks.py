"""Health checks: whether each part that this gateway needs works now. A check has a time limit, and does not run twice
at the same time.

Nothing here knows HTTP, and nothing here repairs a part.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import connectors
from billing.books.connectors import ConnectorState
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger import leases
from billing.ledger.settler import Settler
from billing.proofs import reconcile
from gateway.catalog.served_models import ServedModels
from gateway.config.file import Config
from gateway.fleet.members import MemberGroup
from gateway.host.stop_state import StopState
from gateway.host.workers import WorkerIndex, Workers
from gateway.telemetry.tracing import NOT_CONFIGURED
from gateway.upkeep.revision_watch import RevisionWatch
from gateway.views.engines import certificate_expiries, count_engines, describe_unready, why_no_engine_serves
from gateway.views.token_ages import describe_silent, silent_models

Status = Literal["ok", "degraded", "down"]
RANK: dict[Status, int] = {"ok": 0, "degraded": 1, "down": 2}

GIB = 1024**3
CHECK_S_MAX = 2.0
# An answer of the database or of Redis that takes longer is reported as slow.
SLOW_S = 0.25
RECONCILE_LATE = 3  # intervals after which the newest reconciliation is late
QUEUED_S_MAX = 600  # after this time, an export in the queue is late
FAILED_S = 24 * 3600  # a failed export is reported for this time
DRAIN_LATE_S = 600.0  # a gateway that drains for longer is reported
CONNECTOR_LATE_S = 1800  # usage that was due for longer and is refused is reported
CERTIFICATE_S = 14 * 24 * 3600  # a certificate that expires within this time is reported


class HealthItem(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one part. `since`: when this gateway process first found the present status (Unix seconds)."""

    name: str
    status: Status
    since: int
    detail: str


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """The health of all parts; `status` is the worst of them."""

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
        engine: MemberGroup,
        models: ServedModels,
        workers: Workers,
        place: WorkerIndex,
        settler: Settler,
        unrecordable: Callable[[], str | None],
        untraced: Callable[[], str | None],
        stopping: StopState,
    ) -> None:
        """`unrecordable`: why the usage of one more request could not be recorded; None: it can be. `untraced`: why
        traces are not exported; None: they are, or are not configured."""
        self._config = config
        self._read = database.read
        self._watch = watch
        self._leases = leases
        self._fleet = engine
        self._base_models = models
        self._workers_of_host = workers
        self._place = place
        self._settler = settler
        self._unrecordable = unrecordable
        self._untraced = untraced
        self._stopping = stopping
        self._checks: dict[str, Callable[[], Awaitable[Finding]]] = {
            "database": self._database,
            "redis": self._redis,
            "engine": self._engine,
            "models": self._models,
            "gateways": self._gateways,
            "workers": self._workers,
            "journal": self._journal,
            "disk": self._disk,
            "certificates": self._certificates,
            "drain": self._drain,
            "books": self._books,
            "exports": self._exports,
            "connectors": self._connectors,
            "traces": self._traces,
        }
        # The next report waits for a check that still runs, and does not start it a second time.
        self._running: dict[str, asyncio.Task[Finding]] = {}
        self._status_since: dict[str, tuple[Status, int]] = {}
        self._newest: HealthReport | None = None

    async def recent_report(self, age_s_max: float) -> HealthReport:
        """The newest report, or a new report if the newest is older than `age_s_max` seconds."""
        if self._newest is None or time.time() - self._newest.at > age_s_max:
            return await self.report()
        return self._newest

    async def report(self) -> HealthReport:
        """Check all parts. Takes little more than CHECK_S_MAX even if a check hangs."""
        findings = await asyncio.gather(*(self._check(name) for name in self._checks))
        now = int(time.time())
        items = []
        for name, (status, detail) in zip(self._checks, findings, strict=True):
            if name not in self._status_since or self._status_since[name][0] != status:
                self._status_since[name] = status, now
            items.append(HealthItem(name=name, status=status, since=self._status_since[name][1], detail=detail))
        worst = max((item.status for item in items), key=RANK.__getitem__)
        self._newest = HealthReport(status=worst, at=now, data=items)
        return self._newest

    async def _check(self, name: str) -> Finding:
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.create_task(self._find(name), name=f"health-{name}")
            task.add_done_callback(lambda _: self._running.pop(name))
        done, _ = await asyncio.wait([task], timeout=CHECK_S_MAX)
        return task.result() if done else ("down", f"the check did not end within {CHECK_S_MAX:g} s")

    async def _find(self, name: str) -> Finding:
        try:
            return await self._checks[name]()
        except DatabaseUnavailable as error:
            return "down", f"the database is unavailable: {error}"
        except OSError as error:
            return "down", str(error) or type(error).__name__

    # ---- the parts

    async def _database(self) -> Finding:
        began = time.perf_counter()
        await self._read(lambda connection: connection.execute(sa.select(1)).scalar_one())
        if not self._watch.fresh:
            return "down", "the gateway has not read the revision for over a second, so it cannot know of revoked keys"
        if fault := self._leases.write_fault:
            return "down", f"{fault}, so no budget can be held"
        if not self._leases.held:
            return "down", "the lease of this gateway has expired, so it may not hold budgets"
        return _timed(time.perf_counter() - began)

    async def _redis(self) -> Finding:
        url = self._config.redis.url
        if not url:
            return "ok", "Redis is not configured: each gateway counts rate limits alone"
        import redis.asyncio
        import redis.exceptions

        began = time.perf_counter()
        client = redis.asyncio.Redis.from_url(url, socket_timeout=CHECK_S_MAX, socket_connect_timeout=CHECK_S_MAX)
        try:
            await client.ping()
        except redis.exceptions.RedisError as error:
            return "degraded", f"Redis is unavailable, so each gateway counts rate limits alone: {error}"
        finally:
            await client.aclose()
        return _timed(time.perf_counter() - began)

    async def _engine(self) -> Finding:
        fleet = self._fleet
        unready = describe_unready(fleet)
        faults = [f"not ready: {unready}"] if unready else []
        if (stale_s := fleet.roster_stale_s) is not None:
            faults.append(f"the source of the list of engines has not answered for {stale_s:.0f} s")
        if (why := why_no_engine_serves(fleet)) is not None:
            return "down", "; ".join([why, *faults])
        counts = str(count_engines(fleet))
        if faults:
            return "degraded", "; ".join([counts, *faults])
        beat = fleet.last_heartbeat
        if beat is None:
            return "ok", f"{counts}; none has reported yet"
        return "ok", f"{counts}, with {beat.running} requests running and {beat.waiting} waiting"

    async def _models(self) -> Finding:
        refused, silent = self._base_models.all_refused(), describe_silent(silent_models(self._fleet))
        served = len(self._base_models.active()) - len(refused)
        if silent:
            each = "; ".join(f"{name}: {why}" for name, why in silent.items())
            return "degraded" if served > len(silent) else "down", f"{len(silent)} base models make no tokens: {each}"
        if not refused:
            return "ok", f"{_many(served, 'base model')} {'is' if served == 1 else 'are'} served"
        each = "; ".join(f"{name}: {reason}" for name, reason in sorted(refused.items()))
        return (
            "degraded" if served else "down",
            f"{len(refused)} base models cannot be loaded, {served} are served: {each}",
        )

    async def _gateways(self) -> Finding:
        renew_s = self._config.lease.renew_s

        def count(connection: sa.Connection) -> tuple[int, int]:
            now, row = database_now(connection), tables.leases.c
            held = sa.select(sa.func.count()).where(row.expires_at > now)
            return leases.count_live_gateways(connection, now, renew_s), int(connection.execute(held).scalar_one())

        live, held = await self._read(count)
        if held > live:
            return (
                "degraded",
                f"{live} gateways renew their leases, {held - live} do not: their holds expire with the leases",
            )
        return "ok", "1 gateway renews its lease" if live == 1 else f"{live} gateways renew their leases"

    async def _workers(self) -> Finding:
        silent = await self._workers_of_host.silent_workers()
        workers = self._place.workers
        if silent:
            which = ", ".join(map(str, silent))
            return "degraded", f"{len(silent)} of {workers} workers of this host do not answer: {which}"
        return "ok", "the worker of this host answers" if workers == 1 else f"all {workers} workers of this host answer"

    async def _journal(self) -> Finding:
        if (why := self._unrecordable()) is not None:
            return "down", why
        used, limit = self._settler.bytes_used, self._config.journal.bytes_max
        if used:
            return "degraded", f"{used} bytes of endings in the journal wait for the database; the limit is {limit}"
        return "ok", "the journal is empty"

    async def _disk(self) -> Finding:
        return disk_finding(self._settler.disk_free, self._config.journal.disk_free_min_bytes)

    async def _certificates(self) -> Finding:
        files = self._config.certificates
        if files is None:
            return "ok", "no certificates between gateway and engines are configured"
        return certificates_finding(certificate_expiries(self._fleet, files), time.time())

    async def _drain(self) -> Finding:
        if not self._stopping.is_stopping:
            return "ok", "the gateway does not drain"
        if self._stopping.phase == "drained":
            return "ok", "the gateway is drained"
        drained_s = self._stopping.seconds
        detail = f"the gateway has been draining for {drained_s:.0f} s"
        return ("degraded" if drained_s > DRAIN_LATE_S else "ok"), detail

    async def _books(self) -> Finding:
        def read(connection: sa.Connection) -> tuple[reconcile.OpenFindings, int]:
            return reconcile.open_findings(connection), database_now(connection)

        findings, now = await self._read(read)
        if findings.imbalances or findings.overshot:
            return (
                "down",
                f"the books have {findings.imbalances} imbalances, and {findings.overshot} budgets were exceeded",
            )
        if findings.at is None:
            return "ok", "the books were not reconciled yet"
        age_s = (now - findings.at) // SECOND
        if age_s > RECONCILE_LATE * self._config.billing.reconcile_s:
            return "degraded", f"the last reconciliation was {age_s} s ago, which is late"
        return "ok", f"the books were reconciled {age_s} s ago, without imbalance"

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
            return (
                "degraded",
                f"{late} exports have waited for over {QUEUED_S_MAX} s, and {failed} failed in the last 24 hours",
            )
        return "ok", f"{_many(running, 'export')} {'is' if running == 1 else 'are'} running, {queued} waiting"

    async def _connectors(self) -> Finding:
        sections = self._config.connectors
        if not sections:
            return "ok", "no connectors are configured"
        names = {section.name for section in sections}
        after_s = max(section.after_s for section in sections)
        accounts = [section.name for section in sections if section.needs_account]
        states = await self._read(
            lambda c: connectors.list_connector_states(c, after_s=after_s, needs_account=accounts)
        )
        return connectors_finding([state for state in states if state.name in names], after_s)

    async def _traces(self) -> Finding:
        endpoint = self._config.telemetry.endpoint
        if not endpoint:
            return "ok", NOT_CONFIGURED
        if (why := self._untraced()) is not None:
            return "degraded", why
        return "ok", f"traces are exported to {endpoint}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _timed(seconds: float) -> Finding:
    detail = f"the answer took {seconds * 1000:.1f} ms"
    return ("ok", detail) if seconds <= SLOW_S else ("degraded", f"{detail}, which is slow")


def connectors_finding(states: Sequence[ConnectorState], after_s: float) -> Finding:
    """Degraded where usage waits for longer than CONNECTOR_LATE_S, or needs an operator."""
    faults = []
    for one in states:
        if one.stuck:
            faults.append(f"{one.name}: {one.stuck} amounts are stuck: {one.stuck_reason}")
        elif one.last_error is not None and one.lag_s > after_s + CONNECTOR_LATE_S:
            faults.append(f"{one.name} is {one.lag_s} s behind: {one.last_error}")
        elif one.without_account:
            faults.append(f"{one.name}: {one.without_account} tenants with usage have no account of it")
    if faults:
        return "degraded", "; ".join(faults)
    waiting = sum(one.waiting for one in states)
    return "ok", f"{len(states)} connectors push usage, {waiting} amounts are waiting"


def disk_finding(free: int, least: int) -> Finding:
    """The finding for a disk with `free` bytes; with less than `least`, no new request is admitted."""
    detail = (
        f"the disk of the journal has {free / GIB:.1f} GiB left; with less than {least / GIB:.2f} GiB no new request "
        "is admitted"
    )
    if free < least:
        return "down", detail
    return ("degraded" if free < 2 * least else "ok"), detail


def certificates_finding(expiries: Mapping[str, float], now: float) -> Finding:
    """The finding for certificates by their times of expiry, in Unix seconds; 0: the file cannot be read."""
    certificate, expires_at = min(expiries.items(), key=lambda item: item[1])
    if expires_at == 0:
        return "down", f"the certificate of {certificate} cannot be read"
    if expires_at <= now:
        return "down", f"the certificate of {certificate} has expired"
    detail = f"the first certificate, of {certificate}, expires in {(expires_at - now) / 86_400:.0f} days"
    return ("degraded" if expires_at - now < CERTIFICATE_S else "ok"), detail
