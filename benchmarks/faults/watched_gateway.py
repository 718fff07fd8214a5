"""`python -m gateway` with a stopwatch on its event loop: `python -m benchmarks.faults.watched_gateway --config FILE`.

A timer is due every TICK_S on the gateway's own loop. Its lateness is the time for which the loop executed something
else, or waited for the interpreter's lock or for its core. The largest lateness is kept in a file that another process
maps, so that reading it needs no request and no change of the gateway.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import struct
import sys
import time
from pathlib import Path

import uvicorn

TICK_S = 0.005
STOPWATCH_FILE = "LANEWAY_LOOP_STOPWATCH"  # in the environment: the path of the file
_CELL = struct.Struct("d")


class Stopwatch:
    """The largest lateness since `reset`, in seconds, shared by the processes that open the same file."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)

    def reset(self) -> None:
        _CELL.pack_into(self._memory, 0, 0.0)

    def worst_s(self) -> float:
        return float(_CELL.unpack_from(self._memory)[0])

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the timer on `loop` until the process ends."""
        due = time.monotonic()

        def tick() -> None:
            nonlocal due
            now = time.monotonic()
            if now - due > self.worst_s():
                _CELL.pack_into(self._memory, 0, now - due)
            due = now + TICK_S
            loop.call_later(TICK_S, tick)

        tick()


_uvicorn_startup = uvicorn.Server.startup


async def _startup(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
    await _uvicorn_startup(self, sockets)
    Stopwatch(Path(os.environ[STOPWATCH_FILE])).watch(asyncio.get_running_loop())


if __name__ == "__main__":
    from gateway.__main__ import main  # the attackers import the stopwatch without the gateway

    uvicorn.Server.startup = _startup  # type: ignore[method-assign]
    sys.exit(main())
