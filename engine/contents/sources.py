"""Where an engine fetches contents: from a gateway's store and from HTTPS servers, with the fleet's certificates, and
from object stores.

At fleet://HOST:PORT a gateway waits for connections and has the TLS role of a client, the engine that of a server. So
both show the certificates that they have for the streams of frames, and an engine needs none for clients, with which it
could send requests to other engines. Every failure names the source without user, password and query.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from engine.contents.manifests import MANIFEST, MANIFEST_BYTES_MAX
from engine.contents.object_stores import (
    ObjectStoreUnusable,
    is_passing,
    object_errors,
    open_object_store,
    plain_url,
    why_failed,
)
from engine.protocol.tls import CertificateFiles, CurrentContext, client_context, server_context

BLOCK_BYTES = 1024 * 1024
# Of one request to an object store: memory of a download.
OBJECT_BLOCK_BYTES = 8 * 1024 * 1024
SILENCE_S = 30.0  # without a byte
# A source below RATE_MIN bytes per second over RATE_WINDOW_S is abandoned, and the next source is tried.
RATE_MIN, RATE_WINDOW_S = 16 * 1024, 60.0
REASON_CHARS_MAX = 200

FLEET = "fleet"


class SourceFailed(Exception):
    """The source does not have the content or cannot be reached: try the next one."""


class SourceCut(SourceFailed):
    """The source stopped before the end of a file; the rest may be requested again."""


class ContentSource(Protocol):
    """One URL of a content's directory. `manifest_sum`: SHA-256 of the manifest in hex, if the URL names it."""

    name: str
    manifest_sum: str

    def read_manifest(self) -> bytes:
        """Raises SourceFailed."""
        ...

    def read_file(self, name: str, start: int, size: int) -> Iterator[bytes | memoryview]:
        """The bytes from `start` to `size`, the file's length; more or fewer are possible. Raises SourceFailed."""
        ...


class FleetContexts:
    """This engine's certificate of the fleet, for connections to gateways' stores and to HTTPS servers."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises CertificatesUnusable."""
        self.accepting = CurrentContext(files, server_context)
        self.connecting = CurrentContext(files, client_context)


def open_source(url: str, contexts: FleetContexts | None) -> ContentSource:
    """`contexts` None: only object stores and http:// of this host are possible. Raises SourceFailed."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SourceFailed("a source is no URL") from None
    name = plain_url(url)
    if "@" in parts.netloc or parts.query:
        raise SourceFailed(f"{name}: a source has no user, password or query")
    manifest_sum = parts.fragment.removeprefix("sha256=") if parts.fragment.startswith("sha256=") else ""
    if parts.scheme in ("http", "https", FLEET):
        return HttpSource(name, manifest_sum, parts, port, contexts)
    try:
        return ObjectSource(name, manifest_sum, open_object_store(name))
    except ObjectStoreUnusable as error:
        raise SourceFailed(f"{name}: {error}") from error


class HttpSource:
    """Implements `ContentSource` for the store of a gateway, and for any server that answers in the same way."""

    def __init__(
        self, name: str, manifest_sum: str, parts: SplitResult, port: int | None, contexts: FleetContexts | None
    ) -> None:
        """Raises SourceFailed."""
        self.name = name
        self.manifest_sum = manifest_sum
        self._scheme = parts.scheme
        self._host = parts.hostname or ""
        self._port = port
        self._path = parts.path.rstrip("/")
        self._contexts = contexts
        if parts.scheme == "http" and not _is_loopback(self._host):
            raise SourceFailed(f"{name}: http:// is allowed on this host's loopback addresses only")
        if parts.scheme != "http" and contexts is None:
            raise SourceFailed(f"{name}: this engine has no certificate of the fleet")

    def read_manifest(self) -> bytes:
        data = b"".join(self._read_response(MANIFEST, 0, MANIFEST_BYTES_MAX + 1))
        if len(data) > MANIFEST_BYTES_MAX:
            raise SourceFailed(f"{self.name}: its manifest is over {MANIFEST_BYTES_MAX} bytes")
        return data

    def read_file(self, name: str, start: int, size: int) -> Iterator[bytes | memoryview]:
        return self._read_response(name, start, size)

    def _read_response(self, name: str, start: int, size: int) -> Iterator[bytes | memoryview]:
        connection = self._connection()
        received, since, answered = 0, time.monotonic(), False
        try:
            headers = {"Range": f"bytes={start}-"} if start else {}
            connection.request("GET", f"{self._path}/{quote(name)}", headers=headers)
            response = connection.getresponse()
            answered = True
            if response.status == http.client.SERVICE_UNAVAILABLE:  # the store already serves its maximum of downloads
                raise SourceCut(f"{self.name}: status {response.status} for {name}")
            if response.status != (206 if start else 200):
                raise SourceFailed(f"{self.name}: status {response.status} for {name}")
            if start and not response.getheader("Content-Range", "").startswith(f"bytes {start}-"):
                raise SourceFailed(f"{self.name}: another range of {name} than requested")
            while start + received < size and (block := response.read(min(BLOCK_BYTES, size - start - received))):
                received += len(block)
                yield block
                elapsed_s = time.monotonic() - since
                if elapsed_s > RATE_WINDOW_S and received < RATE_MIN * elapsed_s:
                    raise SourceFailed(f"{self.name}: less than {RATE_MIN} bytes per second")
        except (OSError, http.client.HTTPException) as error:
            kind = SourceCut if answered else SourceFailed
            raise kind(f"{self.name}: {_reason(error)}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        """Not connected yet: http.client follows no redirect and uses no proxy."""
        if self._scheme == "http" or self._contexts is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=SILENCE_S)
        if self._scheme == FLEET:
            return _FleetConnection(self._host, self._port, self._contexts.accepting.current())
        context = self._contexts.connecting.current()
        return http.client.HTTPSConnection(self._host, self._port, timeout=SILENCE_S, context=context)


class _FleetConnection(http.client.HTTPConnection):
    """Requests over TLS in which this end has the server's role."""

    def __init__(self, host: str, port: int | None, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=SILENCE_S)
        self._context = context

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_side=True)


class ObjectSource:
    """Implements `ContentSource` for a folder of an object store."""

    def __init__(self, name: str, manifest_sum: str, store: Any) -> None:
        self.name = name
        self.manifest_sum = manifest_sum
        self._store = store

    def read_manifest(self) -> bytes:
        import obstore

        try:
            size = obstore.head(self._store, MANIFEST)["size"]
            if size > MANIFEST_BYTES_MAX:
                raise SourceFailed(f"{self.name}: its manifest is over {MANIFEST_BYTES_MAX} bytes")
            return bytes(obstore.get(self._store, MANIFEST).bytes())
        except object_errors() as error:
            raise SourceFailed(f"{self.name}: {MANIFEST}: {why_failed(error)}") from None

    def read_file(self, name: str, start: int, size: int) -> Iterator[bytes | memoryview]:
        import obstore

        while start < size:
            try:
                length = min(OBJECT_BLOCK_BYTES, size - start)
                block = memoryview(obstore.get_range(self._store, name, start=start, length=length))
            except object_errors() as error:
                kind = SourceCut if is_passing(error) else SourceFailed
                raise kind(f"{self.name}: {name}: {why_failed(error)}") from None
            if not block:
                return
            start += len(block)
            yield block


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'failed'}"
    if isinstance(error, socket.gaierror):
        return "its host name is unknown"
    if isinstance(error, TimeoutError):
        return f"no byte within {SILENCE_S:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:REASON_CHARS_MAX]
