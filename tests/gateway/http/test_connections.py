"""Clients that open connections and send no request, half a request, or a body after its answer."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from gateway.http.connection import HEAD_S_MAX
from gateway.limits.connection_limits import (
    ADDRESS_PART,
    DESCRIPTORS_RESERVED,
    UPLOAD_DESCRIPTORS,
    Connections,
    client_of,
)
from gateway.metrics import Metrics
from support.gateway.slow_readers import ask
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually

DESCRIPTORS = 1024
HALF_HEADS = 1300
HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


class Open:
    """A stand-in for an Evictable connection."""

    def __init__(self) -> None:
        self.evicted = False

    def evict(self) -> None:
        self.evicted = True


def connections(per_address_max: int = 0, total_max: int = 1000) -> Connections:
    made = Connections(Metrics(), per_address_max=per_address_max, uploads_max=4)
    made.total_max = lambda: total_max  # type: ignore[method-assign]
    return made


def opened(bounds: Connections, address: str, count: int = 1) -> list[Open]:
    made = [Open() for _ in range(count)]
    assert all(bounds.open(one, address) for one in made)
    return made


def test_at_its_bound_an_address_replaces_its_own_oldest_waiting_connection() -> None:
    bounds = connections(per_address_max=3)
    other, (first, second, third) = opened(bounds, "10.0.0.2"), opened(bounds, "10.0.0.1", 3)
    bounds.busy(first)
    opened(bounds, "10.0.0.1")
    assert [one.evicted for one in (*other, first, second, third)] == [False, False, True, False]


def test_a_client_that_had_an_answer_is_evicted_last() -> None:
    bounds = connections(per_address_max=2)
    [served], [fresh] = opened(bounds, "10.0.0.1"), opened(bounds, "10.0.0.1")
    bounds.busy(served)
    bounds.idle(served)
    opened(bounds, "10.0.0.1")
    assert (served.evicted, fresh.evicted) == (False, True)


def test_where_all_are_busy_a_new_connection_is_refused() -> None:
    bounds = connections(per_address_max=2, total_max=3)
    busy = opened(bounds, "10.0.0.1", 2)
    for one in busy:
        bounds.busy(one)
    assert not bounds.open(Open(), "10.0.0.1")
    [last] = opened(bounds, "10.0.0.2")
    bounds.busy(last)
    assert not bounds.open(Open(), "10.0.0.3")
    bounds.closed(busy[0])
    bounds.closed(busy[0])
    opened(bounds, "10.0.0.1")
    assert not any(one.evicted for one in (*busy, last))


def test_at_the_total_the_oldest_of_all_is_replaced() -> None:
    bounds = connections(total_max=8)
    first, *_ = opened(bounds, "10.0.0.1", 6)  # ADDRESS_PART of 8
    opened(bounds, "10.0.0.2", 2)
    [second] = opened(bounds, "10.0.0.3")
    assert first.evicted
    assert not second.evicted


def test_an_address_of_ipv6_is_its_network() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff") != client_of("2001:db8:0:1::1")
    assert client_of("::ffff:192.0.2.1") == client_of("192.0.2.1") == "192.0.2.1"
    assert client_of("") == ""
    assert client_of("/run/a:socket") == "/run/a:socket"


def test_the_total_follows_the_descriptors() -> None:
    bounds = Connections(Metrics(), per_address_max=0, uploads_max=4)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (900, hard))
        assert bounds.total_max() == 900 - DESCRIPTORS_RESERVED - 4 * UPLOAD_DESCRIPTORS
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        assert bounds.total_max() == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- over HTTP


def limit_descriptors(stack: Stack, count: int) -> None:
    assert stack.gateway is not None
    resource.prlimit(stack.gateway.pid, resource.RLIMIT_NOFILE, (count, resource.prlimit(stack.gateway.pid, 7)[1]))


@contextlib.contextmanager
def half_heads(stack: Stack, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as closing:
        made = []
        for _ in range(count):
            connection = closing.enter_context(socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S))
            with contextlib.suppress(OSError):  # the connection was refused
                connection.sendall(HALF)
            made.append(connection)
        yield made


def metric(stack: Stack, name: str) -> float:
    lines = stack.metrics().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise the descriptor limit for the test's own ends of the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_1300_half_heads_at_1024_descriptors_refuse_nobody(
    make_stack: Callable[..., Stack], many_descriptors: None
) -> None:
    stack = make_stack()
    limit_descriptors(stack, DESCRIPTORS)
    with half_heads(stack, HALF_HEADS):
        assert [stack.chat().status_code for _ in range(5)] == [200] * 5
        assert metric(stack, "laneway_connections ") <= ADDRESS_PART * metric(stack, "laneway_connections_max ")
        assert metric(stack, 'laneway_connections_closed_total{reason="evicted"') >= HALF_HEADS - DESCRIPTORS
        assert stack.gateway is not None
        assert len(os.listdir(f"/proc/{stack.gateway.pid}/fd")) < DESCRIPTORS


def test_descriptors_that_ran_out_stop_nobody_for_good(
    make_stack: Callable[..., Stack], many_descriptors: None
) -> None:
    """Descriptors may run out through other things than connections."""
    stack = make_stack()
    assert stack.gateway is not None
    limit_descriptors(stack, len(os.listdir(f"/proc/{stack.gateway.pid}/fd")))
    with half_heads(stack, 50):
        limit_descriptors(stack, DESCRIPTORS)
        eventually(lambda: answers(stack))
    assert stack.gateway.poll() is None


def answers(stack: Stack) -> bool:
    try:
        return stack.chat().status_code == 200
    except httpx.TransportError:
        return False


def test_an_address_with_only_running_requests_is_refused(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake={"step_ms": 20.0}, gateway_toml="connections_per_address_max = 3\n")
    with contextlib.ExitStack() as closing:
        streams = [closing.enter_context(ask(stack, "acme", max_tokens=2000)) for _ in range(3)]
        for stream in streams:
            assert stream.recv(12) == b"HTTP/1.1 200"
        answer = stack_refusal(stack)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"server_is_overloaded"' in answer
        streams.pop().close()
        eventually(lambda: answers(stack))
    assert metric(stack, 'laneway_connections_closed_total{reason="address_limit"') >= 1


def stack_refusal(stack: Stack) -> bytes:
    """All bytes that a connection sends to a client that sends nothing."""
    with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as connection:
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
ANSWERED = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
# The client's first bytes, and the bytes that it then sends every half second.
UNDONE: dict[str, tuple[bytes, bytes]] = {
    "silence": (b"", b""),
    "blank lines": (b"", b"\r\n"),
    "half a request line": (b"GET /health", b""),
    "half a head": (HALF, b""),
    "a head by drips": (HALF, b"x: y\r\n"),
    "a second half head": (LIVE + HALF, b"x: y\r\n"),
    "blank lines behind an answer": (LIVE, b"\r\n"),
    "a body behind its answer": (ANSWERED, b"x"),
}
TOLD = ("half a request line", "half a head", "a head by drips", "a second half head")


def test_what_is_left_undone_has_a_deadline(stack: Stack) -> None:
    with contextlib.ExitStack() as closing:
        left: dict[str, socket.socket] = {}
        for name, (first, _) in UNDONE.items():
            left[name] = closing.enter_context(socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S))
            left[name].sendall(first)
            left[name].setblocking(False)
        said, began = dict.fromkeys(UNDONE, b""), time.monotonic()
        took: dict[str, float] = {}
        while len(took) < len(left):
            assert time.monotonic() - began < HEAD_S_MAX + PATIENCE_S, set(left) - set(took)
            time.sleep(0.5)
            for name in set(left) - set(took):
                if drip(left[name], UNDONE[name][1], said, name):
                    took[name] = time.monotonic() - began
    assert min(took.values()) > HEAD_S_MAX - 1, took
    for name, text in said.items():
        assert (b"HTTP/1.1 408 " in text) == (name in TOLD), (name, text)


def drip(connection: socket.socket, data: bytes, said: dict[str, bytes], name: str) -> bool:
    """Send `data` and read what has arrived. Returns whether the connection is closed."""
    try:
        connection.sendall(data)
        while part := connection.recv(65536):
            said[name] += part
    except BlockingIOError:
        return False
    except (BrokenPipeError, ConnectionResetError):
        pass
    return True


def test_a_connection_is_kept_after_a_body_behind_its_answer(stack: Stack) -> None:
    with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as connection:
        for _ in range(3):
            connection.sendall(ANSWERED.replace(b"100000", b"10"))
            text = b""
            while not text.endswith(b"}}"):
                text += connection.recv(65536)
            assert text.startswith(b"HTTP/1.1 404 ")
            connection.sendall(b"x" * 10)
        connection.sendall(LIVE)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
