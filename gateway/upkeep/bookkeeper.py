"""Keeps the books while the gateway serves: folds usage into the roll-ups, records the engine's token counts,
reconciles every minute, and sets the gauges of imbalances and exceeded budgets. It ends no hold and changes no ledger
entry.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

import sqlalchemy as sa

from billing.books import day_rollups, rollups
from billing.books.rollups import FoldResult
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.proofs import engine_books, reconcile
from billing.proofs.engine_books import EngineCount
from billing.proofs.reconcile import Reconciliation
from engine.protocol.frames import StatusReport
from gateway.engines.engine import Engine
from gateway.metrics import Metrics

FOLD_S = 10.0  # reports read usage that is not folded yet row by row
# SQLite has one writer at a time: holds wait while at most this many rows are folded, for some milliseconds.
FOLD_SQLITE_MAX = 500
EARLY_S = 1.0  # a gateway does not reconcile if another one did in the interval, or up to this time before its end

_log = logging.getLogger(__name__)


class Bookkeeper:
    """One per gateway. Of several gateways, the first one reconciles each minute."""

    def __init__(self, database: Database, engine: Engine, metrics: Metrics, *, every_s: float) -> None:
        self._database = database
        self._engine = engine
        self._metrics = metrics
        self._every_s = every_s

    async def run(self) -> None:
        """Run once every FOLD_S, or every `every_s` if that is shorter, until cancelled."""
        while True:
            try:
                await self.run_once()
            except DatabaseUnavailable as error:
                _log.warning("books.database_away", extra={"fields": {"reason": str(error)}})
            except Exception as error:  # noqa: BLE001 - requests are served even if rows cannot be folded
                self._metrics.errors.inc()
                self._metrics.imbalances.set(1)
                _log.critical("books.stuck", exc_info=error)
            await asyncio.sleep(min(FOLD_S, self._every_s))

    async def run_once(self) -> None:
        """Fold all usage, and reconcile if the last reconciliation is old enough. Raises DatabaseUnavailable."""
        await self._fold(rollups.fold_usage)
        if await self._database.report(self._is_due):
            await self._record_engines()
            result = await self._database.report(reconcile.reconcile_minute)
            await self._database.write_in_background(
                lambda connection: reconcile.store_reconciliation(connection, result)
            )
            _log_findings(result)
        findings = await self._database.report(reconcile.open_findings)
        self._metrics.imbalances.set(findings.imbalances)
        self._metrics.overshoot.set(findings.overshot)
        if findings.at is not None:
            self._metrics.reconciled_at.set(findings.at / SECOND)
        await self._fold(day_rollups.fold_days)  # last: after an upgrade it folds the whole history

    async def _fold(self, fold: Callable[..., FoldResult]) -> None:
        """Fold all rows. Raises DatabaseUnavailable."""
        limit = FOLD_SQLITE_MAX if self._database.is_sqlite else rollups.FOLD_MAX
        while (await self._database.write_in_background(functools.partial(fold, limit=limit))).more:
            pass

    def _is_due(self, connection: sa.Connection) -> bool:
        last = reconcile.newest_result(connection, "minute")
        if last is None:
            return True
        return database_now(connection) >= last.at + (self._every_s - min(EARLY_S, self._every_s / 2)) * SECOND

    async def _record_engines(self) -> None:
        before = await self._database.report(engine_books.ledger_count)
        counts = [count_of(report) for report in await self._engine.reports()]
        if not counts:
            return
        after = await self._database.report(engine_books.ledger_count)

        def record(connection: sa.Connection) -> None:
            for count in counts:
                engine_books.record_count(connection, before, count, after)

        await self._database.write_in_background(record)


def count_of(report: StatusReport) -> EngineCount:
    """An engine's report as billing counts it."""
    return EngineCount(
        epoch=report.epoch,
        made_tokens=report.tokens_made,
        overrun_tokens=report.tokens_overrun,
        lost_tokens=report.tokens_lost,
        idle=not report.running and not any(report.waiting.values()),
        reclaimed_tokens=report.tokens_reclaimed,
    )


def _log_findings(result: Reconciliation) -> None:
    if result.sound:
        return
    for imbalance in result.imbalances:
        fields = {
            "what": imbalance.what,
            "where": imbalance.where,
            "expected": imbalance.expected,
            "found": imbalance.found,
        }
        _log.critical("books.imbalance", extra={"fields": fields})
    for window in result.overshot:
        _log.critical("books.overshot", extra={"fields": {"window": window}})
