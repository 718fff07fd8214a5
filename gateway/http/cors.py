"""CORS (WHATWG Fetch): web pages of configured origins may call the tenants' endpoints from a browser.

Off by default. Keys are sent as header fields, so no answer allows cookies. The admin API allows no other origin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

ANY_ORIGIN = "*"
METHODS = b"GET, HEAD, POST"
PREFLIGHT_S = b"600"  # seconds for which a browser may cache the answer to a preflight request

_PATH = re.compile(r"^(/t/[^/]+)?/v1/(?!admin(/|$)|organization(/|$))")
_FIELD_NAMES = re.compile(rb"[A-Za-z0-9\-_, ]{0,2048}")


class CrossOrigin:
    """An ASGI application that adds the answer's CORS fields and answers preflight requests for `origins`."""

    def __init__(self, inner: ASGIApp, origins: Sequence[str]) -> None:
        """`origins`: values of the Origin header, so without a path; ANY_ORIGIN allows all."""
        self._inner = inner
        self._any = ANY_ORIGIN in origins
        self._origins = frozenset([origin.lower().encode() for origin in origins])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or not _PATH.match(scope["path"]):
            await self._inner(scope, receive, send)
            return
        fields = dict(scope["headers"])
        origin = fields.get(b"origin")
        allowed = origin is not None and (self._any or origin.lower() in self._origins)
        if origin is not None and allowed:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in fields:
                await _answer_preflight(send, self._allow(origin), fields)
                return
            added = [*self._allow(origin), (b"access-control-expose-headers", b"*")]
        elif self._any:
            added = []
        else:
            added = [(b"vary", b"Origin")]  # a cache must not give this answer to an allowed page

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._inner(scope, receive, send_allowed if added else send)

    def _allow(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        if self._any:
            return [(b"access-control-allow-origin", b"*")]
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


async def _answer_preflight(send: Send, allow: list[tuple[bytes, bytes]], fields: dict[bytes, bytes]) -> None:
    """Allow the header fields that the browser lists: `*` would not include Authorization."""
    requested = fields.get(b"access-control-request-headers", b"")
    headers = [*allow, (b"access-control-allow-methods", METHODS), (b"access-control-max-age", PREFLIGHT_S)]
    if requested and _FIELD_NAMES.fullmatch(requested):
        headers.append((b"access-control-allow-headers", requested))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
