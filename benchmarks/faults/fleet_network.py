"""Network namespaces on two bridges of this host: one between gateways and engines, one between clients and gateways.

Each namespace has separate links, and a link that is down drops packets: no packet is refused or answered. It needs
Linux, root and the `ip` command.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

Side = Literal["engines", "clients"]
NETWORKS: dict[Side, str] = {"engines": "10.213", "clients": "10.214"}  # a /16 each; this host is .0.1 in both


def run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def own_address(side: Side) -> str:
    """This host's address."""
    return f"{NETWORKS[side]}.0.1"


class Namespace:
    """One network namespace. `prefix`: of the bridges' names."""

    def __init__(self, prefix: str, name: str, addresses: dict[Side, str]) -> None:
        """`addresses`: its own, on the bridges that it is linked to."""
        self.addresses = addresses
        self._prefix = prefix
        self._name = prefix + name

    def make(self) -> None:
        run_ip("netns", "add", self._name)
        run_ip("-n", self._name, "link", "set", "lo", "up")
        for side, address in self.addresses.items():
            inner = f"{self._name}-{side[0]}"
            run_ip("link", "add", self._link(side), "type", "veth", "peer", "name", inner, "netns", self._name)
            run_ip("link", "set", self._link(side), "master", bridge(self._prefix, side), "up")
            run_ip("-n", self._name, "addr", "add", f"{address}/16", "dev", inner)
            run_ip("-n", self._name, "link", "set", inner, "up")

    def remove(self) -> None:
        for side in self.addresses:
            subprocess.run(["ip", "link", "del", self._link(side)], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self._name], check=False, capture_output=True)

    def set_link(self, side: Side, *, up: bool) -> None:
        run_ip("link", "set", self._link(side), "up" if up else "down")

    def start(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """A process in the namespace; `options`: of Popen."""
        return subprocess.Popen(["ip", "netns", "exec", self._name, *argv], **options)

    def _link(self, side: Side) -> str:
        """The end that is on this host."""
        return f"{self._name}{side[0]}"


def bridge(prefix: str, side: Side) -> str:
    return f"{prefix}{side}"


@contextmanager
def bridges(prefix: str, namespaces: Sequence[Namespace]) -> Iterator[None]:
    """The bridges and namespaces, for as long as the context lasts."""
    try:
        for side in NETWORKS:
            run_ip("link", "add", bridge(prefix, side), "type", "bridge")
            run_ip("addr", "add", f"{own_address(side)}/16", "dev", bridge(prefix, side))
            run_ip("link", "set", bridge(prefix, side), "up")
        for namespace in namespaces:
            namespace.make()
        yield
    finally:
        for namespace in namespaces:
            namespace.remove()
        for side in NETWORKS:
            subprocess.run(["ip", "link", "del", bridge(prefix, side)], check=False, capture_output=True)


class RelayProcess:
    """`relay.py` on this host, in front of one engine."""

    def __init__(self, listen: str, target: str) -> None:
        """`listen`, `target`: HOST:PORT. Returns once it listens."""
        argv = [sys.executable, "-m", "benchmarks.faults.relay", listen, target]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the relay does not listen"

    def set_delay(self, least_s: float, most_s: float) -> None:
        self._command(f"delay {least_s} {most_s}")

    def hold(self) -> None:
        self._command("hold")

    def release(self) -> None:
        self._command("pass")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
