"""The progress of batches that have not ended, cached for some seconds: each count reads an index entry for each output
of the batch, and every open page of the console lists batches again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from gateway.batches.activity import BatchActivity, activities_of
from gateway.batches.rows import BatchProgress, BatchRow, progress_of

FRESH_S = 4.0


class ProgressCache:
    """One per gateway process, used by several threads. Entries are by the id of the batch: the caller has read the row
    of each batch, and checked who may see it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[float, BatchProgress, BatchActivity]] = {}  # unended batches, by id

    def read(self, connection: sa.Connection, rows: list[BatchRow]) -> list[tuple[BatchProgress, BatchActivity]]:
        """Progress and activity of each batch, in the order of `rows`. Counts and usage of a batch that has not ended
        are at most FRESH_S seconds old; its row is the given one."""
        now = self._clock()
        with self._lock:
            self._counted = {id_: one for id_, one in self._counted.items() if now - one[0] < FRESH_S}
            known = {row.id: self._counted[row.id] for row in rows if row.ended_at is None and row.id in self._counted}
        progress = progress_of(connection, [row for row in rows if row.id not in known])
        activities = activities_of(connection, progress)
        counted = {one.row.id: (now, one, activities[one.row.id]) for one in progress}
        with self._lock:
            self._counted |= {id_: one for id_, one in counted.items() if one[1].row.ended_at is None}
        found = []
        for row in rows:
            _, counts, activity = known.get(row.id) or counted[row.id]
            found.append((msgspec.structs.replace(counts, row=row), activity))
        return found
