"""Folds usage rows into the quarter-hours of SLA reports while the gateway serves. It changes nothing in the books."""

from __future__ import annotations

import asyncio
import logging

from billing.books import rollups, sla
from billing.books.rollups import FoldResult
from billing.database import Database, DatabaseUnavailable
from gateway.metrics import Metrics
from gateway.upkeep.bookkeeper import FOLD_S, FOLD_SQLITE_MAX

_log = logging.getLogger(__name__)


class SlaFolder:
    """One per gateway. Any number of gateways may run it on one database: each row is folded once."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self._limit = FOLD_SQLITE_MAX if database.is_sqlite else rollups.FOLD_MAX

    async def run(self, every_s: float = FOLD_S) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.fold_rows()
            except DatabaseUnavailable as error:
                _log.warning("sla.database_unavailable", extra={"fields": {"reason": str(error)}})
            except Exception:  # noqa: BLE001 - requests are served even if rows cannot be folded
                self._metrics.errors.inc()
                _log.exception("sla.stuck")
            await asyncio.sleep(every_s)

    async def fold_rows(self) -> None:
        """Fold all usage. Raises DatabaseUnavailable."""
        while (await self._fold_some()).more:
            pass

    async def _fold_some(self) -> FoldResult:
        if not self._database.is_sqlite:
            return await self._database.write_in_background(lambda c: sla.fold_sla(c, limit=self._limit))
        counted = await self._database.report(lambda c: sla.count_rows(c, self._limit))
        return await self._database.write_in_background(lambda c: sla.store_counts(c, counted))
