"""Bytes of request bodies in memory: bounded by tenant and in all, refused before a body is read, given back after."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import anthropic
import httpx
import pytest

from gateway.errors import Overloaded, RateLimited
from gateway.http.exchange import read_body
from gateway.limits.body_memory import BodyMemory
from support.stack import MODEL, Stack
from support.waiting import eventually

CHAT_MAX, MESSAGES_MAX, TENANT_MAX, TOTAL_MAX = 100_000, 1_000_000, 1_500_000, 2_000_000
MIB = 1024 * 1024
USER = {"role": "user", "content": "Hi"}


# ---- the account


def test_a_tenant_and_all_are_bounded() -> None:
    memory = BodyMemory(total_max=100, tenant_max=60)
    first, second, theirs = memory.body_of("a"), memory.body_of("a"), memory.body_of("b")
    first.grow_to(40)
    with pytest.raises(RateLimited, match="limit 60 bytes, used 40, requested 21") as refused:
        second.grow_to(21)
    assert refused.value.retry_after_s
    second.grow_to(20)
    with pytest.raises(Overloaded, match="would exceed 100 bytes"):
        theirs.grow_to(41)
    theirs.grow_to(40)
    assert memory.total == 100
    for body in (first, first, second, theirs):
        body.release()
    assert memory.total == 0
    theirs.grow_to(60)


def test_a_body_counts_its_largest_size_once() -> None:
    memory = BodyMemory(total_max=100, tenant_max=100)
    body = memory.body_of("a")
    for size in (10, 30, 20, 30):
        body.grow_to(size)
    assert memory.total == 30
    with pytest.raises(RateLimited):
        body.grow_to(101)
    assert memory.total == 30
    body.release()
    assert memory.total == 0


class Chunks:
    """A request whose body arrives in chunks of `size` bytes."""

    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, size: int, count: int) -> None:
        self._left = [bytes(size)] * count

    async def receive(self) -> dict[str, Any]:
        part = self._left.pop()
        return {"type": "http.request", "body": part, "more_body": bool(self._left)}


@pytest.mark.parametrize(("chunks", "counted"), [(1, MIB // 2), (2, MIB), (3, 8 * MIB)])
async def test_a_large_body_of_unknown_length_counts_as_the_largest(chunks: int, counted: int) -> None:
    memory = BodyMemory(total_max=10 * MIB, tenant_max=10 * MIB)
    held = memory.body_of("a")
    request: Any = Chunks(MIB // 2, chunks)
    assert len(await read_body(request, 8 * MIB, held)) == chunks * MIB // 2
    assert memory.total == counted
    held.release()
    with pytest.raises(RateLimited):
        await read_body(Chunks(MIB // 2, 3), 11 * MIB, held)  # type: ignore[arg-type]


# ---- over HTTP


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("bounded")
    settings = (
        f"body_bytes_max = {CHAT_MAX}\nmessages_body_bytes_max = {MESSAGES_MAX}\n"
        f"tenant_bodies_bytes_max = {TENANT_MAX}\nbodies_bytes_max = {TOTAL_MAX}\n"
    )
    made = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, gateway_toml=settings)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def large(size: int) -> dict[str, Any]:
    """A body of `size` bytes, whose prompt is short: a billing block is left out of it."""
    block = {"type": "text", "text": "x-anthropic-billing-header: "}
    asked = {"model": MODEL, "max_tokens": 4, "messages": [USER], "system": [block]}
    block["text"] += "x" * (size - len(json.dumps(asked)))
    return asked


@contextlib.contextmanager
def begun(stack: Stack, tenant: str, length: int, sent: bytes = b"", path: str = "/v1/messages") -> Iterator[Any]:
    """A request of which only the head, and `sent` of the body, has been sent. `length` 0: in chunks."""
    sized = f"Content-Length: {length}" if length else "Transfer-Encoding: chunked"
    head = f"POST {path} HTTP/1.1\r\nHost: laneway\r\nx-api-key: {stack.keys[tenant]}\r\n{sized}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", stack.port), timeout=30) as connection:
        connection.sendall(head.encode() + sent)
        yield connection


def answer_of(connection: socket.socket) -> tuple[dict[str, str], Any]:
    """The head's fields with the status under "", and the body."""
    with connection.makefile("rb") as file:
        fields = {"": file.readline().split()[1].decode()}
        while line := file.readline().strip():
            name, _, value = line.partition(b": ")
            fields[name.decode().lower()] = value.decode()
        return fields, json.loads(file.read(int(fields["content-length"])))


def test_messages_have_a_limit_of_their_own(bounded: Stack) -> None:
    with anthropic.Anthropic(base_url=bounded.url, api_key=bounded.keys["acme"], max_retries=0) as client:
        message = client.messages.create(**large(MESSAGES_MAX))
        assert message.usage.output_tokens == 4
        counted = large(MESSAGES_MAX - 100)
        del counted["max_tokens"]
        assert client.messages.count_tokens(**counted).input_tokens > 1
        with pytest.raises(anthropic.APIStatusError) as refused:
            client.messages.create(**large(MESSAGES_MAX + 1000))  # the client writes no blanks
    assert (refused.value.status_code, refused.value.type) == (413, "request_too_large")
    asked = {"model": MODEL, "messages": [USER], "padding": "x" * CHAT_MAX}
    answer = httpx.post(f"{bounded.url}/v1/chat/completions", json=asked, headers=bounded.headers())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["", "/compact", "/input_tokens"])
