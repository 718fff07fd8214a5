"""One look at the engine each second for all who watch it, and none while nobody does.

A watcher is told the latest moment: one that reads slowly misses events, and nothing waits for it. It knows snapshots
and names; it must never know HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping

import msgspec
import sqlalchemy as sa

from billing.database import Database, DatabaseUnavailable
from billing.tables import holds, tenants
from engine.protocol.frames import Snapshot
from gateway.access.callers import TenantName
from gateway.engines.engine import Engine, EngineUnavailable
from gateway.errors import Overloaded
from gateway.views.live import AdapterNames, AwayEvent, EngineEvent, engine_event

PERIOD_S = 1.0
# Of one gateway process, and of one key there. Each is a connection, and a copy of each event on its way.
WATCHERS_MAX = 64
KEY_WATCHERS_MAX = 16
# Without an answer for so long, the engine is told as away; it is not asked again before it has answered.
ANSWER_S_MAX = 3.0
# Requests of other gateways whose tenant is remembered, and how many are looked up at once.
TENANTS_MAX = 4096
LOOK_UP_MAX = 256

_log = logging.getLogger(__name__)


class Watcher:
    """One who watches: `next` until it returns None. To be closed."""

    def __init__(self, leave: Callable[[Watcher], None]) -> None:
        self._leave = leave
        self._event: bytes | None = None  # the latest that it has not got
        self._ended = False
        self._news = asyncio.Event()

    async def next(self, patience_s: float) -> bytes | None:
        """The latest event; b"" when there is none for so long; None: there will be none any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        if self._ended:
            return None
        self._news.clear()
        event, self._event = self._event, None
        return event or b""

    def offer(self, event: bytes) -> None:
        """In the place of one that was not read."""
        self._event = event
        self._news.set()

    def end_watch(self) -> None:
        self._ended = True
        self._news.set()

    def close(self) -> None:
        self._leave(self)


class LiveFeed:
    """`open` a watcher for each who watches. One per gateway process, over its own connection to the engine."""

    def __init__(
        self,
        engine: Engine,
        tenants: RequestTenants,
        adapter_names: Callable[[], AdapterNames],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._engine = engine
        self._tenants = tenants
        self._adapter_names = adapter_names
        self._period_s = period_s
        self._watchers: dict[Watcher, str] = {}  # whose key
        self._task: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[Snapshot] | None = None
        self._latest: bytes | None = None  # event, while somebody watches
        self._shot: tuple[float, Snapshot] | None = None  # the latest, and when it came
        self._seen: tuple[str, int] | None = None  # epoch, and the newest preemption that was told
        self._closed = False

    def open(self, key_id: str) -> Watcher:
        """Raises Overloaded."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} watch the engine here already, which is the limit.")
        if list(self._watchers.values()).count(key_id) >= KEY_WATCHERS_MAX:
            raise Overloaded(f"{KEY_WATCHERS_MAX} of this key watch the engine here already, which is the limit.")
        watcher = Watcher(self._left)
        if self._closed:
            watcher.end_watch()
            return watcher
        self._watchers[watcher] = key_id
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="live")
            self._task.add_done_callback(self._stopped)
        elif self._latest is not None:
            watcher.offer(self._latest)
        return watcher

    def close(self) -> None:
        """Nobody is told any more: all streams end."""
        self._closed = True
        for watcher in list(self._watchers):
            watcher.end_watch()

    async def latest_snapshot(self, age_s_max: float = PERIOD_S) -> Snapshot:
        """A snapshot of at most that age, shared by all who ask meanwhile. Raises EngineUnavailable."""
        if self._engine.ready and self._shot is not None and time.monotonic() - self._shot[0] < age_s_max:
            return self._shot[1]
        if self._asked is None:
            epoch = self._engine.epoch
            after = self._seen[1] if self._seen is not None and self._seen[0] == epoch else None
            self._asked = asyncio.create_task(self._engine.watch(after), name="live-look")
            self._asked.add_done_callback(self._answered)
        await asyncio.wait([asked := self._asked], timeout=ANSWER_S_MAX)
        if not asked.done():
            raise EngineUnavailable(f"the engine has not answered for {ANSWER_S_MAX:g} s")
        return asked.result()

    def _answered(self, asked: asyncio.Task[Snapshot]) -> None:
        self._asked = None
        if not asked.cancelled() and asked.exception() is None:
            self._shot = time.monotonic(), asked.result()

    def _left(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        if not self._watchers and self._task is not None:
            self._task.cancel()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Nobody watches any more; or we made a mistake: whoever watches is sent away, and the next one begins anew."""
        self._task = self._latest = self._seen = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("live.failed", exc_info=error)
            for watcher in list(self._watchers):
                watcher.end_watch()
            self._watchers.clear()
        elif self._watchers and not self._closed:  # one came while it was being cancelled
            self._task = asyncio.create_task(self._run(), name="live")
            self._task.add_done_callback(self._stopped)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        away: str | None = None
        due = loop.time()
        while True:
            event: bytes | None = None
            try:
                snapshot = await self.latest_snapshot(age_s_max=0.0)
            except EngineUnavailable as error:
                if away != str(error):
                    away = str(error)
                    event = encode_event("away", AwayEvent(at=_now(), reason=away))
            else:
                away = None
                self._seen = snapshot.epoch, snapshot.preempted
                event = encode_event("engine", self._view(snapshot))
            if event is not None:
                self._latest = event
                for watcher in self._watchers:
                    watcher.offer(event)
            due = max(due + self._period_s, loop.time())
            await asyncio.sleep(due - loop.time())

    def _view(self, snapshot: Snapshot) -> EngineEvent:
        whose = self._tenants.of({one.request_id for one in snapshot.requests})
        return engine_event(snapshot, _now(), whose, self._adapter_names())


class RequestTenants:
    """Whose requests are: this gateway's own from what it runs, others' from their holds, looked up beside, so that
    nothing waits for the database."""

    def __init__(self, database: Database, own: Callable[[], Mapping[str, TenantName]]) -> None:
        self._database = database
        self._own = own
        self._others: dict[str, TenantName | None] = {}  # by request; None: it has no hold
        self._looking_up: asyncio.Task[None] | None = None

    def of(self, request_ids: Collection[str]) -> Mapping[str, TenantName | None]:
        """Of those that are known by now."""
        own = self._own()
        others = self._others
        unknown = [one for one in request_ids if one not in own and one not in others]
        if unknown and self._looking_up is None:
            self._looking_up = asyncio.create_task(self._look_up(unknown[:LOOK_UP_MAX]), name="live-tenants")
        return {one: own.get(one) or others.get(one) for one in request_ids}

    async def _look_up(self, request_ids: list[str]) -> None:
        try:
            found = await self._database.report(lambda connection: _of_holds(connection, request_ids))
        except DatabaseUnavailable:  # asked again with the next look
            return
        finally:
            self._looking_up = None
        for one in request_ids:
            if len(self._others) >= TENANTS_MAX:
                del self._others[next(iter(self._others))]
            self._others[one] = found.get(one)


def _of_holds(connection: sa.Connection, request_ids: list[str]) -> dict[str, TenantName]:
    query = (
        sa.select(holds.c.request_id, tenants.c.id, tenants.c.slug)
        .join(tenants, tenants.c.id == holds.c.tenant_id)
        .where(holds.c.request_id.in_(request_ids))
    )
    return {request_id: TenantName(id_, slug) for request_id, id_, slug in connection.execute(query)}


def encode_event(name: str, data: msgspec.Struct) -> bytes:
    """A server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


def _now() -> float:
    return round(time.time(), 3)
