"""Several gateway processes on one port: whichever is asked answers the same, and one that dies is nobody's loss."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.ledger.journal import paths
from billing.proofs.ledger_audit import audit_ledger
from gateway.access import keys
from gateway.commands.run import gateway_specs
from gateway.config.file import parse_gateway_config
from gateway.host.workers import merge_metrics
from support.paths import REPO
from support.ports import free_port
from support.stack import Stack, body
from support.waiting import PATIENCE_S, eventually

MakeStack = Callable[..., Stack]
LEASE = "[lease]\nlength_s = 3.0\nrenew_s = 0.3\nexpire_s = 0.3\n"


def worker_pids(stack: Stack) -> list[int]:
    assert stack.gateway is not None
    pid = stack.gateway.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def answered(stack: Stack) -> Counter[str]:
    """Chat answers by worker, as any one of them tells it."""
    text = stack.metrics()
    pattern = r'laneway_http_responses_total\{worker="(\d+)",route="/v1/chat/completions",status="\d+"\} ([\d.]+)'
    found: Counter[str] = Counter()
    for worker, count in re.findall(pattern, text):
        found[worker] += int(float(count))
    return found


def live_leases(stack: Stack) -> int:
    return stack.read(lambda c: int(c.execute(sa.select(sa.func.count()).select_from(tables.leases)).scalar_one()))


def ask_until_both_answered(stack: Stack, headers: dict[str, str]) -> None:
    def both() -> bool:
        answer = httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(max_tokens=1))
        assert answer.status_code == 200
        return len(answered(stack)) == 2

    eventually(both)


def test_two_workers_from_start_to_stop(make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url, workers=2, toml=LEASE)
    made = stack.new_key("acme")
    headers = {"Authorization": f"Bearer {made.secret}"}
    ask_until_both_answered(stack, headers)
    text = stack.metrics()
    assert 'laneway_worker_up{worker="0"} 1.0' in text
    assert 'laneway_worker_up{worker="1"} 1.0' in text
    assert text.count("# TYPE laneway_hold_seconds histogram") == 1
    assert text.count("# TYPE vllm:generation_tokens_total") == 1
    assert live_leases(stack) == 2
    assert len(paths(stack.config.journal_dir)) == 2

    # What is revoked is revoked in both, a second later.
    stack.write(lambda connection: keys.revoke(connection, made.key.id))
    time.sleep(1.0)
    before = answered(stack)

    def refused_by_both() -> bool:
        answer = httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(max_tokens=1))
        assert answer.status_code in (401, 503)  # 503: it knows that it does not know
        return all(answered(stack)[worker] > before[worker] for worker in before)

    eventually(refused_by_both)

    began = time.monotonic()
    assert stack.gateway is not None
    stack.gateway.send_signal(signal.SIGTERM)
    assert stack.gateway.wait(PATIENCE_S) == 0
    assert time.monotonic() - began < 15, "they stop side by side"
    assert live_leases(stack) == 0
    assert paths(stack.config.journal_dir) == []
    assert stack.open_holds() == 0


def test_a_worker_that_is_killed_comes_back_and_its_holds_expire(make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url, workers=2, toml=LEASE, fake={"step_ms": 20.0})
    # One that dies before all were ready is no worker to start again: the command ends.
    eventually(lambda: "2 workers listen" in stack.log_file.read_text())
    before = worker_pids(stack)
    with httpx.stream(
        "POST", f"{stack.url}/v1/chat/completions", headers=stack.headers(), json=body(stream=True, max_tokens=2000)
    ) as answer:
        next(answer.iter_lines())
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: "is back (pid" in stack.log_file.read_text())
    after = worker_pids(stack)
    assert len(after) == 2
    assert len({*before, *after}) == 3, "one of them lives on"
    assert "the gateway worker 0 ended (SIGKILL); it starts again in 0.2 s" in stack.log_file.read_text()
    for _ in range(10):
        assert stack.chat(max_tokens=1).status_code == 200
    eventually(lambda: stack.open_holds() == 0)
    assert stack.read(audit_ledger).sound


def test_a_worker_that_lives_and_stands_still_is_started_again(make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url, workers=2, toml=LEASE, gateway_toml="still_s_max = 1.5\n")
    eventually(lambda: "2 workers listen" in stack.log_file.read_text())
    before = worker_pids(stack)
    os.kill(before[1], signal.SIGSTOP)
    eventually(lambda: "is back (pid" in stack.log_file.read_text(), timeout_s=60)
    log = stack.log_file.read_text()
    assert "the gateway worker 1 did not answer for 1.5 s and is killed" in log
    assert "the gateway worker 1 ended (SIGKILL)" in log
    after = worker_pids(stack)
    assert set(before) - set(after) == {before[1]}, "the other one lives on"
    for _ in range(10):
        assert stack.chat(max_tokens=1).status_code == 200


@pytest.mark.parametrize(("still_s_max", "watched"), [(1.5, True), (0, False)])
def test_who_is_watched(tmp_path: Path, still_s_max: float, watched: bool) -> None:
    config = parse_gateway_config(f"[gateway]\nstill_s_max = {still_s_max}\n".encode(), tmp_path, "test", {})
    several = gateway_specs(config, 3, None, {}, rolls=True)
    assert [spec.pulse is not None for spec in several] == [watched] * 3
    if watched:
        assert len({spec.pulse for spec in several}) == 3
    [alone] = gateway_specs(config, 1, None, {}, rolls=False)
    assert alone.pulse is None


def test_workers_of_serve(make_serve: Callable[..., Any], postgres_url: str) -> None:
    """`laneway serve --workers 2`: all ready before it says so, started again, stopped in order."""
    place = f"127.0.0.1:{free_port()}"
    serve = make_serve(f'[gateway]\ndatabase_url = "{postgres_url}"\nmetrics_address = "{place}"\n')
    serve.start("--fake", "--workers", "2")
    assert httpx.get(f"{serve.url}/health/ready").status_code == 200
    text = httpx.get(f"http://{place}/metrics").text
    assert text.count("laneway_worker_up{") == text.count("} 1.0\n", 0, text.index("# HELP laneway_http")) == 2
    assert serve.process is not None
    for pid in serve.children():
        if "gateway" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
            break
    serve.until(lambda: "is back (pid" in serve.output, 30.0)
    assert serve.stop() < 5.0


def test_several_workers_on_sqlite_are_refused(tmp_path: Path) -> None:
    for command in (["gateway"], ["serve", "--fake"]):
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", *command, "--workers", "2"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "--workers 2 needs PostgreSQL (gateway.database_url)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--demo", "--workers", "2"], "--demo runs one"), (["--workers", "33"], "33")]
)
def test_workers_that_cannot_be(tmp_path: Path, arguments: list[str], says: str) -> None:
    environ: dict[str, Any] = {**os.environ, "LANEWAY_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", *arguments],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stderr


def test_texts_of_several_workers_are_one() -> None:
    zero = b'# HELP a_total A\n# TYPE a_total counter\na_total{k="x y"} 1.0\n# HELP b B\n# TYPE b gauge\nb 2.0\n'
    one = b'# HELP a_total A\n# TYPE a_total counter\na_total{k="{"} 3.0\n# HELP b B\n# TYPE b gauge\nb 4.0\n'
    assert merge_metrics({0: zero, 1: one, 2: None}).decode().splitlines() == [
        "# HELP laneway_worker_up Whether this worker answered",
        "# TYPE laneway_worker_up gauge",
        'laneway_worker_up{worker="0"} 1.0',
        'laneway_worker_up{worker="1"} 1.0',
        'laneway_worker_up{worker="2"} 0.0',
        "# HELP a_total A",
        "# TYPE a_total counter",
        'a_total{worker="0",k="x y"} 1.0',
        'a_total{worker="1",k="{"} 3.0',
        "# HELP b B",
        "# TYPE b gauge",
        'b{worker="0"} 2.0',
        'b{worker="1"} 4.0',
    ]
