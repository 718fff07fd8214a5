"""deploy/proxies: each proxy, with the shipped file, in front of a gateway that runs and one that is away."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gateway.config.settings import GatewaySection
from support.deploy.proxies import FILES, SHIPPED, RunningProxy, running_proxy
from support.deploy.tools import find_tool
from support.ports import free_port
from support.stack import Stack, body
from support.waiting import PATIENCE_S, eventually

STEP_S = 0.25
TOKENS = 8
NO_ANSWER = (0, 502, 503, 504)  # statuses; 0: the connection ended
TRIES = 6
BODY_BYTES_MAX = GatewaySection().messages_body_bytes_max
VERSIONS = ("--http1.1", "--http2")
WITHOUT_HTTP2 = {"haproxy"}  # its file says why


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("gateway")
    stack = Stack(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        fake={"step_ms": STEP_S * 1000},
        gateway_toml='first_token_wait_s = 0.1\nkeep_alive_s = 0.1\ntrusted_proxies = ["127.0.0.1"]\n',
    )
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module", params=FILES)
def proxy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, gateway: Stack
) -> Iterator[RunningProxy]:
    gateways = (f"127.0.0.1:{gateway.port}", f"127.0.0.1:{free_port()}")
    with running_proxy(request.param, tmp_path_factory.mktemp(request.param), gateways) as running:
        yield running


def curl(proxy: RunningProxy, gateway: Stack, path: str, *arguments: str) -> list[str]:
    return [
        find_tool("curl"), "--silent", "--show-error", "--no-buffer", "--include", "--cacert", str(proxy.authority),
        "--header", f"Authorization: Bearer {gateway.keys['acme']}", "--header", "Content-Type: application/json",
        *arguments, proxy.url + path,
    ]  # fmt: skip


class CurlStream:
    """A streamed chat by curl: its lines, each with the moment of its arrival."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""
        self._lines: list[tuple[float, str]] = []

    def read(self) -> bool:
        """The next bytes; False at the end."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += [(time.monotonic(), line.decode().rstrip("\r")) for line in lines]
        return bool(data)

    def read_until_event(self) -> None:
        while not self.events and self.read():
            pass
        assert self.events, self._lines

    @property
    def events(self) -> list[tuple[float, str]]:
        return [(at, line) for at, line in self._lines if line.startswith("data: ")]

    @property
    def comments(self) -> int:
        return sum(line.startswith(":") for _, line in self._lines)

    @property
    def status(self) -> str:
        return self._lines[0][1].split()[1]

    @property
    def version(self) -> str:
        return self._lines[0][1].split()[0]

    @property
    def request_id(self) -> str:
        [value] = [line.split()[1] for _, line in self._lines if line.lower().startswith("x-request-id:")]
        return value


@contextmanager
def stream(proxy: RunningProxy, gateway: Stack, *arguments: str, tokens: int = TOKENS) -> Iterator[CurlStream]:
    sent = json.dumps(body(stream=True, max_tokens=tokens))
    command = curl(proxy, gateway, "/v1/chat/completions", "--data", sent, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield CurlStream(process)
        finally:
            process.kill()


def post(proxy: RunningProxy, gateway: Stack, path: str, file: Path) -> tuple[int, str]:
    """Status and answer; status 0: the connection ended without one."""
    sent = ("--http1.1", "--data-binary", f"@{file}", "--write-out", "\n%{http_code}")
    command = curl(proxy, gateway, path, *sent)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def refusal(proxy: RunningProxy, gateway: Stack, path: str, file: Path) -> tuple[int, str]:
    """A server that refuses a body by its head may end the connection while the body is sent, and curl then sees no
    answer. A proxy whose health check timed out, on a busy machine, has no server until the next check."""
    for _ in range(TRIES):
        answer = post(proxy, gateway, path, file)
        if answer[0] not in NO_ANSWER:
            break
        time.sleep(1.0)
    return answer


def padded_body(file: Path, size: int) -> Path:
    """A request of `size` bytes, nearly all of them white space."""
    sent: dict[str, Any] = body(max_tokens=1)
    text = json.dumps(sent).encode()
    file.write_bytes(text[:-1] + b" " * (size - len(text)) + b"}")
    return file


def test_every_shipped_file_is_run() -> None:
    assert {file.name for file in SHIPPED.iterdir()} == {file for files in FILES.values() for file in files}


@pytest.mark.parametrize("version", VERSIONS)
def test_events_pass_when_they_are_made(proxy: RunningProxy, gateway: Stack, version: str) -> None:
    with stream(proxy, gateway, version) as answer:
        while answer.read():
            pass
        assert answer.status == "200"
        is_http2 = version == "--http2" and proxy.name not in WITHOUT_HTTP2
        assert answer.version == ("HTTP/2" if is_http2 else "HTTP/1.1")
    assert answer.events[-1][1] == "data: [DONE]"
    # A proxy that buffers sends all of them at the end.
    assert answer.events[-1][0] - answer.events[0][0] > TOKENS / 2 * STEP_S
    assert answer.comments > 0, "keep-alives pass too"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_disconnect_reaches_the_gateway(proxy: RunningProxy, gateway: Stack, version: str) -> None:
    with stream(proxy, gateway, version, tokens=400) as answer:
        answer.read_until_event()
    line = gateway.request_line(answer.request_id)
    assert line["ending"] == "client_left"
    assert line["completion_tokens"] < 200


def test_the_limits_of_bodies(proxy: RunningProxy, gateway: Stack, tmp_path: Path) -> None:
    largest = padded_body(tmp_path / "largest", BODY_BYTES_MAX)
    # A proxy whose health check timed out, on a busy machine, has no server until the next check.
    eventually(lambda: post(proxy, gateway, "/v1/messages", largest)[0] == 200)
    status, text = refusal(proxy, gateway, "/v1/messages", padded_body(tmp_path / "larger", BODY_BYTES_MAX + 1))
    assert (status, "request_too_large" in text) == (413, True), "the gateway's refusal, not the proxy's"
    oversize = padded_body(tmp_path / "oversize", BODY_BYTES_MAX + 2 * 1024 * 1024)
    assert refusal(proxy, gateway, "/v1/messages", oversize)[0] == 413
    # Uploads have a limit of their own: the gateway refuses this one because of the key.
    assert refusal(proxy, gateway, "/v1/admin/adapters", oversize)[0] in (401, 403)


def test_requests_avoid_a_gateway_that_is_away(proxy: RunningProxy, gateway: Stack, tmp_path: Path) -> None:
    file = padded_body(tmp_path / "small", 256)
    assert [post(proxy, gateway, "/v1/chat/completions", file)[0] for _ in range(6)] == [200] * 6


class LostGateway(BaseHTTPRequestHandler):
    """Is ready, and loses each POST that it has read: no answer, and the connection ends."""

    protocol_version = "HTTP/1.1"
    received: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append(self.path)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("name", FILES)
def test_a_request_that_was_received_is_not_sent_again(name: str, tmp_path: Path) -> None:
    """A second gateway would bill it a second time."""
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), LostGateway) as one,
        ThreadingHTTPServer(("127.0.0.1", 0), LostGateway) as other,
    ):
        for server in (one, other):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        LostGateway.received.clear()
        gateways = (f"127.0.0.1:{one.server_port}", f"127.0.0.1:{other.server_port}")
        with running_proxy(name, tmp_path, gateways) as proxy:
            command = [find_tool("curl"), "--silent", "--cacert", str(proxy.authority), "--data", "{}", proxy.url]
            subprocess.run(command, capture_output=True, timeout=PATIENCE_S)
        one.shutdown()
        other.shutdown()
    assert len(LostGateway.received) == 1


def test_a_cut_stream_is_no_clean_end(proxy: RunningProxy, gateway: Stack) -> None:
    assert gateway.gateway is not None
    with stream(proxy, gateway, tokens=400) as answer:
        answer.read_until_event()
        gateway.gateway.kill()
        gateway.gateway.wait()
        while answer.read():
            pass
        status = answer.process.wait(PATIENCE_S)
    gateway.start_gateway()
    gateway.wait_ready()
    assert "[DONE]" not in answer.events[-1][1]
    assert status != 0, "curl took the cut for the end of the answer"


def test_the_clients_address_passes_and_cannot_be_forged(proxy: RunningProxy, gateway: Stack) -> None:
    secret = gateway.new_key("acme", allowed_ips=["127.0.0.2"]).secret

    def status(address: str, forwarded_for: str) -> int:
        command = [
            find_tool("curl"), "--silent", "--cacert", str(proxy.authority), "--interface", address,
            "--header", f"Authorization: Bearer {secret}", "--header", f"X-Forwarded-For: {forwarded_for}",
            "--output", "/dev/null", "--write-out", "%{http_code}", f"{proxy.url}/v1/models",
        ]  # fmt: skip
        return int(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout)

    eventually(lambda: status("127.0.0.2", "203.0.113.9") == 200)  # the test before has stopped the gateway
    assert status("127.0.0.3", "127.0.0.2") == 403
