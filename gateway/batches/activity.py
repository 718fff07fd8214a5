"""How fast the lines of batches end, and when each batch is expected to end at that rate."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.output_tables import line_outputs
from gateway.batches.rows import BatchProgress, BatchRow, count_errors

RATE_S = 60  # over which the rate is measured


class BatchActivity(msgspec.Struct, frozen=True):
    """`lines_per_s`: over the last RATE_S seconds, 0 for a batch that has ended. `expected_end_at` in microseconds UTC;
    None: the batch has ended, or no line of it ended lately. `errors`: lines by the code of their error."""

    lines_per_s: float
    expected_end_at: int | None
    errors: dict[str, int]


def activities_of(connection: sa.Connection, found: list[BatchProgress]) -> dict[str, BatchActivity]:
    """The activity of each batch, by the batch's id."""
    now = database_now(connection)
    unended = [progress.row.id for progress in found if progress.row.ended_at is None]
    recent, errors = _recent_lines(connection, unended, now), count_errors(connection, unended)
    activities = {}
    for progress in found:
        row = progress.row
        if row.ended_at is not None:
            activities[row.id] = BatchActivity(0.0, None, row.error_counts or {})
            continue
        rate = recent.get(row.id, 0) / measured_s(row, now)
        left = row.lines - progress.succeeded - progress.failed
        expected = now + round(left / rate * SECOND) if rate and row.status == "in_progress" else None
        activities[row.id] = BatchActivity(rate, expected, errors[row.id])
    return activities


def measured_s(row: BatchRow, now: int) -> float:
    """Seconds of a batch's run over which its rate is measured; `now` in microseconds UTC."""
    return min(RATE_S, max(1.0, (now - (row.in_progress_at or now)) / SECOND))


def _recent_lines(connection: sa.Connection, batch_ids: list[str], now: int) -> dict[str, int]:
    """The lines of each batch that ended within the last RATE_S seconds."""
    recent = sa.select(line_outputs.c.batch_id, sa.func.count()).where(
        line_outputs.c.batch_id.in_(batch_ids),
        line_outputs.c.is_error.in_((False, True)),  # so that the index is read
        line_outputs.c.created_at > now - RATE_S * SECOND,
    )
    return {str(id_): int(count) for id_, count in connection.execute(recent.group_by(line_outputs.c.batch_id))}
