"""What waits in the queue of a listener that closes is served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from gateway.http.listeners import close_listeners
from gateway.listen import bound_socket
from support.waiting import PATIENCE_S, eventually_async

CLIENTS = 20


class Echo(asyncio.Protocol):
    """Answers once. `lost`: the connections of all that have ended."""

    lost = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is a stream
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        type(self).lost += 1


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_queued_connections_are_served_and_later_ones_are_refused(
    new_loop: Callable[[], asyncio.AbstractEventLoop], shared: bool
) -> None:
    before = Echo.lost

    async def play() -> None:
        listener = bound_socket("127.0.0.1", 0, shared=shared)
        address = listener.getsockname()
        server = await asyncio.get_running_loop().create_server(Echo, sock=listener)
        # The loop does not run meanwhile, so the kernel completes these connections and nobody accepts them.
        clients = [socket.create_connection(address) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            client.sendall(b"%d" % number)
        queued = await close_listeners([server], [listener], Echo)
        # The loop accepts some by itself before its listener is closed.
        assert 0 <= queued <= CLIENTS
        for number, client in enumerate(clients):
            client.setblocking(False)
            async with asyncio.timeout(PATIENCE_S):
                assert await asyncio.get_running_loop().sock_recv(client, 16) == b"%d" % number
            client.close()
        await eventually_async(lambda: Echo.lost == before + CLIENTS)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    loop = new_loop()
    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
