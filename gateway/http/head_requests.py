"""Answers HEAD wherever GET is served: the same status and headers without the body (RFC 9110 9.3.2).

Plain ASGI around the web framework, whose routes have GET alone.
"""

from __future__ import annotations

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send


class _BodyUnwanted(OSError):
    """Raised in a route that streams a body, like the error after a client's disconnect."""


class HeadRequests:
    """ASGI application: runs the route of GET for HEAD. A route that streams is ended at its first byte."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] != "HEAD":
            await self._inner(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif message.get("more_body"):
                raise _BodyUnwanted

        # A copy: uvicorn omits the body if the method of its scope is HEAD.
        get_scope = {**scope, "method": "GET"}
        try:
            await self._inner(get_scope, receive, send_head)  # type: ignore[arg-type]  # the keys are a scope's
        except _BodyUnwanted:
            pass  # raised by `send_head`, after the answer
        finally:
            if "route_handler" in get_scope:
                scope["route_handler"] = get_scope["route_handler"]  # type: ignore[typeddict-item]
