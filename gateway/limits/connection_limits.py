"""Bounds on the open connections of one process: in total, and per client address.

A connection waits while it has no complete request head. At a bound, the oldest waiting connection is evicted for the
new one. A new connection is refused only when every connection that counts towards the bound has a request in progress.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
from collections import OrderedDict
from typing import Protocol

from gateway.metrics import Metrics

IPV6_PREFIX = 64  # one IPv6 client has a /64
# Descriptors that are not client connections: database pools, engine stream, Redis, other workers, webhooks, exports,
# log and journal. Measured: 30 to 60.
DESCRIPTORS_RESERVED = 128
UPLOAD_DESCRIPTORS = 6  # directory lock, file, and the pipes of the job process that checks the adapter
DESCRIPTORS_TARGET = 65_536
# The part of the total that one address may have, unless `connections_per_address_max` is set. Behind a proxy all
# clients have its address; without a proxy one address must not exclude the others.
ADDRESS_PART = 0.75


class Evictable(Protocol):
    def evict(self) -> None:
        """Close at once. `Connections` has counted the connection as closed already."""
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
    """Raise the soft limit of descriptors to the hard limit, at most to DESCRIPTORS_TARGET. The usual soft limit of
    1,024 is for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = DESCRIPTORS_TARGET if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_TARGET)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(ValueError, OSError):  # some systems have another limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


class _WaitingConnections:
    """Waiting connections, oldest first. `fresh`: no complete head arrived yet. `idle`: a request was answered."""

    __slots__ = ("fresh", "idle")

    def __init__(self) -> None:
        self.fresh: OrderedDict[Evictable, None] = OrderedDict()
        self.idle: OrderedDict[Evictable, None] = OrderedDict()

    def oldest(self) -> Evictable | None:
        """The next connection to evict: a `fresh` connection before an `idle` one."""
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
    """The open connections of this process. `per_address_max` 0: ADDRESS_PART of the total. `uploads_max`: the
    number of uploads for which descriptors are reserved."""

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
        """The bound, from the present RLIMIT_NOFILE: prlimit(1) may change it while the process runs."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            soft = DESCRIPTORS_TARGET
        return max(1, soft - min(self._reserved, soft // 2))

    def open(self, connection: Evictable, address: str) -> bool:
        """Count a new connection, which waits for its first head. False: the connection is refused and not counted."""
        total_max = self.total_max()
        per_address_max = self._per_address_max or max(1, int(total_max * ADDRESS_PART))
        name = client_of(address)
        client = self._clients.get(name)
        if client is not None and client.open >= per_address_max and not self._evict(client.waiting):
            self._metrics.connections_closed.labels("address_limit").inc()
            return False
        while len(self._of) >= total_max:  # a loop, since the limit may have been lowered
            if not self._evict(self._waiting):
                self._metrics.connections_closed.labels("total_limit").inc()
                return False
        client = self._clients.setdefault(name, _Client())
        client.open += 1
        self._of[connection] = (name, client)
        client.waiting.fresh[connection] = self._waiting.fresh[connection] = None
        return True

    def busy(self, connection: Evictable) -> None:
        """The connection's head is complete: it cannot be evicted. No effect on a connection that is not counted."""
        if (found := self._of.get(connection)) is not None:
            found[1].waiting.discard(connection)
            self._waiting.discard(connection)

    def idle(self, connection: Evictable) -> None:
        """The connection's answer is complete: it waits for another head and may be evicted."""
        if (found := self._of.get(connection)) is not None:
            found[1].waiting.idle[connection] = self._waiting.idle[connection] = None

    def closed(self, connection: Evictable) -> None:
        """Stop counting the connection. Idempotent."""
        if (found := self._of.pop(connection, None)) is None:
            return
        name, client = found
        client.waiting.discard(connection)
        self._waiting.discard(connection)
        client.open -= 1
        if not client.open:
            del self._clients[name]

    def count_deadline(self, reason: str) -> None:
        """Count a connection that a deadline closed, in the metric of closed connections."""
        self._metrics.connections_closed.labels(reason).inc()

    def _evict(self, waiting: _WaitingConnections) -> bool:
        connection = waiting.oldest()
        if connection is None:
            return False
        self.closed(connection)
        self._metrics.connections_closed.labels("evicted").inc()
        connection.evict()
        return True
