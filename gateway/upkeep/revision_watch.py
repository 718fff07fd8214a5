"""Watches the revision, which every administrative write raises: this process then drops the cache entries that the
write concerns.

While the revision cannot be read, this process does not know of revoked keys: it is not fresh, and admits no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import sqlalchemy as sa

from billing import revision
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.revision import Change
from gateway.limits.turn_pace import RequestPace
from gateway.log import ThrottledWarning

INTERVAL_S = 0.25
STALE_S = 1.0
# A read without an answer for LOOK_S means that the database is unavailable. The time is counted in LOOK_STEPS timers,
# one after the other, so that a stall of this process counts as one of them.
LOOK_S = 1.0
LOOK_STEPS = 8

_log = logging.getLogger(__name__)


class RevisionWatch:
    """`run()` it as a task. `on_change` is awaited whenever the revision moved, and before the first `fresh`. Its
    argument is the scope of the writes since the last read (None: all caches); the writes of one interval are one call.
    """

    def __init__(
        self,
        database: Database,
        on_change: Callable[[Sequence[Change] | None], Awaitable[None]],
        *,
        interval_s: float = INTERVAL_S,
        stale_s: float = STALE_S,
        clock: Callable[[], float] = time.monotonic,
        pace: RequestPace | None = None,
    ) -> None:
        self._pace = RequestPace() if pace is None else pace
        self.revision: int | None = None
        self._database = database
        self._on_change = on_change
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._clock = clock
        self._polling = asyncio.Lock()  # an older reading never overtakes a newer one
        self._read_at: float | None = None
        self._database_at_s = 0.0  # the database's clock at that read, in Unix seconds
        self._unread = ThrottledWarning(_log, "revision.unread", clock=clock)
        self._stale_logged = False
        self._unreadable = False  # the last read failed, or the running one has had no answer for LOOK_S
        self._wanted = asyncio.Event()  # a caller of `freshen` waits for the next read
        self._looked = asyncio.Event()  # set after the read that is next or in flight

    @property
    def fresh(self) -> bool:
        """Whether every key that was revoked over `stale_s` ago is known to be revoked here."""
        return self._read_at is not None and self._clock() - self._read_at <= self._stale_s

    async def freshen(self) -> bool:
        """Whether this process is fresh, after further reads if necessary. While the database answers, the caller waits
        without a deadline: after a stall of this process the last read is too old, and the next one may be too old
        again. False as soon as a read failed or had no answer for LOOK_S."""
        while not self.fresh:
            if self._unreadable:
                return False
            self._wanted.set()
            await self._looked.wait()
            await (
                self._pace.wait_turn()
            )  # otherwise all waiting requests begin in one turn of the loop, and the read is stale again
        return True

    def now_s(self) -> float:
        """Unix seconds by the database's clock, which all gateways share. Must not be called before the first read."""
        assert self._read_at is not None, "poll first"
        return self._database_at_s + self._clock() - self._read_at

    def note_refused(self) -> None:
        """A request was refused because this process is not fresh. It is logged once until the process is fresh
        again."""
        if not self._stale_logged:
            self._stale_logged = True
            age_s = None if self._read_at is None else round(self._clock() - self._read_at, 3)
            _log.warning("admission.stale", extra={"fields": {"revision_age_s": age_s}})

    async def run(self) -> None:
        """Read the revision every `interval_s`, and at once for a waiting caller of `freshen`, until cancelled."""
        try:
            while True:
                self._wanted.clear()
                await self._poll_once()
                self._announce()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._wanted.wait()
        finally:
            self._unreadable = True  # there are no further reads
            self._announce()

    async def _poll_once(self) -> None:
        """Without an answer for LOOK_S the revision counts as unreadable until the answer arrives: a second read beside
        a hanging one would only occupy another reader thread."""
        look = asyncio.create_task(self.poll_revision(), name="revision-look")
        try:
            for _ in range(LOOK_STEPS):
                done, _pending = await asyncio.wait([look], timeout=LOOK_S / LOOK_STEPS)
                if done:
                    break
            else:
                self._note_unreadable(f"no answer for {LOOK_S:g} s")
                self._announce()
            await look
            self._unreadable = False
        except DatabaseUnavailable as error:
            self._note_unreadable(str(error))
        finally:
            look.cancel()

    def _note_unreadable(self, reason: str) -> None:
        self._unreadable = True
        self._unread.warn(reason=reason)

    def _announce(self) -> None:
        """Wake all waiters in `freshen`."""
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    async def poll_revision(self) -> None:
        """Read the revision once. Writes that were committed before the call are applied here when it returns. Raises
        DatabaseUnavailable."""
        async with self._polling:
            known = self.revision
            # The clock is read in the reader's thread: on a slow loop the read may begin and arrive much later.
            started, (seen, changes, now) = await self._database.read(
                lambda connection: (self._clock(), _read(connection, known))
            )
            if seen != known:
                await self._on_change(changes)
                self.revision = seen
            self._read_at, self._database_at_s = started, now / SECOND
            self._stale_logged = self._stale_logged and not self.fresh


def _read(connection: sa.Connection, known: int | None) -> tuple[int, Sequence[Change] | None, int]:
    """The revision, the scope of the writes since `known`, and the database's clock."""
    number = revision.read_revision(connection)
    changes = () if number == known else revision.changes_since(connection, known, number)
    return number, changes, database_now(connection)
