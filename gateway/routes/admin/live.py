"""GET /v1/admin/engine/live: the state of an engine every second, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Request, get
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.admin.writes import Actor
from gateway.answers.sse import STREAM_HEADERS
from gateway.errors import ApiError, Unavailable
from gateway.routes.guard import admit_operator
from gateway.services import Services
from gateway.upkeep.live_feed import LiveFeed, Watcher

KEEP_ALIVE_S = 5.0
KEEP_ALIVE = b": keep-alive\n\n"
# The caller is authorised again every CONFIRM_S. If that is impossible for UNCONFIRMED_S_MAX, the stream ends.
CONFIRM_S = 2.0
UNCONFIRMED_S_MAX = 10.0


@get("/engine/live", opt={"route": "/v1/admin/engine/live", "area": "engine"})
async def engine_live(
    request: Request[Any, Any, Any], services: Services, by: Actor, engine: str | None = None
) -> ASGIApp:
    """Watch the engine that is named `engine`, by default the first ready one: an event `engine` once a second; an
    event `away` with the reason when the engine is unavailable, and comments until it is back. A slow reader misses
    events. The stream ends with the caller's key or session."""

    opt = request.route_handler.opt

    async def admit_again() -> None:
        await admit_operator(services, request, opt)  # as the admin routes' guard does

    return LiveStream(services.live.feed_of(engine), by.id, admit_again)


class LiveStream:
    """ASGI application that sends the events of one watcher. Raises Overloaded before the first byte."""

    def __init__(self, live: LiveFeed, key_id: str, admit_again: Callable[[], Awaitable[None]]) -> None:
        self._live = live
        self._key_id = key_id
        self._admit_again = admit_again

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = self._live.open(self._key_id)
        beside = [asyncio.create_task(_until_left(receive, watcher)), asyncio.create_task(self._confirm(watcher))]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
            while (event := await watcher.next(KEEP_ALIVE_S)) is not None:
                await send({"type": "http.response.body", "body": event or KEEP_ALIVE, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for task in beside:
                task.cancel()
            watcher.close()

    async def _confirm(self, watcher: Watcher) -> None:
        """Authorise the caller again and again; end the watch when that is refused."""
        loop = asyncio.get_running_loop()
        confirmed_at = loop.time()
        while True:
            await asyncio.sleep(CONFIRM_S)
            try:
                await self._admit_again()
                confirmed_at = loop.time()
            except Unavailable:
                if loop.time() - confirmed_at > UNCONFIRMED_S_MAX:
                    break
            except ApiError:
                break
        watcher.end_watch()


async def _until_left(receive: Receive, watcher: Watcher) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.end_watch()
