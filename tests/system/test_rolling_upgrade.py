"""Workers that are replaced under load, and gateways that drain: no request fails.
`python tests/programs/rolling_upgrade.py` plays the upgrade with 50,000 requests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from billing.proofs.ledger_audit import audit_ledger
from gateway.host.workers import socket_path
from programs.rolling_upgrade import play, settings
from support.paths import REPO
from support.processes import children
from support.serve import Serve
from support.stack import Stack, body
from support.waiting import PATIENCE_S, eventually

MakeStack = Callable[..., Stack]


def laneway(stack: Stack, *arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "--config", str(config or stack.config_file), *arguments],
        cwd=stack.directory,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def is_ready(url: str) -> int:
    try:
        return httpx.get(f"{url}/health/ready", timeout=10).status_code
    except httpx.TransportError:
        return 0


class Stream(threading.Thread):
    """A client that reads one stream to its end."""

    def __init__(self, stack: Stack, tokens: int) -> None:
        super().__init__()
        self._stack = stack
        self._tokens = tokens
        self.begun = threading.Event()
        self.lines: list[str] = []
        self.start()
        assert self.begun.wait(PATIENCE_S)

    def run(self) -> None:
        asked = body(stream=True, max_tokens=self._tokens)
        url, headers = f"{self._stack.url}/v1/chat/completions", self._stack.headers()
        with httpx.stream("POST", url, headers=headers, json=asked, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.lines.append(line)
                    self.begun.set()

    def is_complete(self) -> bool:
        self.join(PATIENCE_S)
        return self.lines[-1] == "data: [DONE]"


@pytest.mark.slow
def test_a_roll_under_load_loses_no_request(make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url, workers=2, **settings(linger_s=0.5))
    tally = play(stack, requests=120, clients=4, rolls=1)
    assert (tally.rolls, sum(tally.failed.values())) == (1, 0)
    assert tally.streams >= 120


def test_a_gateway_that_gets_sigterm_lingers_and_finishes(make_stack: MakeStack) -> None:
    """/health/ready answers 503 at once, new requests are served while it lingers, and streams end by themselves."""
    stack = make_stack(fake={"step_ms": 20.0}, gateway_toml="linger_s = 8.0\nshutdown_grace_s = 60.0\n")
    assert stack.gateway is not None
    long_stream = Stream(stack, 600)
    with httpx.Client(timeout=60) as client:
        assert client.get(f"{stack.url}/health/live").headers.get("connection") is None
        stack.gateway.send_signal(signal.SIGTERM)
        eventually(lambda: is_ready(stack.url) == 503)
        answer = client.post(f"{stack.url}/v1/chat/completions", headers=stack.headers(), json=body(max_tokens=2))
        assert answer.status_code == 200, "it still accepts"
        assert answer.headers["connection"] == "close"
        eventually(lambda: is_ready(stack.url) == 0)
    assert stack.gateway.wait(PATIENCE_S) == 0
    assert long_stream.is_complete()
    assert stack.open_holds() == 0
    assert stack.read(audit_ledger).sound


def test_a_second_signal_ends_a_long_grace(make_stack: MakeStack) -> None:
    """SIGINT after SIGTERM: the stream is cut as in a quick stop, and its tokens are billed."""
    stack = make_stack(fake={"step_ms": 20.0}, gateway_toml="linger_s = 60.0\nshutdown_grace_s = 3600.0\n")
    assert stack.gateway is not None
    stream = Stream(stack, 2000)
    stack.gateway.send_signal(signal.SIGTERM)
    eventually(lambda: is_ready(stack.url) == 503)
    stack.gateway.send_signal(signal.SIGINT)
    assert stack.gateway.wait(PATIENCE_S) == 0
    stream.join(PATIENCE_S)
    assert "engine_unavailable" in stream.lines[-1]
    assert stack.open_holds() == 0


def test_drain_waits_for_the_last_stream_and_leaves_the_process(make_stack: MakeStack) -> None:
    stack = make_stack(fake={"step_ms": 100.0}, gateway_toml="linger_s = 0.5\nshutdown_grace_s = 60.0\n")
    assert stack.gateway is not None
    stream = Stream(stack, 200)  # longer than the command takes to start
    done = laneway(stack, "drain", "gateway")
    assert done.returncode == 0, done.stderr
    assert "requests left: 1; it still accepts requests" in done.stdout
    assert "drained after" in done.stdout
    assert stream.is_complete()
    assert is_ready(stack.url) == 0
    assert stack.gateway.poll() is None, "it ends when the service is stopped"
    stack.gateway.send_signal(signal.SIGTERM)
    assert stack.gateway.wait(PATIENCE_S) == 0
    assert not socket_path(stack.config.data_dir, 0).exists()
    assert laneway(stack, "drain", "gateway").returncode == 2


def test_drain_says_what_is_left(make_stack: MakeStack) -> None:
    stack = make_stack(fake={"step_ms": 100.0}, gateway_toml="linger_s = 0.1\nshutdown_grace_s = 60.0\n")
    stream = Stream(stack, 2000)
    done = laneway(stack, "drain", "gateway", "--timeout", "1")
    assert done.returncode == 1
    assert "requests left after 1 s: 1; stopping the service cuts them" in done.stderr
    assert stream.is_alive(), "drain cuts nothing"
    assert stack.gateway is not None
    stack.gateway.send_signal(signal.SIGINT)
    assert stack.gateway.wait(PATIENCE_S) == 0
    stream.join(PATIENCE_S)


def test_upgrade_replaces_one_worker_after_another_and_reports(make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url, workers=2, gateway_toml="linger_s = 0.2\nshutdown_grace_s = 60.0\n")
    assert stack.gateway is not None
    eventually(lambda: "workers listen" in stack.log_file.read_text(), 60.0)
    before = set(children(stack.gateway.pid))
    done = laneway(stack, "upgrade")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the schema is the newest\n")
    for number in (0, 1):
        assert f"the gateway worker {number} is replaced: pid" in done.stdout
    assert "the upgrade took" in done.stdout
    after = set(children(stack.gateway.pid))
    assert len(after) == 2
    assert not before & after
    for _ in range(4):
        assert stack.chat(max_tokens=1).status_code == 200
    assert [path.name for path in sorted(stack.config.data_dir.glob("worker-*"))] == ["worker-0.sock", "worker-1.sock"]

    # A new version that does not start: the old workers serve on.
    stack.config_file.write_text(stack.config_file.read_text() + "[nonsense]\n")
    good = stack.directory / "good.toml"
    good.write_text(stack.config_file.read_text().replace("[nonsense]\n", ""))
    done = laneway(stack, "upgrade", config=good)
    assert done.returncode == 1
    assert "the new gateway worker 0 ended before it was ready (exit status 2)" in done.stderr
    assert set(children(stack.gateway.pid)) == after
    assert stack.chat(max_tokens=1).status_code == 200
    assert stack.read(audit_ledger).sound


def test_one_worker_beside_its_engine_is_replaced_too(make_serve: Callable[..., Serve], postgres_url: str) -> None:
    """`laneway serve` on PostgreSQL: two gateways run for a moment; the engine restarts on request."""
    serve = make_serve(f'[gateway]\ndatabase_url = "{postgres_url}"\nlinger_s = 0.2\n')
    serve.start("--fake")
    before = set(serve.children())
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "upgrade", "--engine"],
        cwd=serve.directory,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the gateway is replaced: pid" in done.stdout
    assert "the engine is ready (pid" in done.stdout
    assert not before & set(serve.children())
    eventually(lambda: is_ready(serve.url) == 200)
    serve.stop()


def test_what_cannot_be_upgraded_is_refused(tmp_path: Path, make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack()
    done = laneway(stack, "upgrade")
    assert done.returncode == 2
    assert "laneway upgrade is refused: it needs PostgreSQL (gateway.database_url)" in done.stderr
    (tmp_path / "laneway.toml").write_text(f'[gateway]\ndatabase_url = "{postgres_url}"\ndata_dir = "none"\n')
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "upgrade"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no supervisor answers in" in done.stderr
