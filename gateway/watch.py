"""Watches the revision row: every administrative write moves it, and what this process cached is then dropped.

While the row cannot be read the process does not know what was revoked, so it is not fresh and admits nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
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
FRESHEN_S = 1.0  # whoever comes while it is not fresh waits so long for the next look

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
        self._unreadable = False  # by the last look
        self._wanted = asyncio.Event()  # somebody waits for the next look
        self._looked = asyncio.Event()  # set after the look that is next, or in flight

    @property
    def fresh(self) -> bool:
        """Whether what was revoked up to `stale_s` ago is known here."""
        return self._read_at is not None and self._clock() - self._read_at <= self._stale_s

    async def freshen(self, wait_s: float = FRESHEN_S) -> bool:
        """Whether it is fresh, if need be after the next look. A loop that stood still, for a thousand who came at
        once say, finds its last look too old though the database is well. Where that is away it says so at once."""
        deadline = self._clock() + wait_s
        while not self.fresh:
            left_s = deadline - self._clock()
            if self._unreadable or left_s <= 0:
                return False
            self._wanted.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), left_s)
        return True

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
            self._wanted.clear()
            try:
                await self.poll()
                self._unreadable = False
            except DatabaseUnavailable as error:
                self._unreadable = True
                self._unread.warn(reason=str(error))
            looked, self._looked = self._looked, asyncio.Event()
            looked.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._interval_s)

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
