"""A gateway and an engine of protocol version 4: each decodes and encodes with the structs of that version alone.

The gateway of the release with version 4 refused any other version in Hello. This one does not: it shows that its
structs can read what an engine of version 5 sends.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.protocol.codec import HEADER, FrameReader
from support.engine import version_4 as v4

_to_engine = msgspec.msgpack.Decoder(v4.ToEngine)
_from_engine = msgspec.msgpack.Decoder(v4.FromEngine)
F = TypeVar("F")
EPOCH = "epoch-of-version-4"
HEARTBEAT_S = 0.2


def encode_version_4(frame: Any) -> bytes:
    body = msgspec.msgpack.encode(frame)
    return HEADER.pack(len(body)) + body


class Version4Gateway:
    """One stream to an engine. Decoding raises when the engine sends a frame or a value of a later version."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._waiting: list[Any] = []
        self.heartbeats: list[v4.Heartbeat] = []
        self.hello: v4.Hello

    @classmethod
    async def connect(cls, socket: Path) -> Version4Gateway:
        gateway = cls(*await asyncio.open_unix_connection(str(socket)))
        gateway.hello = await gateway.expect(v4.Hello)
        return gateway

    def send(self, *frames: Any) -> None:
        self._writer.write(b"".join(map(encode_version_4, frames)))

    async def next(self, timeout_s: float = 30.0) -> Any:
        """The next frame that is no heartbeat. Raises EOFError when the engine closed the stream."""
        async with asyncio.timeout(timeout_s):
            while not self._waiting:
                if not (data := await self._reader.read(65536)):
                    raise EOFError
                for frame in map(_from_engine.decode, self._frames.feed(data)):
                    (self.heartbeats if isinstance(frame, v4.Heartbeat) else self._waiting).append(frame)
        return self._waiting.pop(0)

    async def expect(self, kind: type[F]) -> F:
        while not isinstance(frame := await self.next(), kind):
            pass
        return frame

    async def until_ended(self, *handles: int) -> dict[int, tuple[list[v4.Tokens | v4.PromptPart], Any]]:
        """The frames and the ending of each request."""
        frames: dict[int, list[Any]] = {handle: [] for handle in handles}
        endings: dict[int, Any] = {}
        while len(endings) < len(handles):
            match frame := await self.next():
                case v4.Tokens():
                    for handle in frame.handles:
                        frames[handle].append(frame)
                case v4.PromptPart():
                    frames[frame.handle].append(frame)
                case v4.Finished() | v4.Refused():
                    assert frame.handle not in endings, "a second ending"
                    endings[frame.handle] = frame
        return {handle: (frames[handle], endings[handle]) for handle in handles}

    def submit(self, handle: int, **changes: Any) -> v4.Submit:
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
            "sampling": v4.Sampling(temperature=0.0),
            "stop_ids": [2],
        }
        return v4.Submit(**(fields | changes))

    async def aclose(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Version4Engine:
    """Answers each Submit with its prompt's last id, as often as max_tokens says. `faults`: what the client sent that
    version 4 cannot decode."""

    def __init__(self, socket: Path) -> None:
        self.received: list[Any] = []
        self.faults: list[str] = []
        self.heartbeats = 0
        self._socket = socket
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Version4Engine:
        self._server = await asyncio.start_unix_server(self._connected, self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        beats = asyncio.create_task(self._beat(writer))
        frames = FrameReader()
        model = v4.ModelInfo("old-model", "d" * 64, 2048, 1000, 16, 64)
        writer.write(encode_version_4(v4.Hello(4, EPOCH, [model], ["premium", "standard", "batch"])))
        try:
            while data := await reader.read(65536):
                for body in frames.feed(data):
                    try:
                        frame = _to_engine.decode(body)
                    except msgspec.MsgspecError as error:
                        self.faults.append(str(error))
                        continue
                    self.received.append(frame)
                    writer.write(b"".join(map(encode_version_4, self._answers(frame))))
        except asyncio.CancelledError:
            pass
        finally:
            beats.cancel()
            writer.close()
            self._tasks.discard(task)

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(encode_version_4(v4.Heartbeat(1, False, 0, 0)))
            self.heartbeats += 1
            await asyncio.sleep(HEARTBEAT_S)

    def _answers(self, frame: Any) -> list[Any]:
        match frame:
            case v4.Submit():
                ids = frame.prompt_ids[-1:] * frame.max_tokens
                logprobs = [[(ids[0], -0.5)]] if frame.sampling.logprobs >= 0 else None
                steps: list[Any] = [
                    v4.Tokens(step, [frame.handle], [id_], logprobs, None if step else {frame.handle: 3})
                    for step, id_ in enumerate(ids)
                ]
                usage = v4.EngineUsage(len(frame.prompt_ids), 3, len(ids))
                return [*steps, v4.Finished(frame.handle, "length", usage)]
            case v4.LoadAdapter():
                return [v4.AdapterState(frame.digest, "loaded")]
            case v4.LoadModel():
                return [v4.ModelState(frame.name, "loaded")]
            case v4.Status():
                return [v4.StatusReport(EPOCH, 1, 0, {}, 1, 1, 0, 0, [], 7, b"")]
            case v4.Watch():
                return [v4.Snapshot(EPOCH, 1, 1, 1, [], b"", 1, [], [], 0, [], 0, [], 0)]
        return []
