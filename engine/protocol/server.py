"""The engine's I/O thread: the listening Unix socket, one stream a gateway, frames in both directions.

It parses frames and limits their size and number; a malformed frame closes its own stream only. It must never touch the
scheduler, which belongs to the loop on the other side of the inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.protocol.codec import FrameReader, ProtocolError, decode_to_engine, encode
from engine.protocol.frames import Abort, Heartbeat, Hello, Models, Submit
from engine.protocol.inbox import GatewayDisconnected, Inbox, LoopProgress

STREAMS_MAX = 64
# Unsent bytes for one gateway. Above it the gateway, which does not read, is disconnected and its requests aborted.
OUTBOX_BYTES_MAX = 8 * 1024 * 1024
HEARTBEAT_S = 1.0
PAUSE_CHECK_S = 0.005
FULL_LOG_EVERY_S = 1.0
PARENT_CHECK_S = 0.25
FLUSH_S = 0.3
SOCKET_PATH_BYTES_MAX = 107

_log = logging.getLogger(__name__)


class SocketInUse(Exception):
    """The engine cannot listen on the path: another engine answers there, or the file is no socket."""


@dataclass(slots=True, frozen=True)
class OutgoingFrames:
    """Encoded frames for one gateway, in order; `ended`: the handles whose ending is among them."""

    gateway: int
    data: bytes
    ended: list[int]


class _Stream(asyncio.Protocol):
    """One gateway. `live` holds the handles that have no ending yet."""

    def __init__(self, server: Server, number: int) -> None:
        self.number = number
        self.live: set[int] = set()
        self.transport: asyncio.Transport | None = None
        self._server = server
        self._reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._server.lost(self, "" if exc is None else str(exc))

    def data_received(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        try:
            for body in self._reader.feed(data):
                self._frame(body)
        except ProtocolError as error:
            self.cut(f"protocol error: {error}")
        self._server.pause_if_full()

    def _frame(self, body: bytes) -> None:
        frame = decode_to_engine(body)
        if isinstance(frame, Submit):
            if frame.handle in self.live:
                raise ProtocolError(f"handle {frame.handle} is in use")
            self.live.add(frame.handle)
        elif isinstance(frame, Abort) and frame.handle not in self.live:
            return
        self._server.inbox.receive(self.number, frame, time.monotonic(), len(body))

    def write(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.write(data)
        unsent = self.transport.get_write_buffer_size()
        if unsent > OUTBOX_BYTES_MAX:
            self.cut(f"it does not read: {unsent} bytes unsent, the limit is {OUTBOX_BYTES_MAX}")

    def cut(self, why: str) -> None:
        """Close without flushing. `connection_lost` follows."""
        assert self.transport is not None
        _log.warning("stream.cut", extra={"fields": {"gateway": self.number, "reason": why}})
        self.transport.abort()


class Server:
    """The I/O thread. Methods without an underscore are for its streams, except `start`, `send`, `tell_models` and
    `stop`, which are for the loop's thread."""

    def __init__(
        self, path: Path, hello: Hello, inbox: Inbox, progress: LoopProgress, parent: int, ended: Callable[[str], None]
    ) -> None:
        """`ended(why)` is called from the I/O thread when `parent`, the process that started this one, has ended, or
        when the I/O thread fails."""
        self.inbox = inbox
        self._path = path
        self._hello = hello
        self._progress = progress
        self._ended = ended
        self._parent = parent
        self._streams: dict[int, _Stream] = {}
        self._all_lost = asyncio.Event()  # for `_close`
        self._next_number = 1
        self._paused = False
        self._full_logged_at = -FULL_LOG_EVERY_S
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine-io", daemon=True)
        self._socket: socket.socket | None = None
        self._inode = 0

    # ---- for the loop's thread

    def start(self) -> None:
        """Listen, and serve from a thread of its own. Raises SocketInUse."""
        self._socket = listen(self._path)
        self._inode = self._path.stat().st_ino
        self._thread.start()

    def send(self, batch: list[OutgoingFrames]) -> None:
        """Pass frames to the I/O thread. Frames for a closed stream are discarded."""
        self._loop.call_soon_threadsafe(self._deliver, batch)

    def tell_models(self, models: Models) -> None:
        """Send the new list of models to every stream, before later frames, and use it in the Hello of later
        streams."""
        self._loop.call_soon_threadsafe(self._tell_models, models)

    def stop(self) -> None:
        """Flush what is unsent for up to FLUSH_S, close all streams, remove the socket file, end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=FLUSH_S + 1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)

    # ---- for its streams, on the I/O thread

    def opened(self, stream: _Stream) -> None:
        if len(self._streams) >= STREAMS_MAX:
            stream.cut(f"{STREAMS_MAX} streams are open already")
            return
        self._streams[stream.number] = stream
        stream.write(encode(self._hello))
        if self._paused and stream.transport is not None:
            stream.transport.pause_reading()
        _log.info("stream.opened", extra={"fields": {"gateway": stream.number}})

    def lost(self, stream: _Stream, error: str) -> None:
        if self._streams.pop(stream.number, None) is None:
            return
        fields = {"gateway": stream.number, "unfinished": len(stream.live), "error": error}
        _log.info("stream.lost", extra={"fields": fields})
        self.inbox.put(GatewayDisconnected(stream.number))
        if not self._streams:
            self._all_lost.set()

    def pause_if_full(self) -> None:
        """Stop reading all streams while the loop is behind: the gateways' own bounded buffers fill instead."""
        if not self._paused and self.inbox.full():
            self._paused = True
            if self._loop.time() - self._full_logged_at > FULL_LOG_EVERY_S:
                self._full_logged_at = self._loop.time()
                _log.warning("inbox.full", extra={"fields": {"streams": len(self._streams)}})
            for stream in self._streams.values():
                if stream.transport is not None:
                    stream.transport.pause_reading()
            self._loop.call_later(PAUSE_CHECK_S, self._resume_if_taken)

    # ---- private

    def _resume_if_taken(self) -> None:
        if self.inbox.full():
            self._loop.call_later(PAUSE_CHECK_S, self._resume_if_taken)
            return
        self._paused = False
        for stream in self._streams.values():
            if stream.transport is not None and not stream.transport.is_closing():
                stream.transport.resume_reading()

    def _deliver(self, batch: list[OutgoingFrames]) -> None:
        for outgoing in batch:
            stream = self._streams.get(outgoing.gateway)
            if stream is not None:
                stream.live.difference_update(outgoing.ended)
                stream.write(outgoing.data)

    def _tell_models(self, models: Models) -> None:
        self._hello = msgspec.structs.replace(self._hello, models=models.models, refused=models.refused)
        frame = encode(models)
        for stream in list(self._streams.values()):
            stream.write(frame)

    def _accept(self) -> _Stream:
        number = self._next_number
        self._next_number += 1
        return _Stream(self, number)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        try:
            self._loop.run_forever()
        finally:
            self._heart.cancel()
            self._loop.run_until_complete(asyncio.wait([self._heart]))
            self._loop.close()

    async def _open(self) -> None:
        assert self._socket is not None
        # Kept: the loop holds its tasks weakly.
        self._heart = asyncio.create_task(self._beat())
        self._heart.add_done_callback(lambda _: self._ended("the I/O thread's heart stopped"))
        self._watch_parent()
        self._listener = await self._loop.create_unix_server(self._accept, sock=self._socket)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            now = self._progress
            frame = encode(Heartbeat(now.step, now.busy, now.running, now.waiting, now.draining, now.load))
            for stream in list(self._streams.values()):
                stream.write(frame)

    def _watch_parent(self) -> None:
        # Asked, not signalled: PR_SET_PDEATHSIG follows the parent's *thread*, and stdin may be no pipe.
        if os.getppid() == self._parent:
            self._loop.call_later(PARENT_CHECK_S, self._watch_parent)
            return
        _log.warning("engine.orphaned", extra={"fields": {"parent": self._parent}})
        self._ended("the parent process is gone")

    async def _close(self) -> None:
        self._listener.close()
        self._all_lost.clear()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        for stream in list(self._streams.values()):
            if stream.transport is not None:
                stream.transport.close()
        if not self._streams:
            self._all_lost.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._all_lost.wait()
        for stream in list(self._streams.values()):
            stream.cut("the engine stops, and it has not read everything")


def listen(path: Path) -> socket.socket:
    """A listening Unix socket at `path`, mode 0600. The socket of a dead engine is replaced.

    Raises SocketInUse."""
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise SocketInUse(f"{path} is longer than {SOCKET_PATH_BYTES_MAX} bytes, the system's limit")
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        raise SocketInUse(f"{path}: {error.strerror}") from error
    finally:
        os.umask(mask)
    listener.listen(STREAMS_MAX)
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketInUse(f"{path} is there and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
        except OSError as error:
            raise SocketInUse(f"{path}: {error}") from error
    raise SocketInUse(f"another engine listens on {path}")
