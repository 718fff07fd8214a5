"""The engine's I/O thread: one stream a gateway, over a Unix socket or TLS, and frames in both directions.

It parses frames and limits their size and number; a malformed frame closes its own stream only. It agrees on a protocol
version with each gateway, and closes the stream of a gateway that is silent for longer than its lease. It must never
touch the scheduler, which belongs to the loop on the other side of the inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.protocol.codec import FrameReader, ProtocolError, decode_to_engine, encode
from engine.protocol.frames import (
    FLEET_VERSION,
    Abort,
    Alive,
    DrainEngine,
    GatewayHello,
    Heartbeat,
    Hello,
    Models,
    Reclaim,
    Submit,
    ToEngine,
)
from engine.protocol.inbox import GatewayDisconnected, Inbox, LoopProgress
from engine.protocol.listeners import BACKLOG, STREAMS_MAX, SocketInUse, TlsListener, limit_streams, listen
from engine.protocol.tls import peer_name

__all__ = ["OUTBOX_BYTES_MAX", "STREAMS_MAX", "OutgoingFrames", "Server", "SocketInUse"]

# Unsent bytes for one gateway. Above it the gateway, which does not read, is disconnected and its requests aborted.
OUTBOX_BYTES_MAX = 8 * 1024 * 1024
HEARTBEAT_S = 1.0
PAUSE_CHECK_S = 0.005
FULL_LOG_EVERY_S = 1.0
PARENT_CHECK_S = 0.25
FLUSH_S = 0.3
# Checks of a lease in its length. Silence is counted in checks, not in seconds: a process that was suspended finds
# frames waiting when it runs again, and must not take its own pause for a gateway's.
LEASE_CHECKS = 8

_log = logging.getLogger(__name__)


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
        self.version = FLEET_VERSION - 1  # until a GatewayHello identifies the gateway
        self.gateway = ""  # its name in the GatewayHello
        self.silent_checks = 0  # of the lease, since the last bytes
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
        self.silent_checks = 0
        try:
            for body in self._reader.feed(data):
                self._frame(body)
        except ProtocolError as error:
            self.cut(f"protocol error: {error}")
        self._server.pause_if_full()

    def _frame(self, body: bytes) -> None:
        frame: ToEngine = decode_to_engine(body)
        if isinstance(frame, GatewayHello):
            frame = self._agree(frame)
        elif isinstance(frame, Alive | Reclaim | DrainEngine) and self.version < FLEET_VERSION:
            raise ProtocolError(f"{type(frame).__name__} before a GatewayHello")
        if isinstance(frame, Submit):
            if frame.handle in self.live:
                raise ProtocolError(f"handle {frame.handle} is in use")
            self.live.add(frame.handle)
        elif isinstance(frame, Alive) or (isinstance(frame, Abort) and frame.handle not in self.live):
            return
        self._server.inbox.receive(self.number, frame, time.monotonic(), len(body))

    def _agree(self, frame: GatewayHello) -> GatewayHello:
        """The frame with the version of the connection, which is the same each time. Raises ProtocolError."""
        hello = self._server.hello
        version = min(frame.version, hello.version)
        if version < max(frame.oldest, hello.oldest, FLEET_VERSION):
            raise ProtocolError(
                f"gateway {frame.gateway!r} speaks the protocol's versions {frame.oldest} to {frame.version}, this "
                f"engine {hello.oldest} to {hello.version}; upgrade the older of the two"
            )
        if not self.gateway:
            self.version, self.gateway = version, frame.gateway
            fields = {"gateway": self.number, "name": frame.gateway, "version": version}
            _log.info("stream.gateway", extra={"fields": fields})
        elif (self.version, self.gateway) != (version, frame.gateway):
            raise ProtocolError("a GatewayHello of another gateway")
        return msgspec.structs.replace(frame, version=version)

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
        self,
        path: Path,
        hello: Hello,
        inbox: Inbox,
        progress: LoopProgress,
        parent: int | None,
        ended: Callable[[str], None],
        *,
        tls: TlsListener | None = None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        """`ended(why)` is called from the I/O thread when `parent`, the process that started this one, has ended, or
        when the I/O thread fails. `tls`: listen there too. A stream beyond `streams_max` is closed at once."""
        self.inbox = inbox
        self.hello = hello
        self._path = path
        self._tls = tls
        self._streams_max = streams_max
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
        """Listen, and serve on a separate thread. Raises SocketInUse."""
        self._streams_max = limit_streams(self._streams_max)
        if self._tls is not None:
            self._tls.open()
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
        """Flush unsent bytes for up to FLUSH_S, close all streams, remove the socket file, end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=FLUSH_S + 1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)

    # ---- for its streams, on the I/O thread

    def opened(self, stream: _Stream) -> None:
        assert stream.transport is not None
        if len(self._streams) >= self._streams_max:
            stream.cut(f"{self._streams_max} streams are open already")
            return
        self._streams[stream.number] = stream
        stream.write(encode(self.hello))
        if self._paused:
            stream.transport.pause_reading()
        fields: dict[str, int | str] = {"gateway": stream.number}
        if certificate := peer_name(stream.transport):
            fields |= {"certificate": certificate}
        _log.info("stream.opened", extra={"fields": fields})

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
                stream.silent_checks = 0  # its frames were not read meanwhile
                stream.transport.resume_reading()

    def _deliver(self, batch: list[OutgoingFrames]) -> None:
        for outgoing in batch:
            stream = self._streams.get(outgoing.gateway)
            if stream is not None:
                stream.live.difference_update(outgoing.ended)
                stream.write(outgoing.data)

    def _tell_models(self, models: Models) -> None:
        self.hello = msgspec.structs.replace(self.hello, models=models.models, refused=models.refused)
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
            self._tls_serving.cancel()
            self._loop.run_until_complete(asyncio.wait([self._heart, self._tls_serving]))
            self._loop.close()

    async def _open(self) -> None:
        assert self._socket is not None
        # Kept: the loop holds its tasks weakly.
        self._heart = asyncio.create_task(self._beat())
        self._heart.add_done_callback(lambda _: self._ended("the I/O thread's heart stopped"))
        self._watch_parent()
        if self.hello.lease_s > 0:
            self._check_leases(self.hello.lease_s / LEASE_CHECKS)
        self._listener = await self._loop.create_unix_server(self._accept, sock=self._socket, backlog=BACKLOG)
        self._tls_serving = asyncio.create_task(self._serve_tls())
        self._tls_serving.add_done_callback(self._tls_ended)

    async def _serve_tls(self) -> None:
        if self._tls is not None:
            await self._tls.serve(self._accept)

    def _tls_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("listener.failed", exc_info=error)
            self._ended("the TLS listener failed")

    def _check_leases(self, every_s: float) -> None:
        """Close the streams of gateways that were silent for the lease. While the loop is behind nothing is read, and
        no gateway can show that it lives."""
        if not self._paused:
            for stream in list(self._streams.values()):
                if stream.version < FLEET_VERSION or stream.transport is None or stream.transport.is_closing():
                    continue
                stream.silent_checks += 1
                if stream.silent_checks > LEASE_CHECKS:
                    stream.cut(f"gateway {stream.gateway!r} was silent for {self.hello.lease_s:g} s, its lease")
        self._loop.call_later(every_s, self._check_leases, every_s)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            now = self._progress
            ages = now.token_ages(self._loop.time())
            frame = encode(Heartbeat(now.step, now.busy, now.running, now.waiting, now.draining, now.load, ages))
            for stream in list(self._streams.values()):
                stream.write(frame)

    def _watch_parent(self) -> None:
        if self._parent is None:
            return
        # Polled, not signalled: PR_SET_PDEATHSIG follows the parent's *thread*, and stdin may be no pipe.
        if os.getppid() == self._parent:
            self._loop.call_later(PARENT_CHECK_S, self._watch_parent)
            return
        _log.warning("engine.orphaned", extra={"fields": {"parent": self._parent}})
        self._ended("the parent process is gone")

    async def _close(self) -> None:
        self._listener.close()
        self._tls_serving.cancel()
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
