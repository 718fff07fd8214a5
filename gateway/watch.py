"""Watches the revision row: every administrative write moves it, and what this process cached is then dropped.

While the row cannot be read the process does not know what was revoked, so it is not fresh and admits nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import sqlalchemy as sa

from billing import revision
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from gateway.log import Seldom

INTERVAL_S = 0.25
STALE_S = 1.0

_log = logging.getLogger(__name__)


class RevisionWatch:
    """`run()` it as a task. `on_change` is awaited whenever the revision moved, and before the first `fresh`."""

    def __init__(
        self,
        database: Database,
        on_change: Callable[[], Awaitable[None]],
        *,
        interval_s: float = INTERVAL_S,
        stale_s: float = STALE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.revision: int | None = None
        self._database = database
        self._on_change = on_change
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._clock = clock
        self._polling = asyncio.Lock()  # an older reading never overtakes a newer one
        self._read_at: float | None = None
        self._database_at_s = 0.0  # what the database's clock said then
        self._unread = Seldom(_log, "revision.unread", clock=clock)
        self._told_stale = False

    @property
    def fresh(self) -> bool:
        """Whether what was revoked up to `stale_s` ago is known here."""
        return self._read_at is not None and self._clock() - self._read_at <= self._stale_s

    def now_s(self) -> float:
        """Unix seconds by the database's clock, which is one for all gateways; to be asked once it was read."""
        assert self._read_at is not None, "poll first"
        return self._database_at_s + self._clock() - self._read_at

    def note_refused(self) -> None:
        """Somebody was turned away because it is not fresh: the log says so, once until it is again, whatever keeps
        the row unread."""
        if not self._told_stale:
            self._told_stale = True
            age_s = None if self._read_at is None else round(self._clock() - self._read_at, 3)
            _log.warning("admission.stale", extra={"fields": {"revision_age_s": age_s}})

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.poll()
            except DatabaseUnavailable as error:
                self._unread.warn(reason=str(error))
            await asyncio.sleep(self._interval_s)

    async def poll(self) -> None:
        """Read the revision once: what was committed before is known here when it returns. Raises
        DatabaseUnavailable."""
        async with self._polling:
            started = self._clock()
            seen, now = await self._database.read(_read)
            if seen != self.revision:
                await self._on_change()
                self.revision = seen
            self._read_at, self._database_at_s = started, now / SECOND
            self._told_stale = self._told_stale and not self.fresh


def _read(connection: sa.Connection) -> tuple[int, int]:
    return revision.read(connection), database_now(connection)
