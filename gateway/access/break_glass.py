"""Raises an alert when an admin key for emergencies is used: a metric, a log line, and a line of the audit log.

Each use counts in the metric; the audit log has at most one line in NOTED_S for a key and gateway process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import sqlalchemy as sa

from billing import revision
from billing.database import Database, DatabaseUnavailable
from gateway.access import audit_log
from gateway.access.callers import Caller
from gateway.metrics import Metrics

ACTION = "key.break_glass_use"
NOTED_S = 60.0

_log = logging.getLogger(__name__)


class BreakGlass:
    """Call `note_use` for every authorised administrative request."""

    def __init__(self, database: Database, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self._noted: dict[str, float] = {}  # key id → when its last audit line was written

    async def note_use(self, caller: Caller, request_id: str) -> None:
        """Note the use of a key for emergencies; the keys of other callers are ignored. If the audit log cannot be
        written, the key is not refused: an emergency may be the cause."""
        if not caller.break_glass:
            return
        self._metrics.break_glass_uses.inc()
        now = self._clock()
        last = self._noted.get(caller.key_id)
        if last is not None and now - last < NOTED_S:
            return
        self._noted[caller.key_id] = now
        _log.warning("keys.break_glass_use", extra={"fields": {"key": caller.key_id, "request_id": request_id}})

        def record(connection: sa.Connection) -> None:
            revision.lock(connection)
            audit_log.add_audit_line(
                connection,
                actor=caller.key_id,
                action=ACTION,
                object_id=caller.key_id,
                tenant_id=caller.tenant_id,
                request_id=request_id,
            )

        try:
            await self._database.write_in_background(record)
        except DatabaseUnavailable as error:
            self._noted.pop(caller.key_id, None)
            _log.error("keys.break_glass_unwritten", extra={"fields": {"reason": str(error)}})
