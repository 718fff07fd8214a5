"""The end of listening: connections that the kernel has accepted for this process are served, not reset."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence


async def close_listeners(
    servers: Sequence[asyncio.AbstractServer],
    sockets: Sequence[socket.socket],
    protocol: Callable[[], asyncio.Protocol],
) -> int:
    """Stop listening: close the `servers` and the `sockets` that they were made of, and serve the connections that wait
    in their queues; return the number of these. A connection that arrives between the last accept and the close is
    reset, unless net.ipv4.tcp_migrate_req hands it to another worker."""
    listeners = [_copy(listener) for server in servers for listener in getattr(server, "sockets", None) or ()]
    for server in servers:
        server.close()
    for listener in sockets:
        listener.close()
    await asyncio.sleep(0)  # the loop closes its descriptors: the copies alone hold the queues now
    accepted: list[socket.socket] = []
    for listener in listeners:
        with listener:
            _accept_queued(listener, accepted)
    for connection in accepted:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        except OSError:  # the client has left
            connection.close()
    return len(accepted)


def _copy(listener: socket.socket) -> socket.socket:
    """uvloop's sockets cannot be accepted from, and are closed by the loop."""
    copy = socket.socket(fileno=os.dup(listener.fileno()))
    copy.setblocking(False)
    return copy


def _accept_queued(listener: socket.socket, accepted: list[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except ConnectionAbortedError:  # the client of this one has left
            continue
        except OSError:  # e.g. no descriptor is free
            return
        connection.setblocking(False)
        accepted.append(connection)