def test_the_responses_api_has_the_limit_of_messages(bounded: Stack, path: str) -> None:
    """Agents send their whole session with each turn."""

    def answered(size: int) -> httpx.Response:
        body = _compact_body(size) if path == "/compact" else _response_body(size)
        return httpx.post(f"{bounded.url}/v1/responses{path}", json=body, headers=bounded.headers(), timeout=60)

    answer = answered(MESSAGES_MAX - 1000)
    assert answer.status_code == 200, answer.text
    refusal = answered(MESSAGES_MAX + 1000)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (413, "request_too_large")
    url = f"/v1/responses{path}"
    with begun(bounded, "acme", MESSAGES_MAX, path=url), begun(bounded, "acme", MESSAGES_MAX, path=url) as second:
        fields, said = answer_of(second)
        assert fields[""] == "429"
        assert "request bodies in memory" in said["error"]["message"]
    eventually(lambda: post(bounded, "acme", MESSAGES_MAX).status_code == 200)


def _response_body(size: int) -> dict[str, Any]:
    """A body of about `size` bytes, whose prompt is short: most of it is a hint."""
    return {"model": MODEL, "input": "Hi", "max_output_tokens": 4, "client_metadata": {"a": "x" * (size - 200)}}


def _compact_body(size: int) -> dict[str, Any]:
    """As `_response_body`."""
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "caller": "x" * (size - 200)}
    return {"model": MODEL, "input": [USER, call]}


def test_a_tenant_over_its_bound_is_refused_before_its_body_is_read(bounded: Stack) -> None:
    with begun(bounded, "acme", MESSAGES_MAX), begun(bounded, "acme", MESSAGES_MAX) as second:
        fields, said = answer_of(second)
        assert fields[""] == "429"
        assert int(fields["retry-after"]) >= 1
        assert said["error"]["type"] == "rate_limit_error"
        assert f"request bodies in memory: limit {TENANT_MAX} bytes" in said["error"]["message"]
        # A small body of the same tenant fits; another tenant is not concerned.
        assert bounded.chat().status_code == 200
        assert httpx.post(
            f"{bounded.url}/v1/messages", json=large(500_000), headers=bounded.headers("globex"), timeout=60
        ).is_success
    eventually(lambda: post(bounded, "acme", MESSAGES_MAX).status_code == 200)


def test_all_tenants_together_are_bounded(bounded: Stack) -> None:
    with begun(bounded, "acme", MESSAGES_MAX), begun(bounded, "globex", MESSAGES_MAX):
        with begun(bounded, "initech", MESSAGES_MAX) as third:
            fields, said = answer_of(third)
        assert (fields[""], said["error"]["type"]) == ("503", "overloaded_error")
        assert int(fields["retry-after"]) >= 1
        assert f"would exceed {TOTAL_MAX} bytes" in said["error"]["message"]
    eventually(lambda: post(bounded, "initech", MESSAGES_MAX).status_code == 200)


def test_a_body_in_chunks_counts_as_it_arrives(bounded: Stack) -> None:
    def chunk(size: int) -> bytes:
        return b"%x\r\n%b\r\n" % (size, b" " * size)

    with begun(bounded, "acme", MESSAGES_MAX), begun(bounded, "acme", 0, chunk(400_000)) as chunked:
        chunked.settimeout(0.5)
        with pytest.raises(TimeoutError):
            chunked.recv(1)
        chunked.settimeout(30)
        chunked.sendall(chunk(200_000))
        fields, said = answer_of(chunked)
        assert fields[""] == "429"
        assert "request bodies in memory" in said["error"]["message"]


def test_bodies_of_answered_requests_do_not_count(bounded: Stack) -> None:
    """While they are generated, too: more of them run at once than would fit."""
    sent = large(600_000) | {"max_tokens": 300, "stream": True}
    with contextlib.ExitStack() as exits:
        for _ in range(4):
            streaming = httpx.stream(
                "POST", f"{bounded.url}/v1/messages", json=sent, headers=bounded.headers(), timeout=60
            )
            answer = exits.enter_context(streaming)
            assert answer.status_code == 200
            next(answer.iter_lines())


def test_a_replay_counts_its_body(bounded: Stack) -> None:
    headers = bounded.headers() | {"Idempotency-Key": "large-1"}
    sent = large(MESSAGES_MAX)
    first, again = (httpx.post(f"{bounded.url}/v1/messages", json=sent, headers=headers, timeout=60) for _ in range(2))
    assert first.status_code == again.status_code == 200
    assert again.headers["idempotent-replayed"] == "true"
    assert post(bounded, "acme", MESSAGES_MAX).status_code == 200


def post(stack: Stack, tenant: str, size: int) -> httpx.Response:
    return httpx.post(f"{stack.url}/v1/messages", json=large(size), headers=stack.headers(tenant), timeout=60)
