"""Where an engine listens: at a Unix socket, or at a host and a port with mutual TLS."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

UNIX = "unix:"
TLS = "tls://"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class TlsAddress:
    """`host` is a name or an IP address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{TLS}{join_host_port(self.host, self.port)}"


StreamAddress = UnixAddress | TlsAddress


def parse_address(text: str | Path) -> StreamAddress:
    """The address "unix:PATH", PATH or "tls://HOST:PORT". Raises ValueError, which says what is wrong."""
    address = os.fspath(text)
    if address.startswith(TLS):
        host, port = parse_host_port(address.removeprefix(TLS))
        return TlsAddress(host, port)
    if "://" in address:
        raise ValueError(f"{address!r} is no address of an engine; write unix:PATH or tls://HOST:PORT")
    path = address.removeprefix(UNIX)
    if not path:
        raise ValueError(f"{address!r} names no path; write unix:PATH or tls://HOST:PORT")
    return UnixAddress(path)


def parse_host_port(text: str) -> tuple[str, int]:
    """The parts of "HOST:PORT" or "[IPV6]:PORT"; port 0 to 65535. Raises ValueError, which says what is wrong."""
    host, _, port = text.rpartition(":")
    is_v6 = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_v6 else host
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or (":" in host) != is_v6 or not digits or int(port) > 65535:
        raise ValueError(f"{text!r} is no HOST:PORT; examples: 10.0.0.7:9443, [::1]:9443, engine-0.example:9443")
    return host, int(port)


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
