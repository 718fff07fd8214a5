"""What uptime monitors and browsers ask: HEAD, /health, /version and the root."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable

import httpx
import pytest

from gateway.access import keys
from support.stack import SERVING, Stack
from support.waiting import eventually


@pytest.mark.parametrize(
    "path", ["/v1/models", "/health", "/health/ready", "/health/live", "/", "/version", "/v1/usage", "/schema"]
)
def test_head_is_get_without_the_body(stack: Stack, path: str) -> None:
    got = httpx.get(stack.url + path, headers=stack.headers())
    head = httpx.head(stack.url + path, headers=stack.headers())
    assert (head.status_code, head.content) == (got.status_code, b"") == (200, b"")
    for name in ("content-type", "content-length", "cache-control", "vary"):
        assert head.headers.get(name) == got.headers.get(name), name
    assert head.headers["x-request-id"].startswith("req_")


def test_head_is_refused_as_get_is(stack: Stack) -> None:
    for path, status in (("/v1/models", 401), ("/nowhere", 404), ("/v1/models/nowhere", 401), ("/metrics", 401)):
        head = httpx.head(stack.url + path)
        assert (head.status_code, head.content) == (status, b""), path
    refused = httpx.head(f"{stack.url}/v1/chat/completions", headers=stack.headers())
    assert (refused.status_code, set(refused.headers["allow"].split(", "))) == (405, {"OPTIONS", "POST"})
    refused = httpx.delete(f"{stack.url}/v1/models", headers=stack.headers())
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}


def test_the_connection_serves_on_after_head(stack: Stack) -> None:
    with httpx.Client(base_url=stack.url, headers=stack.headers()) as client:
        for _ in range(3):
            assert client.head("/v1/models").status_code == 200
            assert client.get("/v1/models").json()["object"] == "list"


def test_head_of_a_stream_ends_at_once(stack: Stack) -> None:
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    began = time.monotonic()
    head = httpx.head(f"{stack.url}/v1/admin/engine/live", headers={"Authorization": f"Bearer {secret}"}, timeout=20)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert time.monotonic() - began < 20
    line = stack.request_line(head.headers["x-request-id"])
    assert (line["method"], line["route"], line["status"]) == ("HEAD", "/v1/admin/engine/live", 200)


def test_health_is_readiness(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    health = httpx.get(f"{stack.url}/health")
    assert (health.status_code, health.json()) == (200, SERVING)
    stack.kill_engine()
    eventually(lambda: httpx.get(f"{stack.url}/health").status_code == 503)
    assert "engine" in httpx.get(f"{stack.url}/health").json()["problems"]
    assert httpx.head(f"{stack.url}/health").status_code == 503


def test_the_root_sends_browsers_to_the_console(stack: Stack) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = httpx.get(f"{stack.url}/", headers=browser)
    assert (answer.status_code, answer.headers["location"], answer.headers["vary"]) == (307, "/admin", "accept")
    for accept in ("*/*", "application/json"):
        answer = httpx.get(f"{stack.url}/", headers={"Accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        for path in answer.json()["endpoints"].values():
            assert httpx.get(stack.url + path).status_code in (200, 401, 404 if path == "/admin" else 405), path


def test_the_version(stack: Stack) -> None:
    version = importlib.metadata.version("laneway")
    assert httpx.get(f"{stack.url}/version").json() == {"version": version}
    assert httpx.get(f"{stack.url}/").json()["version"] == version


def test_the_list_of_endpoints_names_health(stack: Stack) -> None:
    assert "/health" in httpx.get(f"{stack.url}/nowhere").json()["error"]["message"]
