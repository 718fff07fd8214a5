"""Watches the revision row: every administrative write moves it, and what this process cached is then dropped.

While the row cannot be read the process does not know what was revoked, so it is not fresh and admits nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from billing import revision
from billing.database import Database, DatabaseUnavailable

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
        self._read_at: float | None = None

    @property
    def fresh(self) -> bool:
        """Whether what was revoked up to `stale_s` ago is known here."""
        return self._read_at is not None and self._clock() - self._read_at <= self._stale_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.poll()
            except DatabaseUnavailable as error:
                _log.warning("revision.unread", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(self._interval_s)

    async def poll(self) -> None:
        """Read the revision once. Raises DatabaseUnavailable."""
        started = self._clock()
        seen = await self._database.read(revision.read)
        if seen != self.revision:
            await self._on_change()
            self.revision = seen
        self._read_at = started
