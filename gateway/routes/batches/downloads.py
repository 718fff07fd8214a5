"""Sends the content of files in parts, as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from litestar.types import Receive, Scope, Send

from gateway.errors import ApiError
from gateway.files.backends import ContentStoreFailed
from gateway.files.contents import ContentReader
from gateway.stored.texts import TextUnreadable

Unreadable = ContentStoreFailed | TextUnreadable


class Download:
    """`parts`: made from `readers`, which are closed at the end. An error after the first part closes the connection
    before the end of the body, so the client never takes a part for the whole."""

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        readers: Sequence[ContentReader],
        headers: Sequence[tuple[bytes, bytes]],
        error_of: Callable[[Unreadable], ApiError],
    ) -> None:
        self._parts = parts
        self._readers = readers
        self._headers = headers
        self._error_of = error_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(_wait_left(receive))
        try:
            first = await anext(self._parts, b"")  # its errors are answered with a status
            await send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for part in self._parts:
                if left.done():
                    return
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ContentStoreFailed, TextUnreadable) as error:
            raise self._error_of(error) from error
        finally:
            left.cancel()
            for reader in self._readers:
                reader.close()


async def _wait_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
