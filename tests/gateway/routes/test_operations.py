"""What an operator sees of a running gateway: health, metrics, log, description, and what the process holds."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from billing.clock import SECOND
from gateway.access import keys
from support.stack import MODEL, SERVING, Stack, body

CLOCKS_S = 0.01  # the log measures by another clock than the books


def test_a_running_gateway_holds_no_torch(stack: Stack) -> None:
    assert stack.chat(model="acme-style").status_code == 200
    assert stack.gateway is not None
    maps = Path(f"/proc/{stack.gateway.pid}/maps").read_text()
    assert "tokenizers" in maps  # the file says what is loaded
    for name in ("torch", "triton", "transformers", "cuda"):
        assert name not in maps


def test_health(stack: Stack) -> None:
    assert httpx.get(f"{stack.url}/health/live").json() == {"live": True}
    ready = httpx.get(f"{stack.url}/health/ready")
    assert (ready.status_code, ready.json()) == (200, SERVING)


def test_metrics_are_the_gateways_and_the_engines(stack: Stack) -> None:
    stack.chat()
    text = stack.metrics()
    headers = {"Authorization": f"Bearer {stack.metrics_key}"}
    answer = httpx.get(f"{stack.url}/metrics", headers=headers)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'laneway_requests_ended_total{ending="length",tier="premium"}' in text
    assert "vllm:generation_tokens_total" in text
    for private in (*stack.tenants.values(), *stack.key_ids.values(), *stack.adapters.values(), "acme"):
        assert private not in text


def test_one_line_a_request_and_no_text_of_it(stack: Stack) -> None:
    answer = stack.chat(messages=[{"role": "user", "content": "tell nobody about xyzzy"}], model="acme-style")
    said = answer.json()["choices"][0]["message"]["content"]
    line = stack.request_line(answer.headers["x-request-id"])
    assert line["route"] == "/v1/chat/completions"
    assert (line["tenant"], line["key"]) == (stack.tenants["acme"], stack.key_ids["acme"])
    assert (line["model"], line["adapter"]) == (MODEL, stack.adapters["acme-style"])
    assert (line["tier"], line["status"], line["ending"]) == ("premium", 200, "length")
    assert line["completion_tokens"] == 8
    assert line["cost_picos"] > 0
    assert 0 < line["ttft_s"] <= line["total_s"]
    log = stack.log_file.read_text()
    assert "xyzzy" not in log
    assert said not in log
    assert not any(secret in log for secret in stack.keys.values())


def test_the_log_and_the_books_have_the_same_times_of_a_request(stack: Stack) -> None:
    answer = stack.chat(stream=True, max_tokens=40)
    line = stack.request_line(answer.headers["x-request-id"])
    owner = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="times", kind="admin")).secret
    headers = {"Authorization": f"Bearer {owner}"}
    one = httpx.get(f"{stack.url}/v1/admin/requests/{line['request_id']}", headers=headers, timeout=10).json()
    assert one["ttft_s"] == one["usage"]["ttft_s"] == line["ttft_s"], "from its arrival at the gateway, everywhere"
    row = stack.usage(line["request_id"])
    assert row is not None
    assert one["duration_s"] == one["usage"]["duration_s"] == (row.finished_at - row.started_at) / SECOND
    assert 0 < one["queue_s"] + row.device_s < one["duration_s"] <= line["total_s"] + CLOCKS_S
    assert (one["started_at"], one["ended_at"]) == (row.started_at / SECOND, row.finished_at / SECOND)
    hold = stack.hold(line["request_id"])
    assert row.started_at < hold.held_at, "before its hold was asked for it had been read and counted"
    assert one["hold"]["held_at"] == hold.held_at / SECOND
    which = {"search": line["request_id"]}
    [listed] = httpx.get(f"{stack.url}/v1/admin/requests", headers=headers, params=which, timeout=10).json()["data"]
    assert listed.items() <= one.items()


def test_the_description_knows_the_chat_route(stack: Stack) -> None:
    schema = httpx.get(f"{stack.url}/schema").json()
    chat = schema["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    request = schema["components"]["schemas"]["ChatRequest"]
    assert request["properties"]["store"]["anyOf"] == [{"type": "null"}, {"type": "boolean", "const": False}]
    assert "messages" in request["required"]
    known = schema["components"]["schemas"].keys()
    assert {"ErrorBody", "ChatCompletion", "ChatCompletionChunk", "UserMessage"} <= known


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/moderations", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models", 401),
        ("GET", "/v1//models/../..", 404),
    ],
)
def test_the_frameworks_refusals_have_our_shape(stack: Stack, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, stack.url + path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("head", ["x-a: " + "y" * 70_000, "\r\n".join(f"x-{i}: {'y' * 1000}" for i in range(70))])
@pytest.mark.parametrize("whole", [True, False])
def test_a_head_without_end_is_refused(stack: Stack, head: str, whole: bool) -> None:
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        connection.sendall(f"GET /health/live HTTP/1.1\r\nHost: x\r\n{head}".encode())
        if whole:
            connection.sendall(b"\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"request_too_large"' in answer
    assert httpx.get(f"{stack.url}/health/live").status_code == 200


def test_a_body_over_the_limit_is_refused_before_it_is_read(stack: Stack) -> None:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.keys['acme']}\r\n"
        "Content-Length: 99999999999\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_the_same_seed_gives_the_same_answer(stack: Stack) -> None:
    asked = body(seed=7, temperature=1.5)
    texts = {stack.chat(**asked).json()["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(texts) == 1
    others = {stack.chat(temperature=1.5).json()["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(others) == 3


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 10 + b"\xff\xff\r\n\r\n"],
)
def test_what_is_no_http_gets_an_error_of_our_shape(stack: Stack, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        connection.sendall(garbage)
        answer = connection.recv(65536)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: req_" in head
    assert set(json.loads(rest)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "path", ["/v1/models/%00", "/v1/models/%ff%fe", "/v1/models/..%2f..", "/t/%00/v1/models", "/%", "/nowhere?%ff"]
)
def test_odd_paths(stack: Stack, path: str) -> None:
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.keys['acme']}\r\n\r\n".encode()
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")


def test_a_second_gateway_on_sqlite_is_told_why_not(stack: Stack) -> None:
    argv = [sys.executable, "-m", "gateway", "--config", str(stack.config_file)]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    last = json.loads(second.stderr.splitlines()[-1])
    assert last["event"] == "gateway.cannot_start"
    assert "another gateway" in last["reason"]
