"""Events about an engine for everyone who watches it: one snapshot a second for all watchers, none without watchers.

A slow watcher gets only the latest event and misses earlier ones; no other part waits for it. This module knows no
HTTP.
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
from gateway.fleet.members import MemberGroup
from gateway.views.live import AdapterNames, AwayEvent, EngineEvent, engine_event

PERIOD_S = 1.0
# Watchers of one gateway process, and of one key in it. Each is a connection with a copy of an event in flight.
WATCHERS_MAX = 64
KEY_WATCHERS_MAX = 16
# Seconds without an answer after which the engine is reported as unavailable. No other snapshot is requested before the
# answer.
ANSWER_S_MAX = 3.0
# Requests of other gateways whose tenants are cached, and how many of them one query looks up.
TENANTS_MAX = 4096
LOOK_UP_MAX = 256

_log = logging.getLogger(__name__)

# The name of the engine that a feed watches now, and the engine. Raises EngineUnavailable.
FindEngine = Callable[[], tuple[str, Engine]]


class Watcher:
    """The events for one watcher: call `next` until it returns None, then `close`."""

    def __init__(self, leave: Callable[[Watcher], None]) -> None:
        self._leave = leave
        self._event: bytes | None = None  # the latest event that `next` has not returned
        self._ended = False
        self._news = asyncio.Event()

    async def next(self, patience_s: float) -> bytes | None:
        """The latest event; b"" if no event is published within `patience_s`; None when the watch has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        if self._ended:
            return None
        self._news.clear()
        event, self._event = self._event, None
        return event or b""

    def offer(self, event: bytes) -> None:
        """Make this the next event, replacing an unread one."""
        self._event = event
        self._news.set()

    def end_watch(self) -> None:
        self._ended = True
        self._news.set()

    def close(self) -> None:
        self._leave(self)


class WatcherLimits:
    """Counts the watchers of all feeds of a gateway process."""

    def __init__(self) -> None:
        self._key_ids: dict[Watcher, str] = {}

    def check_limits(self, key_id: str) -> None:
        """Raises Overloaded if this key may not add a watcher."""
        if len(self._key_ids) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} clients watch engines already, which is the limit of this gateway.")
        if list(self._key_ids.values()).count(key_id) >= KEY_WATCHERS_MAX:
            raise Overloaded(
                f"{KEY_WATCHERS_MAX} clients with this key watch engines already, which is the limit of a key."
            )

    def add_watcher(self, watcher: Watcher, key_id: str) -> None:
        self._key_ids[watcher] = key_id

    def remove_watcher(self, watcher: Watcher) -> None:
        self._key_ids.pop(watcher, None)


class LiveFeed:
    """The feed of one engine, over this process's own connection to it. `open` returns a new watcher."""

    def __init__(
        self,
        find_engine: FindEngine,
        tenants: RequestTenants,
        adapter_names: Callable[[], AdapterNames],
        limits: WatcherLimits,
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        """`find_engine` is called for each snapshot, as the roster may list another engine under the same name."""
        self._find_engine = find_engine
        self._tenants = tenants
        self._adapter_names = adapter_names
        self._limits = limits
        self._period_s = period_s
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._snapshot_task: asyncio.Task[tuple[str, Snapshot]] | None = None
        self._latest: bytes | None = None  # event, while there are watchers
        self._snapshot: tuple[float, str, Snapshot] | None = None  # the latest one: time, engine's name, snapshot
        self._seen: tuple[str, int] | None = None  # epoch and the newest preemption that was in an event
        self._closed = False

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    def open(self, key_id: str) -> Watcher:
        """Raises Overloaded."""
        self._limits.check_limits(key_id)
        watcher = Watcher(self._remove)
        if self._closed:
            watcher.end_watch()
            return watcher
        self._limits.add_watcher(watcher, key_id)
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="live")
            self._task.add_done_callback(self._stopped)
        elif self._latest is not None:
            watcher.offer(self._latest)
        return watcher

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        for watcher in list(self._watchers):
            watcher.end_watch()

    async def latest_snapshot(self, age_s_max: float = PERIOD_S) -> Snapshot:
        """A snapshot that is at most `age_s_max` old; concurrent callers share one request. Raises
        EngineUnavailable."""
        _, snapshot = await self._latest_snapshot(age_s_max)
        return snapshot

    async def _latest_snapshot(self, age_s_max: float) -> tuple[str, Snapshot]:
        """Like `latest_snapshot`, with the engine's name."""
        name, engine = self._find_engine()
        if engine.ready and self._snapshot is not None:
            at, of, snapshot = self._snapshot
            if snapshot.epoch == engine.epoch and time.monotonic() - at < age_s_max:
                return of, snapshot
        if self._snapshot_task is None:
            after = self._seen[1] if self._seen is not None and self._seen[0] == engine.epoch else None
            self._snapshot_task = asyncio.create_task(_named_snapshot(name, engine, after), name="live-look")
            self._snapshot_task.add_done_callback(self._note_snapshot)
        await asyncio.wait([task := self._snapshot_task], timeout=ANSWER_S_MAX)
        if not task.done():
            raise EngineUnavailable(f"the engine has not answered for {ANSWER_S_MAX:g} s")
        return task.result()

    def _note_snapshot(self, task: asyncio.Task[tuple[str, Snapshot]]) -> None:
        self._snapshot_task = None
        if not task.cancelled() and task.exception() is None:
            self._snapshot = time.monotonic(), *task.result()

    def _remove(self, watcher: Watcher) -> None:
        self._limits.remove_watcher(watcher)
        self._watchers.discard(watcher)
        if not self._watchers and self._task is not None:
            self._task.cancel()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """There are no watchers any more; or the feed failed, and all watches end. The next watcher starts it again."""
        self._task = self._latest = self._seen = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("live.failed", exc_info=error)
            for watcher in list(self._watchers):
                watcher.end_watch()
            self._watchers.clear()
        elif self._watchers and not self._closed:  # a watcher connected while the task was being cancelled
            self._task = asyncio.create_task(self._run(), name="live")
            self._task.add_done_callback(self._stopped)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        away: str | None = None
        due = loop.time()
        while True:
            event: bytes | None = None
            try:
                name, snapshot = await self._latest_snapshot(age_s_max=0.0)
            except EngineUnavailable as error:
                if away != str(error):
                    away = str(error)
                    event = encode_event("away", AwayEvent(at=_now(), reason=away))
            else:
                away = None
                self._seen = snapshot.epoch, snapshot.preempted
                event = encode_event("engine", self._view(name, snapshot))
            if event is not None:
                self._latest = event
                for watcher in self._watchers:
                    watcher.offer(event)
            due = max(due + self._period_s, loop.time())
            await asyncio.sleep(due - loop.time())

    def _view(self, name: str, snapshot: Snapshot) -> EngineEvent:
        tenants = self._tenants.of({request.request_id for request in snapshot.requests})
        return engine_event(name, snapshot, _now(), tenants, self._adapter_names())


