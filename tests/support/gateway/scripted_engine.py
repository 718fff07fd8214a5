"""An engine whose answers a test scripts, over the real protocol, behind a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

from engine.protocol.codec import FrameReader, decode_to_engine, encode
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    AdapterState,
    EngineUsage,
    Finished,
    FromEngine,
    Heartbeat,
    Hello,
    LoadAdapter,
    ModelInfo,
    RaisedTargets,
    Refused,
    Snapshot,
    Status,
    StatusReport,
    Submit,
    Tokens,
    Watch,
)
from engine.protocol.snapshot_parts import PageOwner
from support.stack import MODEL, Stack
from support.waiting import PATIENCE_S

EPOCH = "scripted"
HEARTBEAT_S = 0.5
HELD = math.inf
ONE_RUN = struct.pack("<II", 0, 1)  # the first owner's, of one page: `runs` of a Snapshot
# The answer to one Submit: each frame with its delay in seconds after the Submit, or HELD until `release_held`.
Said = Iterable[tuple[float, FromEngine]]


class ScriptedEngine:
    """Listens on `path` in a separate thread. `script(submit)` gives the outcome of each request; an Abort ends a
    request as aborted, unless the script has ended it."""

    def __init__(self, path: str) -> None:
        self.script: Callable[[Submit], Said] = lambda submit: [(0.0, Finished(submit.handle, "stop", EngineUsage()))]
        self.models = [ModelInfo(MODEL, "d" * 64, 2048, 49152, 16, 1000)]  # as the next Hello says
        self.raised: dict[str, RaisedTargets] = {}  # likewise
        self.refused: dict[str, str] = {}  # likewise: models of the configuration, and why
        self.submits: list[Submit] = []
        self.aborts: list[int] = []
        self._path = path
        self._open: set[int] = set()
        self._held: list[Callable[[], None]] = []
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(PATIENCE_S), "the scripted engine does not listen"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.close()

    def release_held(self) -> None:
        """Send the frames that are HELD, in their order."""

        def send_all() -> None:
            sends, self._held = self._held, []
            for send in sends:
                send()

        self._loop.call_soon_threadsafe(send_all)

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await self._speak(reader, writer)
            writer.close()
            tasks.discard(task)

        server = await asyncio.start_unix_server(connected, self._path)
        self._listening.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        frames = FrameReader()
        tiers = ["premium", "standard", "batch"]

        def send(frame: FromEngine) -> None:
            if writer.is_closing():
                return
            if isinstance(frame, Finished | Refused) and frame.handle not in self._open:
                return
            if isinstance(frame, Tokens) and not self._open.intersection(frame.handles):
                return  # the frame was HELD, and its request has ended meanwhile
            writer.write(encode(frame))
            if hasattr(frame, "handle"):
                self._open.discard(frame.handle)

        def beat() -> None:
            send(Heartbeat(0, False, 0, 0))
            timers[0] = loop.call_later(HEARTBEAT_S, beat)

        send(Hello(PROTOCOL_VERSION, EPOCH, self.models, tiers, self.refused, self.raised))
        timers = [loop.call_soon(beat)]
        try:
            while data := await reader.read(65536):
                for frame in map(decode_to_engine, frames.feed(data)):
                    match frame:
                        case Submit():
                            self.submits.append(frame)
                            self._open.add(frame.handle)
                            for delay_s, answer in self.script(frame):
                                if delay_s == HELD:
                                    self._held.append(functools.partial(send, answer))
                                else:
                                    loop.call_later(delay_s, send, answer)
                        case Abort():
                            self.aborts.append(frame.handle)
                            send(Finished(frame.handle, "aborted", EngineUsage()))
                        case LoadAdapter():
                            send(AdapterState(frame.digest, "loaded"))
                        case Status():
                            send(StatusReport(EPOCH, 0, 0, dict.fromkeys(tiers, 0), 1, 1, 0, 0, [], 0, b""))
                        case Watch():
                            free = [PageOwner("free", None, None, None, 1)]
                            send(Snapshot(EPOCH, 0, 1, 1, free, ONE_RUN, 1, [], [], 0, [], 0, [], 0))
                        case _:
                            pass
        finally:
            timers[0].cancel()


class ScriptedStack(Stack):
    """A stack whose engine is `scripted`."""

    scripted: ScriptedEngine

    def start_engine(self) -> None:
        self.scripted = ScriptedEngine(str(self.config.socket_path))
        self.scripted.start()

    def stop(self) -> None:
        super().stop()
        self.scripted.stop()

    def says(self, script: Callable[[Submit], Any]) -> None:
        self.scripted.script = script
