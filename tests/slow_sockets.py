"""Readers who take a byte once in a while from connections with the smallest buffers there are."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from gateway_stack import Stack, body

BYTE_EVERY_S = 1.0


def ask(stack: Stack, tenant: str, *, close: bool = False, **fields: Any) -> socket.socket:
    """A connection on which a stream was asked for. `close`: it is to end with the answer."""
    asked = json.dumps(body(stream=True, **fields)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.keys[tenant]}\r\n"
        f"Content-Length: {len(asked)}\r\nConnection: {'close' if close else 'keep-alive'}\r\n\r\n"
    )
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect(("127.0.0.1", stack.port))
    connection.sendall(head.encode() + asked)
    return connection


@contextlib.contextmanager
def slow_readers(stack: Stack, tenant: str, count: int, max_tokens: int) -> Iterator[None]:
    """So many of them, a stream each, until the end of the context."""
    over = threading.Event()
    with contextlib.ExitStack() as closing:
        connections = [closing.enter_context(ask(stack, tenant, max_tokens=max_tokens)) for _ in range(count)]

        def dribble() -> None:
            while not over.wait(BYTE_EVERY_S):
                for connection in connections:
                    with contextlib.suppress(OSError):  # nothing is there, or it was cut
                        connection.recv(1, socket.MSG_DONTWAIT)

        thread = threading.Thread(target=dribble, name="slow-readers")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
