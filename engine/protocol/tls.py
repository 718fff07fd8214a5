"""Mutual TLS between gateways and engines: contexts of both ends from three files, made again when a file changes.

TLS 1.3 only. Each end has a certificate that the fleet's authority signed, and accepts no other. No message and no log
line has the contents of a file.
"""

from __future__ import annotations

import logging
import socket
import ssl
import stat
from asyncio import BaseTransport
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# An idle connection is probed after KEEPALIVE_IDLE_S, every KEEPALIVE_EVERY_S, and closed after KEEPALIVE_PROBES
# without an answer. Heartbeats find a lost peer earlier; the kernel's probes keep the state of firewalls between.
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_PROBES = 10, 5, 3

_log = logging.getLogger(__name__)


class CertificatesUnusable(Exception):
    """A file cannot be read, is no certificate or key, or the key is another certificate's. The message names the
    file."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files: a certificate with its chain, its key without a passphrase, and the certificates of the authority that
    signs for the fleet."""

    certificate: Path
    key: Path
    authority: Path


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    """The context of an engine: a gateway without a certificate of the authority fails the handshake. Raises
    CertificatesUnusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A ticket would let a gateway resume a session after its authority was removed from the file.
    context.num_tickets = 0
    return _complete(context, files)


def client_context(files: CertificateFiles) -> ssl.SSLContext:
    """The context of a gateway: it checks that the engine's certificate names the host that it connects to. Raises
    CertificatesUnusable."""
    return _complete(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


def _complete(context: ssl.SSLContext, files: CertificateFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # Only certificates of the authority's file are trusted, also when it has an intermediate authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=files.authority)
    except (OSError, ValueError) as error:
        raise CertificatesUnusable(f"the authority's file {files.authority}: {_reason(error)}") from error
    try:
        # With a passphrase of our own OpenSSL does not ask for one at a terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (OSError, ValueError) as error:
        names = f"the certificate {files.certificate} with the key {files.key}"
        raise CertificatesUnusable(f"{names}: {_reason(error)}") from error
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is no PEM file of the expected kind, or its key needs a passphrase"
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else "it is no PEM file"


class CurrentContext:
    """The context of three files, for each new connection: `current()`. Files that changed are read again. While they
    do not fit together, such as between the replacement of a certificate and of its key, the previous context remains
    in use, and one warning is logged."""

    def __init__(self, files: CertificateFiles, make: Callable[[CertificateFiles], ssl.SSLContext]) -> None:
        """`make`: server_context or client_context. Raises CertificatesUnusable."""
        self._files = files
        self._make = make
        self._found = self._stats()
        self._failed: object = None  # the state of the files of the last warning
        self._context = make(files)
        self._check_key()

    def current(self) -> ssl.SSLContext:
        found = self._stats()
        if found not in (self._found, self._failed):
            try:
                self._context = self._make(self._files)
            except CertificatesUnusable as error:
                self._failed = found
                _log.warning("certificates.unusable", extra={"fields": {"reason": str(error)}})
            else:
                self._found, self._failed = found, None
                _log.info("certificates.reloaded", extra={"fields": {"certificate": str(self._files.certificate)}})
                self._check_key()
        return self._context

    def _stats(self) -> tuple[tuple[int, int, int, int] | None, ...]:
        return tuple(map(_file_state, (self._files.certificate, self._files.key, self._files.authority)))

    def _check_key(self) -> None:
        mode = self._files.key.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            fields = {"path": str(self._files.key), "mode": f"{mode & 0o7777:o}"}
            _log.warning("files.readable", extra={"fields": fields})


def _file_state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def peer_name(transport: BaseTransport) -> str:
    """The common name in the peer's certificate, for logs; "" without one."""
    certificate = transport.get_extra_info("peercert") or {}
    for attributes in certificate.get("subject", ()):
        for name, value in attributes:
            if name == "commonName":
                return str(value)
    return ""


def peer_expires_at(transport: BaseTransport) -> float | None:
    """When the peer's certificate expires, in Unix seconds; None without one."""
    certificate = transport.get_extra_info("peercert") or {}
    return float(ssl.cert_time_to_seconds(certificate["notAfter"])) if "notAfter" in certificate else None


def set_tcp_options(transport: BaseTransport) -> None:
    """Frames leave at once, and the kernel probes an idle connection. Does nothing for a Unix socket."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if (option := getattr(socket, name, None)) is not None:  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
