"""Records requests that were refused or failed, off their path: `note` only counts and queues in memory, and a task
writes rows and counts in groups. A database that hangs delays no answer; a row that does not fit in the queue is
dropped, and its request is still counted.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from billing.bulk import BulkInsert, Row
from billing.clock import SECOND
from billing.database import Database, DatabaseUnavailable
from gateway.error_tables import request_error_counts, request_errors
from gateway.errors import STATUS_CLIENT_LEFT
from gateway.generation.endings import Outcome, outcome_of
from gateway.log import LineError, RequestLine
from gateway.metrics import Metrics
from gateway.telemetry.request_errors import model_name

FLUSH_S = 1.0
TENANT_ROWS_PER_S = 10  # of all gateways together
WAITING_MAX = 2000  # rows of one gateway
ROWS_AT_ONCE = 500  # of one transaction
# Counts kept for a database that is unavailable; beyond it, further sets of tenant, key and code are not counted.
COUNTS_MAX = 50_000
QUARTER = 15 * 60 * SECOND
# The routes of operators: their writes are in the audit log.
_NOT_RECORDED = ("/v1/admin", "/v1/organization", "/metrics")

_log = logging.getLogger(__name__)
_INSERT = BulkInsert(request_errors, keep=True)
_COUNT_KEY = ("quarter", "tenant_id", "key_id", "outcome", "code", "gateway_id")
_UPSERT = BulkInsert(request_error_counts, on_conflict=_COUNT_KEY)


class _CountKey(NamedTuple):
    quarter: int
    tenant_id: str
    key_id: str
    outcome: Outcome
    code: str


class ErrorRecorder:
    """One per gateway: `note` each request that has ended, `run` it as a task. Not thread-safe."""

    def __init__(
        self,
        database: Database,
        gateway_id: str,
        metrics: Metrics,
        *,
        now_s: Callable[[], float],
        gateways: Callable[[], int] = lambda: 1,
    ) -> None:
        """`now_s`: Unix seconds of the database's clock. `gateways`: the number of live gateways, which share
        TENANT_ROWS_PER_S."""
        self._database = database
        self._gateway_id = gateway_id
        self._metrics = metrics
        self._now_s = now_s
        self._gateways = gateways
        self._waiting: deque[Row] = deque()
        self._counts: dict[_CountKey, tuple[int, int]] = {}  # all requests, and the settled requests among them
        self._changed: set[_CountKey] = set()
        self._second = 0  # of `_rows`
        self._rows: dict[str, int] = {}  # queued in this second, by tenant

    def note(self, line: RequestLine) -> None:
        """Count the request if it had an error and its key is known, and queue its row, without waiting."""
        record, error = line.record, line.error
        if error is None or record.tenant is None or record.key is None or error.status == STATUS_CLIENT_LEFT:
            return
        if record.route.startswith(_NOT_RECORDED):
            return
        now = self._now_s()
        outcome = _outcome(line, error)
        key = _CountKey(_quarter_of(now), record.tenant, record.key, outcome, error.code)
        if self._count(key, settled=line.times.settle_ended_s is not None):
            self._metrics.request_errors.labels(outcome, error.code).inc()
        if (why := self._why_dropped(record.tenant, int(now))) is not None:
            self._metrics.request_errors_dropped.labels(why).inc()
            return
        self._waiting.append(self._row(line, error, outcome, int(now * SECOND)))

    def _count(self, key: _CountKey, *, settled: bool) -> bool:
        if key not in self._counts and len(self._counts) >= COUNTS_MAX:
            self._metrics.request_errors_dropped.labels("uncounted").inc()
            return False
        requests, with_usage = self._counts.get(key, (0, 0))
        self._counts[key] = requests + 1, with_usage + settled
        self._changed.add(key)
        return True

    def _why_dropped(self, tenant_id: str, second: int) -> str | None:
        """Why the row of a request is not stored; None: it is, and counts in this second."""
        if second != self._second:
            self._second, self._rows = second, {}
        rows = self._rows.get(tenant_id, 0)
        if rows >= max(1, TENANT_ROWS_PER_S // max(1, self._gateways())):
            return "rate"
        if len(self._waiting) >= WAITING_MAX:
            return "full"
        self._rows[tenant_id] = rows + 1
        return None

    def _row(self, line: RequestLine, error: LineError, outcome: Outcome, at: int) -> Row:
        record, caller = line.record, line.caller
        values = {
            "request_id": record.request_id,
            "at": at,
            "duration_s": line.age_s(),
            "tenant_id": record.tenant,
            "project_id": None if caller is None else caller.project_id,
            "key_id": record.key,
            "model": model_name(line.model_asked),
            "tier": record.tier or ("" if caller is None else caller.tier),
            "route": record.route[:100],
            "outcome": outcome,
            "status": error.status,
            "code": error.code,
            "param": error.param,
            "limit_name": error.limit_name,
            "limit_value": error.limit_value,
            "message": error.message,
            "retry_after_s": error.retry_after_s,
        }
        return [values[name] for name in _INSERT.columns]

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
            except DatabaseUnavailable as error:
                _log.warning("request_errors.unwritten", extra={"fields": {"reason": str(error)}})
            except Exception:  # noqa: BLE001 - a refused row must not end the gateway
                # Rows that the database refuses would be refused again. The gateway serves without them.
                _log.exception("request_errors.dropped", extra={"fields": {"rows": len(self._waiting)}})
                self._waiting.clear()
                self._changed.clear()

    async def flush(self) -> None:
        """Write the counts that changed and all rows that wait, ROWS_AT_ONCE in a transaction. Raises
        DatabaseUnavailable; the next flush then repeats the writes, and rows that were written do not change."""
        # The next flush writes the rows and counts that a flood adds meanwhile.
        for _ in range(math.ceil(len(self._waiting) / ROWS_AT_ONCE) or bool(self._changed)):
            rows = [self._waiting[number] for number in range(min(ROWS_AT_ONCE, len(self._waiting)))]
            changed, self._changed = self._changed, set()
            counts: list[Row] = [(*key, self._gateway_id, *self._counts[key]) for key in changed]

            def write(connection: sa.Connection, rows: list[Row] = rows, counts: list[Row] = counts) -> None:
                _INSERT.run(connection, rows)
                _UPSERT.run(connection, counts)

            try:
                await self._database.write_in_background(write)
            except BaseException:  # a cancellation too: at the end of the process, the last flush writes them
                self._changed |= changed
                raise
            for _ in rows:
                self._waiting.popleft()
            self._forget_written()

    def _forget_written(self) -> None:
        """Counts of earlier quarter-hours do not change any more."""
        quarter = _quarter_of(self._now_s())
        for key in [key for key in self._counts if key.quarter < quarter and key not in self._changed]:
            del self._counts[key]


def _outcome(line: RequestLine, error: LineError) -> Outcome:
    """The outcome, as in the list of requests: by the ending of a hold, else by the status."""
    by_ending = outcome_of(line.record.ending or "")
    if by_ending != "served":
        return by_ending
    return "failed" if error.status >= 500 else "refused"


def _quarter_of(now_s: float) -> int:
    return int(now_s * SECOND) // QUARTER * QUARTER
