"""How a request may end, with the processes and the clients really ending: each hold is closed once, and
made = billed + discarded. On both kinds of engine; `ids_only` and `make_stack` mark the tests that need the engine's
process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from engine.text.tokenizer import Tokenizer
from gateway.access import keys
from support.gateway.both_engines import FAILING_ID, ids_only, running_stack
from support.gateway.slow_readers import send
from support.processes import stopped
from support.stack import Stack, body, events
from support.waiting import PATIENCE_S, eventually, promptly

SETTLED_WITHIN_S = 0.25


SILENCE = "first_token_wait_s = 0.3\nkeep_alive_s = 0.3\n"


@pytest.fixture(scope="module", params=["ids", "text"])
def slow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """20 ms a token; a keep-alive after 0.3 s of silence."""
    with running_stack(request.param, tmp_path_factory.mktemp("slow"), model_dir, gateway_toml=SILENCE) as stack:
        yield stack


@contextlib.contextmanager
def streaming(stack: Stack, **fields: Any) -> Iterator[tuple[httpx.Response, Iterator[str]]]:
    """A stream that has begun, and its lines."""
    url, asked = f"{stack.url}/v1/chat/completions", body(stream=True, **{"max_tokens": 500, **fields})
    with httpx.stream("POST", url, headers=stack.headers(), json=asked, timeout=30) as answer:
        yield answer, answer.iter_lines()


def tokens_in(lines: Iterator[str], count: int) -> int:
    """Read until `count` chunks with text came."""
    seen = 0
    for line in lines:
        if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            seen += 1
            if seen == count:
                return seen
    raise AssertionError("the stream ended early")


def leave_early(stack: Stack, **fields: Any) -> Callable[[], dict[str, Any]]:
    """Ask for a whole answer and leave once its hold is there. What is returned gives the request's log line, once it
    is there."""
    before, holds = len(stack.log_lines("request")), stack.holds()

    def line() -> dict[str, Any]:
        eventually(lambda: len(stack.log_lines("request")) > before)
        return stack.log_lines("request")[before]

    with send(stack, "acme", fields):
        eventually(lambda: stack.holds() == holds + 1)
        time.sleep(0.1)
    return line


def used(stack: Stack, request_id: str) -> sa.Row[Any]:
    row = stack.usage(request_id)
    assert row is not None
    assert row.made_tokens == row.completion_tokens + row.discarded_tokens
    return row


def test_a_client_that_leaves_its_stream(slow: Stack) -> None:
    def leave() -> float:
        with streaming(slow) as (answer, lines):
            request_id = answer.headers["x-request-id"]
            seen = tokens_in(lines, 5)
        took = eventually(lambda: slow.usage(request_id) is not None)
        row = used(slow, request_id)
        assert row.ending == "client_left"
        assert seen <= row.completion_tokens < 500
        assert row.prompt_tokens > 0
        assert row.discarded_tokens <= 2
        assert slow.open_holds() == 0
        line = slow.request_line(request_id)
        assert (line["ending"], line["completion_tokens"]) == ("client_left", row.completion_tokens)
        return max(took / SETTLED_WITHIN_S, (row.completion_tokens - seen) / 16)

    promptly(leave, 1.0)


def test_a_client_that_leaves_before_a_whole_answer(slow: Stack) -> None:
    def leave() -> float:
        before = slow.holds()
        request = leave_early(slow, max_tokens=500)
        took = eventually(lambda: slow.open_holds() == 0)
        assert slow.holds() == before + 1
        line = request()
        assert (line["ending"], line["status"]) == ("client_left", 499)
        row = used(slow, line["request_id"])
        assert 0 < row.completion_tokens < 500
        return max(took / SETTLED_WITHIN_S, row.completion_tokens / 40)

    promptly(leave, 1.0)


@ids_only  # stops the engine's process
def test_a_client_that_leaves_before_the_first_token_pays_nothing(slow: Stack) -> None:
    assert slow.engine is not None
    before = slow.holds()
    with stopped(slow.engine.pid):
        request = leave_early(slow)
        eventually(lambda: slow.holds() == before + 1)
    eventually(lambda: slow.open_holds() == 0)
    hold = slow.hold(request()["request_id"])
    assert (hold.state, hold.settled_picos) in [("voided", 0), ("settled", 0)]


@ids_only  # stops the engine's process
def test_a_stream_in_the_queue_is_kept_alive(slow: Stack) -> None:
    assert slow.engine is not None
    url = f"{slow.url}/v1/chat/completions"
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopped(slow.engine.pid))
        began = time.monotonic()
        answer = stack.enter_context(
            httpx.stream("POST", url, headers=slow.headers(), json=body(stream=True), timeout=PATIENCE_S)
        )
        assert answer.status_code == 200
        assert 0.25 < time.monotonic() - began < 8, "not after the shipped ten seconds"
        lines = answer.iter_lines()
        assert [next(lines), next(lines), next(lines)] == [": keep-alive", "", ": keep-alive"]
        os.kill(slow.engine.pid, signal.SIGCONT)
        rest = [line for line in lines if line.startswith("data")]
    assert json.loads(rest[0][6:])["choices"][0]["delta"]["role"] == "assistant"
    assert rest[-1] == "data: [DONE]"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stop_sequences_end_the_answer_and_never_show(slow: Stack, count: int) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 30}
    whole = slow.chat(**asked).json()["choices"][0]["message"]["content"]
    stops = [whole[20 + 9 * at : 26 + 9 * at] for at in range(count)]
    cut = min(whole.index(stop) for stop in stops)
    answer = slow.chat(stop=stops, **asked)
    completion = answer.json()
    assert completion["choices"][0]["message"]["content"] == whole[:cut]
    assert completion["choices"][0]["finish_reason"] == "stop"
    row = used(slow, answer.headers["x-request-id"])
    assert row.ending == "stop"
    assert row.completion_tokens == completion["usage"]["completion_tokens"] < 30
    assert (row.discard_reason == "stop") == (row.discarded_tokens > 0)
    streamed = slow.chat(stop=stops, stream=True, **asked).text
    *chunks, done = [event for event in events(streamed) if event != ":"]  # a busy machine: kept alive
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole[:cut]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


LONG = [{"role": "user", "content": "one two three four five six seven eight nine ten " * 10}]


@ids_only  # kills the engine's process
def test_what_was_cached_is_billed_so_though_the_engine_was_killed(slow: Stack) -> None:
    """It says with the first token what it found; its last word is never heard."""
    for _ in range(2):
        whole = slow.chat(messages=LONG, max_tokens=1)
    cached = whole.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 64
    with streaming(slow, messages=LONG) as (answer, lines):
        tokens_in(lines, 3)
        slow.kill_engine()
        assert "data: [DONE]" not in list(lines)
    row = used(slow, answer.headers["x-request-id"])
    assert (row.ending, row.cached_tokens) == ("engine_lost", cached)
    slow.start_engine()
    slow.wait_ready()


@ids_only  # kills the engine's process
def test_an_engine_killed_in_the_middle(slow: Stack) -> None:
    whole: list[httpx.Response] = []
    other = threading.Thread(target=lambda: whole.append(slow.chat(tenant="globex", max_tokens=500)))
    other.start()
    with streaming(slow, model="acme-style") as (answer, lines):
        request_id = answer.headers["x-request-id"]
        tokens_in(lines, 5)
        eventually(lambda: slow.open_holds() == 2)
        tokens_in(lines, 5)  # by now the other has some too
        slow.kill_engine()
        rest = [line for line in lines if line.startswith("data")]
    error = json.loads(rest[-1][6:])["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "engine_unavailable")
    assert set(error) == {"message", "type", "param", "code"}
    assert "data: [DONE]" not in rest
    row = used(slow, request_id)
    assert row.ending == "engine_lost"
    assert row.completion_tokens >= 10
    assert row.completion_tokens <= 10 + len(rest)
    other.join()
    assert whole[0].status_code == 503
    assert whole[0].headers["x-should-retry"] == "true"
    assert int(whole[0].headers["retry-after"]) >= 1
    lost = used(slow, whole[0].headers["x-request-id"])
    assert (lost.completion_tokens, lost.cost_picos, lost.discard_reason) == (0, 0, "engine_lost")
    assert slow.open_holds() == 0

    away = slow.chat()
    assert (away.status_code, away.json()["error"]["code"]) == (503, "engine_unavailable")
    assert httpx.get(f"{slow.url}/health/ready").status_code == 503
    slow.start_engine()
    slow.wait_ready()
    for model in ("acme-style", "shared-style"):
        assert slow.chat(model=model).status_code == 200


def test_a_request_that_fails_alone_in_the_engine(slow: Stack) -> None:
    tokenizer = Tokenizer.load(slow.model_dir)
    messages = [{"role": "user", "content": "x" + tokenizer.decode([FAILING_ID])}]
    assert FAILING_ID in tokenizer.encode_chat(messages)
    answer = slow.chat(messages=messages)
    assert answer.status_code == 500
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert slow.hold(answer.headers["x-request-id"]).state == "voided"
    assert slow.chat().status_code == 200


def test_a_reader_that_does_not_read_is_settled_all_the_same(slow: Stack) -> None:
    asked = json.dumps(body(stream=True, max_tokens=40, stream_options={"include_usage": True})).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {slow.keys['acme']}\r\n"
        f"Content-Length: {len(asked)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", slow.port)) as connection:
        before = slow.holds()
        connection.sendall(head.encode() + asked)
        eventually(lambda: slow.holds() == before + 1)
        eventually(lambda: slow.open_holds() == 0)
        data = b""
        while b"[DONE]" not in data:
            data += connection.recv(65536)
    assert b'"completion_tokens":40' in data


def test_a_database_that_only_reads(make_stack: Callable[..., Stack], postgres_url: str) -> None:
    """As a standby: what runs ends as ever and is charged later, what comes is refused, and nobody hangs."""
    stack = make_stack(database_url=postgres_url, fake={"step_ms": 20.0})
    name = sa.make_url(postgres_url).database
    admin = sa.create_engine(
        sa.make_url(postgres_url).set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool
    )

    def only_reads(value: str) -> None:
        connection.execute(sa.text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'))
        connection.execute(
            sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
        )

    with admin.connect() as connection, streaming(stack, max_tokens=50) as (answer, lines):
        request_id = answer.headers["x-request-id"]
        tokens_in(lines, 3)
        assert stack.engine is not None
        with stopped(stack.engine.pid):  # it runs on when the database only reads
            only_reads("on")
            refused = stack.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "budget_unavailable")
        assert [line for line in lines if line.startswith("data")][-1] == "data: [DONE]"
        time.sleep(2)  # while it is tried again
        assert stack.usage(request_id) is None
        only_reads("off")
        eventually(lambda: stack.usage(request_id) is not None)
    assert used(stack, request_id).completion_tokens == 50
    eventually(lambda: stack.open_holds() == 0)


def test_a_gateway_that_is_told_to_stop(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake={"step_ms": 20.0})
    assert stack.gateway is not None
    with streaming(stack, max_tokens=1000) as (answer, lines):
        request_id = answer.headers["x-request-id"]
        tokens_in(lines, 3)
        stack.gateway.terminate()
        rest = [line for line in lines if line.startswith("data")]
    assert stack.gateway.wait(PATIENCE_S) == 0
    assert json.loads(rest[-1][6:])["error"]["code"] == "engine_unavailable"
    row = used(stack, request_id)
    assert row.ending == "shutdown"
    assert row.completion_tokens > 3
    key = stack.read(lambda connection: keys.get_key(connection, stack.key_ids["acme"]))
    assert key is not None
    assert key.last_used_at is not None
    assert stack.open_holds() == 0


def test_a_gateway_that_is_told_to_stop_beside_an_engine_that_stands_still(make_stack: Callable[..., Stack]) -> None:
    """It waits no longer than it may, and what its callers have got is charged."""
    stack = make_stack(fake={"step_ms": 20.0}, gateway_toml="shutdown_grace_s = 1.0\n")
    assert stack.gateway is not None
    assert stack.engine is not None
    cached = [stack.chat(messages=LONG, max_tokens=1).json()["usage"]["prompt_tokens_details"] for _ in range(2)][1]
    with streaming(stack, messages=LONG, max_tokens=1000) as (answer, lines):
        request_id = answer.headers["x-request-id"]
        tokens_in(lines, 3)
        with stopped(stack.engine.pid):
            stack.gateway.terminate()
            assert stack.gateway.wait(PATIENCE_S) == 0
    row = used(stack, request_id)
    assert row.ending == "shutdown"
    assert row.completion_tokens >= 3
    assert row.prompt_tokens > row.cached_tokens == cached["cached_tokens"] > 64
    assert stack.open_holds() == 0
