"""A real engine process for tests, and a raw peer that speaks the protocol byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

from engine.protocol.codec import HEADER, FrameReader, decode_from_engine, encode
from engine.protocol.frames import Finished, FromEngine, Heartbeat, Hello, Refused, Sampling, Submit, ToEngine, Tokens
from support.paths import REPO

STOP_ID = 2
F = TypeVar("F")


class EngineProcess:
    """`python -m engine`, started and ready, or started again on the same socket."""

    def __init__(self, socket: Path, config: dict[str, Any], *flags: str) -> None:
        self.socket = socket
        self.log_path = socket.with_suffix(".log")
        self._config_path = socket.with_suffix(".json")
        self._config_path.write_text(json.dumps(config))
        self._flags = flags
        self.ready: dict[str, Any] = {}
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "engine", "--socket", str(self.socket), "--config", str(self._config_path)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen([*argv, *self._flags], cwd=REPO, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.stop()
            raise AssertionError(f"the engine did not start:\n{self.log()}")
        self.ready = json.loads(line)

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        return self.log_path.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of its log with that event."""
        whole, _, _ = self.log().rpartition("\n")  # the last line may be half written
        return [line for line in map(json.loads, whole.splitlines()) if line["event"] == name]

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        assert self.process.stdout is not None
        try:
            if self.alive():
                self.process.send_signal(number)
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()


class Peer:
    """One stream to an engine, frame by frame, without the checks and the reconnection of EngineClient."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._waiting: list[FromEngine] = []
        self.heartbeats: list[Heartbeat] = []
        self.cached: dict[int, int] = {}  # by handle, as reported with its first id
        self.hello: Hello

    @classmethod
    async def connect(cls, socket: Path) -> Peer:
        peer = cls(*await asyncio.open_unix_connection(str(socket)))
        try:
            hello = await peer.next()
        except EOFError:
            await peer.close()
            raise
        assert isinstance(hello, Hello)
        peer.hello = hello
        return peer

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, *frames: ToEngine) -> None:
        self.write(b"".join(encode(frame) for frame in frames))

    async def drain(self) -> None:
        """Wait until the engine has read most of the written bytes."""
        await self._writer.drain()

    async def next(self, timeout_s: float = 20.0) -> FromEngine:
        """The next frame that is no heartbeat. Raises EOFError when the engine closed the stream."""
        async with asyncio.timeout(timeout_s):
            while not self._waiting:
                try:
                    data = await self._reader.read(65536)
                except ConnectionError:
                    data = b""
                if not data:
                    raise EOFError
                for frame in map(decode_from_engine, self._frames.feed(data)):
                    if isinstance(frame, Heartbeat):
                        self.heartbeats.append(frame)
                    else:
                        self._waiting.append(frame)
        frame = self._waiting.pop(0)
        if isinstance(frame, Tokens) and frame.cached:
            assert not frame.cached.keys() & self.cached.keys(), "reported twice"
            self.cached |= frame.cached
        return frame

    async def expect(self, kind: type[F], timeout_s: float = 20.0) -> F:
        """The next frame of that kind; others before it are dropped."""
        while True:
            frame = await self.next(timeout_s)
            if isinstance(frame, kind):
                return frame

    async def until_ended(self, *handles: int, timeout_s: float = 30.0) -> dict[int, tuple[list[int], Any]]:
        """(ids, ending) of each handle. Fails on an id or a second ending after the first, and where the ending reports
        another number of cached tokens than the first id did."""
        ids: dict[int, list[int]] = {handle: [] for handle in handles}
        endings: dict[int, Finished | Refused] = {}
        while len(endings) < len(handles):
            frame = await self.next(timeout_s)
            if isinstance(frame, Tokens):
                for handle, token in zip(frame.handles, frame.ids, strict=True):
                    assert handle not in endings, "an id after the ending"
                    ids[handle].append(token)
            elif isinstance(frame, Finished | Refused):
                assert frame.handle not in endings, "a second ending"
                endings[frame.handle] = frame
                if isinstance(frame, Finished) and ids[frame.handle]:
                    assert self.cached.get(frame.handle, 0) == frame.usage.cached_tokens
        return {handle: (ids[handle], endings[handle]) for handle in handles}

    async def closed(self, timeout_s: float = 20.0) -> bool:
        """Whether the engine closes the stream."""
        try:
            while True:
                await self.next(timeout_s)
        except EOFError:
            return True
        except TimeoutError:
            return False

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def submit(self, handle: int, **changes: Any) -> Submit:
        """A good request for this engine, with `changes`."""
        fields: dict[str, Any] = {
            "handle": handle,
            "request_id": f"req_{handle}",
            "epoch": self.hello.epoch,
            "model": self.hello.models[0].name,
            "adapter": None,
            "namespace": "ns",
            "tier": "standard",
            "share": "share",
            "prompt_ids": list(range(300, 320)),
            "max_tokens": 8,
            "sampling": Sampling(temperature=0.0),
            "stop_ids": [STOP_ID],
        }
        return Submit(**(fields | changes))


def framed(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body
