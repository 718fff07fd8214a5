"""A TCP proxy before PostgreSQL. Once a test cuts it, the database is unavailable and the outcome of a commit in flight
is unknown."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import sqlalchemy as sa


class CutProxy:
    """`async with CutProxy(url) as proxy`: connect to `proxy.url`. `cut()` drops every connection and refuses new ones;
    `mute()` forwards queries and drops the answers; `restore()` undoes both."""

    def __init__(self, url: str) -> None:
        self._target = sa.make_url(url)
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = True
        self._muted = False

    async def __aenter__(self) -> CutProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        await asyncio.sleep(0.01)

    @property
    def url(self) -> str:
        return self._target.set(host="127.0.0.1", port=self._port).render_as_string(hide_password=False)

    def cut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.close()

    def mute(self) -> None:
        self._muted = True

    def restore(self) -> None:
        self._open, self._muted = True, False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.close()
            return
        up_reader, up_writer = await asyncio.open_connection(self._target.host, self._target.port or 5432)
        self._writers |= {writer, up_writer}
        await asyncio.gather(self._pump(reader, up_writer, False), self._pump(up_reader, writer, True))
        self._writers -= {writer, up_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not (answers and self._muted):
                    writer.write(data)
                    await writer.drain()
        writer.close()


class ProxyThread:
    """A CutProxy for tests that have no event loop: `with ProxyThread(url) as proxy`."""

    def __init__(self, url: str) -> None:
        self._proxy = CutProxy(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ProxyThread:
        self._thread.start()
        self._do(self._proxy.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._proxy.__aexit__)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def url(self) -> str:
        return self._proxy.url

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def mute(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.mute)

    def restore(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.restore)

    def _do(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(5)
