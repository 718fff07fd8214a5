"""Read your writes: this gateway process applies every administrative write before it answers the write.

Other gateway processes, such as the other workers of this host, read the revision themselves within a second.
"""

from __future__ import annotations

import contextlib

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Middleware, Receive, Scope, Send

from billing.database import DatabaseUnavailable
from gateway.services import Services

READING = frozenset(("GET", "HEAD", "OPTIONS"))


def reload_after_writes(services: Services) -> Middleware:
    """ASGI middleware of all admin routes: before the answer to a successful write is sent, this process reads the
    revision, and drops or reloads what the write concerns."""

    def around(app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != ScopeType.HTTP or scope["method"] in READING:
                await app(scope, receive, send)
                return

            async def send_after_reload(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] < 400:
                    await reload_now(services)
                await send(message)

            await app(scope, receive, send_after_reload)

        return answer

    return around


async def reload_now(services: Services) -> None:
    """Apply committed writes in this process. If the database is unavailable just then, the revision watch applies them
    later."""
    with contextlib.suppress(DatabaseUnavailable):
        await services.watch.poll_revision()
