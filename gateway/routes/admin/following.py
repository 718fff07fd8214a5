"""What an operator wrote holds in this gateway process before it is answered, whatever was written.

Other processes, the other workers of this host among them, look at the revision themselves: within a second.
"""

from __future__ import annotations

import contextlib

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Middleware, Receive, Scope, Send

from billing.database import DatabaseUnavailable
from gateway.services import Services

READING = frozenset(("GET", "HEAD", "OPTIONS"))


def reload_after_writes(services: Services) -> Middleware:
    """ASGI middleware of every operator's route: before a write is answered with success, this process reads the
    revision, and drops or reloads what the write concerns."""

    def around(app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != ScopeType.HTTP or scope["method"] in READING:
                await app(scope, receive, send)
                return

            async def send_when_followed(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] < 400:
                    await reload_now(services)
                await send(message)

            await app(scope, receive, send_when_followed)

        return answer

    return around


async def reload_now(services: Services) -> None:
    """Apply here what was written. When the database goes away just then, it holds later."""
    with contextlib.suppress(DatabaseUnavailable):
        await services.watch.poll_revision()
