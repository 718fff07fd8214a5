"""Calls from web pages of other origins: what a browser may read, and what it must not."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.stack import Stack, body
from support.web.chromium import open_browser

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


def cors_fields(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


@pytest.fixture(scope="module")
def open_stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path, page_url: str) -> Iterator[Stack]:
    """A gateway that allows PAGE, and the page that Chromium opens."""
    directory = tmp_path_factory.mktemp("cors")
    toml = f'cors_origins = ["{PAGE}", "{page_url}"]'
    made = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, gateway_toml=toml)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_off_by_default(stack: Stack) -> None:
    preflight = httpx.options(f"{stack.url}/v1/chat/completions", headers=PREFLIGHT)
    answer = httpx.get(f"{stack.url}/v1/models", headers=stack.headers() | {"Origin": PAGE})
    assert cors_fields(preflight) == cors_fields(answer) == {}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/t/acme/v1/messages"])
def test_a_preflight_allows_the_fields_that_sdks_send(open_stack: Stack, path: str) -> None:
    answer = httpx.options(open_stack.url + path, headers=PREFLIGHT)
    assert answer.status_code == 204
    fields = cors_fields(answer)
    assert fields["access-control-allow-origin"] == PAGE
    assert "POST" in fields["access-control-allow-methods"]
    assert fields["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-credentials" not in fields
    assert answer.headers["vary"] == "Origin"


def test_refusals_can_be_read_too(open_stack: Stack) -> None:
    asked = {"Origin": PAGE}
    wrong_key = httpx.post(f"{open_stack.url}/v1/chat/completions", json=body(), headers=asked)
    wrong_field = httpx.post(
        f"{open_stack.url}/v1/chat/completions", json=body(n=0), headers=asked | open_stack.headers()
    )
    assert (wrong_key.status_code, wrong_field.status_code) == (401, 400)
    for answer in (wrong_key, wrong_field):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "*"


def test_another_page_is_not_allowed(open_stack: Stack) -> None:
    other = {"Origin": "https://evil.example.com"}
    answer = httpx.get(f"{open_stack.url}/v1/models", headers=open_stack.headers() | other)
    assert answer.status_code == 200
    assert cors_fields(answer) == {}
    assert answer.headers["vary"] == "Origin", "a cache must not give this answer to an allowed page"
    assert cors_fields(httpx.options(f"{open_stack.url}/v1/models", headers=PREFLIGHT | other)) == {}


@pytest.mark.parametrize("path", ["/v1/admin/tenants", "/v1/admin/session", "/v1/organization/costs", "/metrics"])
def test_no_page_may_call_the_operators_side(open_stack: Stack, path: str) -> None:
    assert cors_fields(httpx.options(open_stack.url + path, headers=PREFLIGHT)) == {}
    assert cors_fields(httpx.get(open_stack.url + path, headers={"Origin": PAGE})) == {}


def test_any_origin(make_stack: object) -> None:
    stack: Stack = make_stack(gateway_toml='cors_origins = ["*"]')  # type: ignore[operator]
    answer = httpx.get(f"{stack.url}/v1/models", headers=stack.headers() | {"Origin": "null"})
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.fixture(scope="module")
def page_url() -> Iterator[str]:
    """The origin of a page on a port of its own."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>A page</title>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


CALL = """async ([url, key, body]) => {
  try {
    const answer = await fetch(url + "/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: "Bearer " + key },
      body: JSON.stringify(body),
    });
    const text = await answer.text();
    return { status: answer.status, id: answer.headers.get("x-request-id"), text };
  } catch (error) {
    return { error: String(error) };
  }
}"""


def test_a_page_in_chromium_streams_an_answer(open_stack: Stack, stack: Stack, page_url: str) -> None:
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(page_url)
        found = page.evaluate(CALL, [open_stack.url, open_stack.keys["acme"], body(stream=True)])
        refused = page.evaluate(CALL, [stack.url, stack.keys["acme"], body(stream=True)])
    assert found["status"] == 200, found
    assert found["id"].startswith("req_")
    assert found["text"].rstrip().endswith("data: [DONE]")
    assert "error" in refused, "the gateway without the setting is not readable"
