"""The store of a gateway for engines of other hosts, its certificates, and connections that are cut."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore
from engine.protocol.tls import CertificateFiles
from gateway.config.settings import FleetSection
from gateway.host.fleet_certificates import MemberNames, make_certificates
from gateway.uploads.content_manifests import ContentManifests
from gateway.uploads.content_sources import HostSources
from gateway.uploads.store_server import StoreServer
from support.adapters.directories import add_directory

MEMBERS = [
    MemberNames("gateway-1", is_gateway=True),
    MemberNames("engine-1", is_engine=True),
    MemberNames("both-1", ("127.0.0.1",), is_engine=True, is_gateway=True),
]


def fleet_files(directory: Path, name: str) -> CertificateFiles:
    """The files of a member of MEMBERS; made at the first call."""
    if not (directory / "authority.pem").exists():
        make_certificates(directory, MEMBERS, 1)
    return CertificateFiles(directory / f"{name}.pem", directory / f"{name}.key", directory / "authority.pem")


class GatewayStore:
    """Adapters and models of a gateway's host, and the listener that serves them. Used as a context manager."""

    def __init__(self, directory: Path, files: CertificateFiles) -> None:
        self.adapters = AdapterStore(directory / "adapters")
        self.manifests = ContentManifests(self.adapters, directory / "manifests")
        self.server = StoreServer("127.0.0.1", 0, files, self.manifests)

    def __enter__(self) -> GatewayStore:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def keep_adapter(self, source: Path, model: Path) -> str:
        """Store an adapter. Returns its digest."""
        return add_directory(self.adapters, source, BaseShape.from_directory(model)).digest

    def sources(self, port: int | None = None) -> HostSources:
        """`port`: of a proxy before the listener."""
        fleet = FleetSection(
            certificate_file="c",
            key_file="k",
            authority_file="a",
            store_address=f"127.0.0.1:{port or self.server.port}",
        )
        return HostSources(fleet, self.manifests)


class FleetPeer(http.client.HTTPConnection):
    """A connection to the store: in the TLS role of a server, as an engine has it, or of a client."""

    def __init__(self, port: int, context: ssl.SSLContext, *, as_server: bool = True) -> None:
        super().__init__("127.0.0.1", port, timeout=10)
        self._context = context
        self._as_server = as_server

    def connect(self) -> None:
        super().connect()
        plain = self.sock
        try:
            self.sock = self._context.wrap_socket(plain, server_side=self._as_server)
        except OSError:
            plain.close()
            raise

    def fetch(self, path: str, **headers: str) -> tuple[int, bytes]:
        self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = self.getresponse()
        return answer.status, answer.read()


class CuttingProxy:
    """A TCP proxy that cuts its first connections, each after a given number of bytes of the answer. `passed`: bytes of
    answers."""

    def __init__(self, target: int, cuts: list[int]) -> None:
        self._target = target
        self._cuts = list(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.passed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            limit = self._cuts.pop(0) if self._cuts else None
            threading.Thread(target=self._pump, args=(peer, server, None, lambda _: None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, peer, limit, self._count), daemon=True).start()

    def _count(self, count: int) -> None:
        self.passed += count

    def _pump(
        self, source: socket.socket, target: socket.socket, limit: int | None, note: Callable[[int], None]
    ) -> None:
        with contextlib.suppress(OSError):
            while (limit is None or limit > 0) and (data := source.recv(65536 if limit is None else min(65536, limit))):
                target.sendall(data)
                note(len(data))
                limit = None if limit is None else limit - len(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