async def _named_snapshot(name: str, engine: Engine, preempted: int | None) -> tuple[str, Snapshot]:
    return name, await engine.watch(preempted)


class LiveFeeds:
    """The feeds of a gateway process: of each engine by its name, and of the first ready engine."""

    def __init__(self, fleet: MemberGroup, tenants: RequestTenants, adapter_names: Callable[[], AdapterNames]) -> None:
        self._fleet = fleet
        self._tenants = tenants
        self._adapter_names = adapter_names
        self._limits = WatcherLimits()
        self._feeds: dict[str, LiveFeed] = {}  # by name; "": of the first ready engine
        self._closed = False

    def feed_of(self, name: str | None = None) -> LiveFeed:
        """`name`: of an engine of the roster; None: the first ready engine by name at each moment. Raises NotFound."""
        name = name or ""
        if name:
            self._fleet.member_named(name)
        feed = self._feeds.get(name)
        if feed is None:
            self._forget_unlisted()
            feed = LiveFeed(lambda: self._find_engine(name), self._tenants, self._adapter_names, self._limits)
            self._feeds[name] = feed
            if self._closed:
                feed.close()
        return feed

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        for feed in self._feeds.values():
            feed.close()

    def _find_engine(self, name: str) -> tuple[str, Engine]:
        name = name or self._fleet.first_ready()
        member = self._fleet.members.get(name)
        if member is None:
            raise EngineUnavailable(f"the list of engines has no engine {name!r} any more")
        return name, member.engine

    def _forget_unlisted(self) -> None:
        listed = self._fleet.members
        self._feeds = {name: feed for name, feed in self._feeds.items() if not name or name in listed or feed.watched}


class RequestTenants:
    """The tenants of requests: of this gateway's own from memory, of other gateways' from their holds, which a
    background task reads, so that no event waits for the database."""

    def __init__(self, database: Database, own: Callable[[], Mapping[str, TenantName]]) -> None:
        self._database = database
        self._own = own
        self._others: dict[str, TenantName | None] = {}  # by request id; None: the request has no hold
        self._looking_up: asyncio.Task[None] | None = None

    def of(self, request_ids: Collection[str]) -> Mapping[str, TenantName | None]:
        """The tenant of each request, or None where it is not known yet."""
        own = self._own()
        others = self._others
        unknown = [request_id for request_id in request_ids if request_id not in own and request_id not in others]
        if unknown and self._looking_up is None:
            self._looking_up = asyncio.create_task(self._look_up(unknown[:LOOK_UP_MAX]), name="live-tenants")
        return {request_id: own.get(request_id) or others.get(request_id) for request_id in request_ids}

    async def _look_up(self, request_ids: list[str]) -> None:
        try:
            found = await self._database.report(lambda connection: _of_holds(connection, request_ids))
        except DatabaseUnavailable:  # the next event looks them up again
            return
        finally:
            self._looking_up = None
        for request_id in request_ids:
            if len(self._others) >= TENANTS_MAX:
                del self._others[next(iter(self._others))]
            self._others[request_id] = found.get(request_id)


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
