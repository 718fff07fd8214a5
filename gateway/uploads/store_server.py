"""Serves this host's adapters and models to engines on other hosts, at `fleet.store_address`.

An engine opens the connection, but is the server of the TLS handshake, and the gateway is its client: so both present
their certificates for the streams of frames. A peer without a certificate for engines gets no byte. Threads do the
work: the encryption of gigabytes must not delay the tokens of the event loop, and OpenSSL releases the interpreter's
lock.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import os
import re
import socket
import socketserver
import ssl
import stat
import sys
import threading
import time
from typing import Any

from engine.contents.manifests import MANIFEST, ContentKind, encode_manifest
from engine.protocol.tls import CertificateFiles, CurrentContext, client_context
from gateway.uploads.content_manifests import ContentManifests, StoredContent

# CONNECTIONS_MAX open connections have a thread each; a further one is closed at once. DOWNLOADS_MAX of them may send
# bytes; a further download waits for QUEUE_S, which is less than the engines' timeout, and then gets 503.
CONNECTIONS_MAX = 128
DOWNLOADS_MAX = 8
QUEUE_S = 15.0
HANDSHAKE_S = 5.0
IDLE_S = 30.0  # of a connection without a request, and of a peer that reads nothing
BLOCK_BYTES = 1024 * 1024
PATH = re.compile(r"/internal/(adapters|models)/([0-9a-f]{64})/([A-Za-z0-9_][A-Za-z0-9._-]{0,127})")
RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")

_log = logging.getLogger(__name__)


class StoreServer:
    """One per gateway process; the workers of a host share the address. `start`, then `close`."""

    def __init__(self, host: str, port: int, files: CertificateFiles, manifests: ContentManifests) -> None:
        """Raises CertificatesUnusable."""
        self._address = (host, port)
        self._context = CurrentContext(files, _context)
        self._manifests = manifests
        self._server: _Listener | None = None

    @property
    def port(self) -> int:
        """The bound port."""
        assert self._server is not None
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Raises OSError when it cannot listen."""
        try:
            self._server = _Listener(self._address, self._context, self._manifests)
        except OSError as error:
            raise OSError(error.errno, f"fleet.store_address: {error.strerror}") from error
        threading.Thread(target=self._server.serve_forever, name="store-server", daemon=True).start()

    def close(self) -> None:
        """Closes all connections, also during a transfer: engines fetch the rest from another source. Blocks for half a
        second. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.close_connections()
            self._server.server_close()
            self._server = None


def _context(files: CertificateFiles) -> ssl.SSLContext:
    context = client_context(files)
    context.check_hostname = False  # any engine of the fleet may connect, from any address
    return context


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    allow_reuse_port = True  # several workers
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], context: CurrentContext, manifests: ContentManifests) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.manifests = manifests
        self.downloads = threading.BoundedSemaphore(DOWNLOADS_MAX)
        self._context = context
        self._open: set[socket.socket] = set()
        self._changing = threading.Lock()
        super().__init__(address, _StoreHandler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a thread for the connection."""
        with self._changing:
            if len(self._open) >= CONNECTIONS_MAX:
                return False
            self._open.add(request)
            return True

    def finish_request(self, request: Any, client_address: Any) -> None:
        """On the connection's thread."""
        request.settimeout(HANDSHAKE_S)
        with self._context.current().wrap_socket(request, suppress_ragged_eofs=True) as secured:
            with self._changing:  # the first object has no file any more
                self._open.discard(request)
                self._open.add(secured)
            try:
                secured.settimeout(IDLE_S)
                _StoreHandler(secured, client_address, self)
            finally:
                with self._changing:
                    self._open.discard(secured)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        reason = getattr(error, "reason", None) or type(error).__name__
        _log.warning("store.connection_failed", extra={"fields": {"peer": client_address[0], "reason": str(reason)}})

    def close_connections(self) -> None:
        with self._changing:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _StoreHandler(http.server.BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    server_version = "laneway"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        match = PATH.fullmatch(self.path)
        content: StoredContent | None = None
        if match is not None:
            kind: ContentKind = "adapters" if match[1] == "adapters" else "models"
            with contextlib.suppress(OSError, ValueError):
                content = self.server.manifests.content(kind, match[2])
        if match is None or content is None:
            self._refuse(404)
        elif match[3] == MANIFEST:
            self._send_bytes(encode_manifest(content.manifest))
        elif (file := content.manifest.file(match[3])) is None:
            self._refuse(404)
        elif not self.server.downloads.acquire(timeout=QUEUE_S):
            self._refuse(503)
        else:
            try:
                self._send_file(content, file.name, file.bytes, follow=match[1] == "models")
            finally:
                self.server.downloads.release()

    def _send_bytes(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, content: StoredContent, name: str, size: int, *, follow: bool) -> None:
        """`follow`: symbolic links, of which caches of models consist."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
        try:
            descriptor = os.open(content.directory / name, flags)
        except OSError:
            self._refuse(404)
            return
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                self._refuse(404)
                return
            if (span := self._range(size)) is None:
                self._refuse(416)
                return
            start, stop = span
            partial = (start, stop) != (0, size)
            self.send_response(206 if partial else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Accept-Ranges", "bytes")
            if partial:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            began = time.monotonic()
            file.seek(start)
            left = stop - start
            while left and (block := file.read(min(BLOCK_BYTES, left))):
                self.connection.sendall(block)
                left -= len(block)
        if left:  # the file became shorter: the engine sees a cut
            self.close_connection = True
        fields = {"path": self.path, "bytes": stop - start - left, "seconds": round(time.monotonic() - began, 3)}
        _log.info("content.served", extra={"fields": fields})

    def _range(self, size: int) -> tuple[int, int] | None:
        """Start and end of the requested range; None if no byte of it exists. A header of another form is ignored, as
        HTTP requires."""
        match = RANGE.fullmatch(self.headers.get("Range", ""))
        if match is None:
            return 0, size
        start, last = int(match[1]), int(match[2]) if match[2] else size - 1
        return (start, min(last + 1, size)) if start < size and start <= last else None

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: `content.served` is logged instead."""
