"""A client that closes its connection in an unusual way ends its request like any other client that leaves."""

from __future__ import annotations

import socket

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from gateway.access.keys import MadeKey
from support.stack import Stack, body
from support.waiting import eventually


def chat_request(stack: Stack, secret: str, **fields: object) -> bytes:
    content = httpx.Request("POST", stack.url, json=body(**fields)).content
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def requests_that_ended(stack: Stack, made: MadeKey) -> list[dict[str, object]]:
    return [line for line in stack.log_lines("request") if line.get("key") == made.key.id]


def held(stack: Stack, made: MadeKey) -> int:
    query = sa.select(sa.func.count()).where(tables.holds.c.key_id == made.key.id, tables.holds.c.state == "held")
    return stack.read(lambda c: int(c.execute(query).scalar_one()))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pipelined", [True, False], ids=["pipelined", "alone"])
def test_the_request_is_cut_and_nothing_is_logged_as_an_error(stack: Stack, stream: bool, pipelined: bool) -> None:
    made, errors = stack.new_key("acme"), len(stack.log_lines("http.failed"))
    request = chat_request(stack, made.secret, stream=stream, max_tokens=4000)
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        connection.sendall(request + (b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n" if pipelined else b""))
        eventually(lambda: held(stack, made) == 1)
    eventually(lambda: len(requests_that_ended(stack, made)) == 1)
    [line] = requests_that_ended(stack, made)
    assert line["ending"] == "client_left", line
    assert int(str(line.get("completion_tokens", 0))) < 4000, line
    assert len(stack.log_lines("http.failed")) == errors
    assert held(stack, made) == 0


def test_closing_only_the_sending_half_cuts_the_request(stack: Stack) -> None:
    """A half-closed connection is a client that left: closing both halves looks the same from here."""
    made, errors = stack.new_key("acme"), len(stack.log_lines("http.failed"))
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", stack.port)) as connection:
            connection.sendall(chat_request(stack, made.secret, max_tokens=1))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)
    eventually(lambda: len(requests_that_ended(stack, made)) == 20)
    assert len(stack.log_lines("http.failed")) == errors
