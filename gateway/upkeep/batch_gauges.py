"""Gauges of batches: of this gateway's worker whenever /metrics is read, and of all batches that have not ended, which
one worker process of each host counts in the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.output_tables import line_outputs
from gateway.batch_tables import batches
from gateway.batches.activity import activities_of
from gateway.batches.rows import COLUMNS, BatchProgress, batch_of, count_outputs
from gateway.batches.worker import BatchWorker
from gateway.metrics import Metrics

MEASURE_S = 30.0  # the count of a batch reads an index entry for each of its outputs
UNENDED_STATUSES = ("validating", "in_progress", "finalizing", "cancelling")

_log = logging.getLogger(__name__)


def measure_worker(metrics: Metrics, worker: BatchWorker) -> None:
    """Let the metrics read the worker of this process."""
    metrics.batch_lines_running.set_function(lambda: worker.outstanding)
    metrics.batch_lines_limit.set_function(lambda: worker.pace.limit)
    for outcome in ("succeeded", "failed", "unreadable"):
        metrics.batch_lines_ended.labels(outcome)


async def measure_batches(database: Database, metrics: Metrics, *, counts: bool, every_s: float = MEASURE_S) -> None:
    """Set the gauges of all batches until cancelled. `counts`: whether this process counts; otherwise it returns."""
    while counts:
        try:
            found = await database.report(read_gauges)
        except DatabaseUnavailable as error:
            _log.warning("batches.not_measured", extra={"fields": {"reason": str(error)}})
        else:
            for status in UNENDED_STATUSES:
                metrics.batches.labels(status).set(found.pop(status, 0))
            metrics.batch_lines_waiting.set(found["lines"])
            metrics.batch_age.set(found["age_s"])
            metrics.batches_late.set(found["late"])
            metrics.batch_stalled.set(found["stalled_s"])
        await asyncio.sleep(every_s)


def read_gauges(connection: sa.Connection) -> dict[str, float]:
    """Of batches that have not ended: the number by status, `lines` without an output, `age_s` of the oldest, how many
    are `late`: expected to end after their deadline, and `stalled_s`: the longest time for which no line of a running
    batch has ended."""
    now = database_now(connection)
    found = [batch_of(row) for row in connection.execute(sa.select(*COLUMNS).where(batches.c.ended_at.is_(None)))]
    ids = [row.id for row in found]
    counts = count_outputs(connection, ids)
    activities = activities_of(connection, [BatchProgress(row, *counts[row.id], 0, 0, 0, 0) for row in found])
    newest = sa.select(line_outputs.c.batch_id, sa.func.max(line_outputs.c.created_at))
    newest = newest.where(line_outputs.c.batch_id.in_(ids), line_outputs.c.is_error.in_((False, True)))
    ended_at = {row[0]: int(row[1]) for row in connection.execute(newest.group_by(line_outputs.c.batch_id))}
    stalled = [
        now - max(ended_at.get(row.id, 0), row.in_progress_at or now) for row in found if row.status == "in_progress"
    ]
    late = [row.id for row in found if (activities[row.id].expected_end_at or 0) > row.deadline_at]
    return {
        **Counter(row.status for row in found),
        "lines": sum(row.lines - sum(counts[row.id]) for row in found),
        "age_s": max([now - row.created_at for row in found], default=0) / SECOND,
        "late": len(late),
        "stalled_s": max(stalled, default=0) / SECOND,
    }
