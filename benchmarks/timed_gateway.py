"""`python -m gateway` whose event loop is timed: `python benchmarks/timed_gateway.py --config FILE`.

A timer is due every TICK_S on the gateway's own loop; its lateness is the time for which the loop executed something
else, or waited for the interpreter's lock or for its core. With SECTIONS in the environment the loop is asyncio's own
instead of uvloop, and each callback is timed, by wall time and by CPU time of the loop's thread, under the name of the
innermost coroutine that it resumes. At its end the process writes all of it to the file that TIMES_FILE names.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import atexit
import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

TICK_S = 0.005
LONG_S = 0.002  # callbacks of at least this wall time are listed
TIMES_FILE, SECTIONS = "LANEWAY_LOOP_TIMES", "LANEWAY_LOOP_SECTIONS"


class Section(msgspec.Struct, array_like=True):
    """One callback of the loop. `began`: by time.monotonic; the others in seconds."""

    began: float
    wall_s: float
    cpu_s: float
    name: str


class SectionTotal(msgspec.Struct):
    """All callbacks of one name since the start."""

    count: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


class LoopTimes(msgspec.Struct):
    """Moments by time.monotonic. `ticks`: when each timer ran, and how late (s). `collections`: when each run of the
    garbage collector ended, its generation and its duration (s)."""

    ticks: list[tuple[float, float]] = []
    collections: list[tuple[float, int, float]] = []
    sections: list[Section] = []
    totals: dict[str, SectionTotal] = {}
    writes: list[Section] = []  # transactions that write, in any thread

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the timer on `loop` until the process ends."""
        due = time.monotonic()

        def tick() -> None:
            nonlocal due
            now = time.monotonic()
            self.ticks.append((now, now - due))
            due = now + TICK_S
            loop.call_later(TICK_S, tick)

        tick()

    def watch_collector(self) -> None:
        began = 0.0

        def note(phase: str, info: dict[str, int]) -> None:
            nonlocal began
            now = time.monotonic()
            if phase == "start":
                began = now
            else:
                self.collections.append((now, info["generation"], now - began))

        gc.callbacks.append(note)

    def time_callbacks(self) -> None:
        """Time each callback of asyncio's own loop."""
        run = asyncio.events.Handle._run  # type: ignore[attr-defined]

        def timed(handle: asyncio.Handle) -> None:
            name = section_name(handle._callback)  # type: ignore[attr-defined]
            began, cpu = time.monotonic(), time.thread_time()
            run(handle)
            wall_s, cpu_s = time.monotonic() - began, time.thread_time() - cpu
            total = self.totals.setdefault(name, SectionTotal())
            total.count += 1
            total.wall_s += wall_s
            total.cpu_s += cpu_s
            if wall_s >= LONG_S:
                self.sections.append(Section(began, wall_s, cpu_s, name))

        asyncio.events.Handle._run = timed  # type: ignore[attr-defined]

    def time_writes(self) -> None:
        """Time each transaction that writes."""
        from billing.database import Database

        write = Database.write_sync

        def timed(database: Database, function: Callable[..., Any]) -> Any:
            began, cpu = time.monotonic(), time.thread_time()
            try:
                return write(database, function)
            finally:
                wall_s, cpu_s = time.monotonic() - began, time.thread_time() - cpu
                name = f"{threading.current_thread().name.split('_')[0]}: {_name(getattr(function, 'func', function))}"
                self.writes.append(Section(began, wall_s, cpu_s, name))

        Database.write_sync = timed  # type: ignore[method-assign, assignment]


def section_name(callback: Callable[..., Any]) -> str:
    """Of a callback that resumes a task: its outermost and its innermost coroutine."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        outer = inner = owner.get_coro()
        while (awaited := getattr(inner, "cr_await", None)) is not None and hasattr(awaited, "cr_code"):
            inner = awaited
        frame = getattr(inner, "cr_frame", None)
        return f"{_name(outer)} … {_name(inner)}:{frame.f_lineno if frame else 0}"
    function = getattr(callback, "func", callback)
    return _name(function)


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


if __name__ == "__main__":
    import sys

    import uvicorn

    from gateway.__main__ import main

    times = LoopTimes()
    startup, configure = uvicorn.Server.startup, uvicorn.Config.__init__

    async def timed_startup(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        await startup(self, sockets)
        times.watch(asyncio.get_running_loop())
        times.watch_collector()

    def plain_loop(self: uvicorn.Config, *arguments: Any, **settings: Any) -> None:
        configure(self, *arguments, **settings | {"loop": "asyncio"})

    uvicorn.Server.startup = timed_startup  # type: ignore[method-assign]
    if SECTIONS in os.environ:
        uvicorn.Config.__init__ = plain_loop  # type: ignore[method-assign]
        times.time_callbacks()
        times.time_writes()
    atexit.register(lambda: Path(os.environ[TIMES_FILE]).write_bytes(msgspec.json.encode(times)))
    sys.exit(main())
