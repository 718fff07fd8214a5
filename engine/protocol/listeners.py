"""The engine's listening sockets: a Unix socket, and a TCP one on which every stream needs a certificate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from engine.protocol.addresses import join_host_port
from engine.protocol.tls import CertificateFiles, CurrentContext, server_context, set_tcp_options

SOCKET_PATH_BYTES_MAX = 107
# Connections that the kernel queues until they are accepted; it limits the number to net.core.somaxconn.
BACKLOG = 1024
# Streams of gateways, each worker's and the supervisor's own.
STREAMS_MAX = 4096
# Descriptors that are not streams: devices, files of models and adapters, pipes, listening sockets.
DESCRIPTORS_RESERVED = 256
HANDSHAKE_S = 5.0
# Connections without a verified certificate. Above it the oldest is closed for the new one.
HANDSHAKES_MAX = 256
REFUSED_LOG_EVERY_S = 1.0
ACCEPT_RETRY_S = 1.0
SHUTDOWN_S = 1.0

_log = logging.getLogger(__name__)


class SocketInUse(Exception):
    """The engine cannot listen: another process does, the file is no socket, or the address is not this host's."""


def limit_streams(wanted: int) -> int:
    """Raise the soft limit of descriptors so that `wanted` streams fit. Returns how many fit; a lower number is
    logged."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + DESCRIPTORS_RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        target = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):  # some systems have another limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    fitting = max(1, soft - DESCRIPTORS_RESERVED)
    fields = {"streams": fitting, "wanted": wanted, "descriptors": soft}
    _log.warning("streams.limited", extra={"fields": fields})
    return fitting


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
    listener.listen(BACKLOG)
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


class TlsListener:
    """Accepts TCP connections and passes on connections whose certificate the authority signed. `open` is thread-safe;
    `serve` runs on the I/O thread's loop until it is cancelled."""

    def __init__(self, host: str, port: int, files: CertificateFiles) -> None:
        """Raises CertificatesUnusable."""
        self._host = host
        self._port = port
        self._context = CurrentContext(files, server_context)
        self._sockets: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._refused = 0  # since the last log line
        self._refused_logged_at = -REFUSED_LOG_EVERY_S

    def open(self) -> None:
        """Listen at every address of the host. Raises SocketInUse."""
        name = join_host_port(self._host, self._port)
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
                listener.setblocking(False)
                self._sockets.append(listener)
        except OSError as error:
            self.close()
            raise SocketInUse(f"the engine cannot listen at {name}: {error.strerror}") from error

    @property
    def address(self) -> str:
        """HOST:PORT as configured, with the port that the system chose for port 0."""
        return join_host_port(self._host, self._sockets[0].getsockname()[1])

    async def serve(self, make_stream: Callable[[], asyncio.Protocol]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for listener in self._sockets:
                    group.create_task(self._accept(listener, make_stream))
        finally:
            self.close()
            handshakes = list(self._handshakes)
            for task in handshakes:
                task.cancel()
            await asyncio.gather(*handshakes, return_exceptions=True)

    def close(self) -> None:
        for listener in self._sockets:
            listener.close()

    async def _accept(self, listener: socket.socket, make_stream: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except ConnectionError:  # the peer has disconnected already
                continue
            except OSError as error:  # no descriptor is free, most likely
                _log.error("accept.failed", extra={"fields": {"reason": error.strerror}})
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._shake_hands(connection, f"{peer[0]} port {peer[1]}", make_stream))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(
        self, connection: socket.socket, peer: str, make_stream: Callable[[], asyncio.Protocol]
    ) -> None:
        """The stream receives its `connection_made` after the handshake, so no frame leaves before the peer's
        certificate is verified."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(
                make_stream,
                connection,
                ssl=self._context.current(),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
            set_tcp_options(transport)
        except OSError as error:  # SSLError among them
            reason = getattr(error, "reason", None) or str(error)
            fault = getattr(error, "verify_message", "")  # of the peer's certificate
            self._note_refused(peer, f"{reason}: {fault}" if fault else reason)

    def _note_refused(self, peer: str, reason: str) -> None:
        self._refused += 1
        now = time.monotonic()
        if now - self._refused_logged_at >= REFUSED_LOG_EVERY_S:
            fields = {"peer": peer, "reason": reason, "refused": self._refused}
            _log.warning("tls.refused", extra={"fields": fields})
            self._refused, self._refused_logged_at = 0, now
