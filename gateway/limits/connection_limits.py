"""Bounds on the open connections of one process: in all, and per client address.

A connection waits while it has no complete request head. At a bound, the oldest waiting connection is evicted for the
new one. A new connection is refused only when every connection that counts towards the bound has a request in progress.
Nothing here reads or writes a socket.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
from collections import OrderedDict
from typing import Protocol

from gateway.metrics import Metrics

IPV6_PREFIX = 64  # one IPv6 client has a /64
# Descriptors of the process that are no client connection: database pools, engine stream, Redis, siblings, webhooks,
# exports, log and journal. Measured: 30 to 60.
DESCRIPTORS_RESERVED = 128
UPLOAD_DESCRIPTORS = 6  # directory lock, file, and the pipes of the process that checks
DESCRIPTORS_WANTED = 65_536
# The share of the total that one address may hold, unless `connections_per_address_max` is set. Behind a proxy all
# clients share its address; without a proxy a single address must leave room for others.
ADDRESS_SHARE = 0.75


class Evictable(Protocol):
    def evict(self) -> None:
        """Close at once: `Connections` counts it as closed already."""
        ...


def client_of(address: str) -> str:
    """The address under which a client is counted: an IPv4 address, or a /64 of IPv6."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:  # the path of a Unix socket
        return address
    if parsed.ipv4_mapped is not None:  # a dual-stack socket's form of an IPv4 address
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one, up to DESCRIPTORS_WANTED: the usual soft limit of 1,024 is
    for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # some systems have another limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _WaitingConnections:
    """Waiting connections, oldest first: `fresh` ones never had a complete head, `idle` ones had a request before."""

    __slots__ = ("fresh", "idle")

    def __init__(self) -> None:
        self.fresh: OrderedDict[Evictable, None] = OrderedDict()
        self.idle: OrderedDict[Evictable, None] = OrderedDict()

    def oldest(self) -> Evictable | None:
        """The next to evict: `fresh` before `idle`, so a client that had an answer keeps its connection longer."""
        return next(iter(self.fresh), None) or next(iter(self.idle), None)

    def discard(self, connection: Evictable) -> None:
        self.fresh.pop(connection, None)
        self.idle.pop(connection, None)


class _Client:
    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.open = 0
        self.waiting = _WaitingConnections()


class Connections:
    """The open connections of this process. `per_address_max` 0: ADDRESS_SHARE of the total. `uploads_max`: uploads
    whose descriptors are kept free."""

    def __init__(self, metrics: Metrics, *, per_address_max: int, uploads_max: int) -> None:
        self._metrics = metrics
        self._per_address_max = per_address_max
        self._reserved = DESCRIPTORS_RESERVED + UPLOAD_DESCRIPTORS * uploads_max
        self._clients: dict[str, _Client] = {}
        self._of: dict[Evictable, tuple[str, _Client]] = {}
        self._waiting = _WaitingConnections()
        metrics.connections.set_function(lambda: len(self._of))
        metrics.connections_max.set_function(self.total_max)

    def total_max(self) -> int:
        """From RLIMIT_NOFILE as it is now: prlimit(1) changes it while the process runs."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            soft = DESCRIPTORS_WANTED
        return max(1, soft - min(self._reserved, soft // 2))

    def open(self, connection: Evictable, address: str) -> bool:
        """Count a new connection, which waits for its first head. False: refused, and not counted."""
        total_max = self.total_max()
        per_address_max = self._per_address_max or max(1, int(total_max * ADDRESS_SHARE))
        name = client_of(address)
        client = self._clients.get(name)
        if client is not None and client.open >= per_address_max and not self._evict(client.waiting):
            self._metrics.connections_closed.labels("address_limit").inc()
            return False
        while len(self._of) >= total_max:  # more than one to evict after the limit was lowered
            if not self._evict(self._waiting):
                self._metrics.connections_closed.labels("total_limit").inc()
                return False
        client = self._clients.setdefault(name, _Client())
        client.open += 1
        self._of[connection] = (name, client)
        client.waiting.fresh[connection] = self._waiting.fresh[connection] = None
        return True

    def busy(self, connection: Evictable) -> None:
        """Its head is complete: it cannot be evicted. No effect on a connection that is not counted."""
        if (found := self._of.get(connection)) is not None:
            found[1].waiting.discard(connection)
            self._waiting.discard(connection)

    def idle(self, connection: Evictable) -> None:
        """Its answer is complete: it waits for another head, and may be evicted."""
        if (found := self._of.get(connection)) is not None:
            found[1].waiting.idle[connection] = self._waiting.idle[connection] = None

    def closed(self, connection: Evictable) -> None:
        """Idempotent."""
        if (found := self._of.pop(connection, None)) is None:
            return
        name, client = found
        client.waiting.discard(connection)
        self._waiting.discard(connection)
        client.open -= 1
        if not client.open:
            del self._clients[name]

    def cut(self, reason: str) -> None:
        """Count a connection that a deadline closed."""
        self._metrics.connections_closed.labels(reason).inc()

    def _evict(self, waiting: _WaitingConnections) -> bool:
        connection = waiting.oldest()
        if connection is None:
            return False
        self.closed(connection)
        self._metrics.connections_closed.labels("evicted").inc()
        connection.evict()
        return True
