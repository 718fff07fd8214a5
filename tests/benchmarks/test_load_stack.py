"""`laneway bench` on a whole Laneway: its figures beside the ledger's, its error kinds, a stall that it must show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing import tables
from support.benchmarks.load_tool import REPO, Bench
from support.stack import MODEL, Stack
from support.waiting import eventually


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """A stack whose engine may be stopped and killed; who does leaves it running again."""
    directory = tmp_path_factory.mktemp("breakable")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, fake={"step_ms": 20.0})
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def one_tenant(stack: Stack, directory: Path) -> Bench:
    return Bench(directory, "--base-url", stack.url, "--key", f"acme={stack.keys['acme']}", "--models", MODEL)


def test_a_mix_is_served_and_its_tokens_are_the_ledgers(stack: Stack, tmp_path: Path) -> None:
    made = {tenant: stack.new_key(tenant) for tenant in stack.tenants}
    keys = {tenant: key.secret for tenant, key in made.items()}
    demo, plot, out = tmp_path / "demo.json", tmp_path / "run.png", tmp_path / "run.json"
    demo.write_text(json.dumps({"base_url": f"{stack.url}/v1", "keys": keys, "models": [MODEL], "pids": {}}))
    stack.known()
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "gateway.cli", "bench", "--demo", str(demo)),
            *("--rate", "60", "--requests", "90", "--popularity", "uniform", "--tier", "default", "--tier", "flex=2"),
            *("--prompt-tokens", "50", "--max-tokens", "8", "--slo-ttft-ms", "60000", "--warmup", "6"),
            *("--json", str(out), "--plot", str(plot), "--note", "a test"),
        ],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(out.read_text())
    assert report["errors"] == {}
    assert set(report["tiers"]) == {"default", "flex"}
    # Each tenant draws from what it may see.
    assert set(report["models"]) >= {MODEL, *stack.adapters}
    assert {name: group["requests"] for name, group in report["tenants"].items()} == dict.fromkeys(keys, 30)
    assert report["goodput"]["share"] == 1
    total = report["total"]
    assert total["completion_tokens"] == 90 * 8
    assert 90 * 50 < total["prompt_tokens"] < 90 * 90  # with the template's
    rows = sa.select(tables.usage).where(tables.usage.c.key_id.in_([key.key.id for key in made.values()]))
    usage = stack.read(lambda connection: connection.execute(rows).all())
    assert sorted(row.completion_tokens for row in usage) == [8] * 96  # the warm-up too, which the report leaves out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "output tokens/s" in ran.stdout
    assert not any(key in ran.stdout + out.read_text() for key in keys.values())


def test_a_budget_that_ends_is_counted_as_such(stack: Stack, tmp_path: Path) -> None:
    made = stack.new_key("acme")
    stack.budget(made.key, "tokens", 1000)
    stack.known()
    bench = Bench(tmp_path, "--base-url", stack.url, "--key", f"acme={made.secret}", "--models", MODEL)
    total = (ran := bench("--concurrency", "4", "--requests", "30", "--prompt-tokens", "50")).report["total"]
    assert 5 <= total["succeeded"] <= 12  # of about 110 tokens each
    assert total["prompt_tokens"] + total["completion_tokens"] <= 1000
    assert ran.report["errors"] == {"429 key_budget_exceeded": 30 - total["succeeded"]}


def test_what_no_key_opens_is_said_before_the_run(stack: Stack, tmp_path: Path) -> None:
    ran = Bench(tmp_path, "--base-url", stack.url, "--api-key", "nonsense")("--rate", "1", "--requests", "1")
    assert ran.code == 1
    assert "answers 401 to the key of 'default'" in ran.err


def test_a_killed_engine_shows_in_the_kinds_of_errors(breakable: Stack, tmp_path: Path) -> None:
    stack, holds_before = breakable, breakable.holds()
    bench = one_tenant(stack, tmp_path)
    process = bench.start("--rate", "20", "--duration", "8", "--max-tokens", "20")
    eventually(lambda: stack.holds() >= holds_before + 10)
    stack.kill_engine()
    ran = bench.finish(process)
    stack.start_engine()
    stack.wait_ready()
    kinds = set(ran.report["errors"])
    assert ran.report["total"]["succeeded"] > 0
    assert kinds <= {"error event engine_unavailable", "503 engine_unavailable"}
    assert "503 engine_unavailable" in kinds
    assert len(kinds) == 2, "those under way break off, those after it are refused"


def test_a_stall_shows_in_an_open_loop_and_hides_in_a_closed_one(breakable: Stack, tmp_path: Path) -> None:
    """Coordinated omission: who waits for answers before it asks again hardly notices a server that stands still."""
    stack, bench = breakable, one_tenant(breakable, tmp_path)

    def stalled(*arguments: str) -> dict[str, float]:
        holds_before = stack.holds()
        process = bench.start("--max-tokens", "2", "--prompt-tokens", "20", *arguments)
        eventually(lambda: stack.holds() >= holds_before + 10)
        assert stack.engine is not None
        os.kill(stack.engine.pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(stack.engine.pid, signal.SIGCONT)
        ran = bench.finish(process)
        assert ran.report["errors"] == {}
        e2e: dict[str, float] = ran.report["total"]["e2e_ms"]
        return e2e

    open_loop = stalled("--rate", "50", "--duration", "3")
    # Some fifty of 150 requests fell due while the engine stood still, and waited from 0 to 1 s.
    assert open_loop["p99"] > 850
    assert open_loop["p90"] > 500
    closed_loop = stalled("--concurrency", "1", "--requests", "60")
    assert closed_loop["max"] > 850
    assert closed_loop["p95"] < 850
