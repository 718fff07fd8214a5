"""A proxy before an engine's Unix socket that can hold what either end sends, and deliver it late: a partition that
heals."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path


class HeldProxy:
    """`async with HeldProxy(path, engine_socket) as proxy`: connect to `path`. While held, bytes of both directions
    wait, and so does the end of a stream."""

    def __init__(self, path: Path, engine: Path) -> None:
        self.path = path
        self.late_bytes = 0  # delivered, or lost at a closed end, after they were held
        self._engine = engine
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> HeldProxy:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        engine_reader, engine_writer = await asyncio.open_unix_connection(self._engine)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._pump(reader, engine_writer), self._pump(engine_reader, writer))
        finally:
            writer.close()
            engine_writer.close()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if not self._flows.is_set():
                    await self._flows.wait()
                    self.late_bytes += len(data)
                writer.write(data)
                await writer.drain()
        await self._flows.wait()
        writer.close()
