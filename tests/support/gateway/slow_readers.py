"""Readers who take a byte once in a while from connections with the smallest buffers there are."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from support.stack import Stack, body

BYTE_EVERY_S = 1.0


def ask(stack: Stack, tenant: str, *, close: bool = False, **fields: Any) -> socket.socket:
    """A connection on which a stream was requested. `close`: the server closes it after the answer."""
    return send(stack, tenant, {"stream": True, **fields}, "Connection: close\r\n" if close else "")


def send(stack: Stack, tenant: str, fields: dict[str, Any], headers: str = "") -> socket.socket:
    """A connection on which a chat answer was requested, as by httpx, with further lines of `headers`."""
    content = httpx.Request("POST", stack.url, json=body(**fields)).content
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.keys[tenant]}\r\n"
        f"Content-Length: {len(content)}\r\n{headers}\r\n"
    )
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect(("127.0.0.1", stack.port))
    connection.sendall(head.encode() + content)
    return connection


@contextlib.contextmanager
def slow_readers(stack: Stack, tenant: str, count: int, max_tokens: int) -> Iterator[None]:
    """A number of slow readers, each with a stream, until the end of the context."""
    over = threading.Event()
    with contextlib.ExitStack() as closing:
        connections = [closing.enter_context(ask(stack, tenant, max_tokens=max_tokens)) for _ in range(count)]

        def dribble() -> None:
            while not over.wait(BYTE_EVERY_S):
                for connection in connections:
                    with contextlib.suppress(OSError):  # no byte has arrived, or the connection is closed
                        connection.recv(1, socket.MSG_DONTWAIT)

        thread = threading.Thread(target=dribble, name="slow-readers")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
