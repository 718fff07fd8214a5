"""The parent of engine and gateway: what dies comes back, what stops is gone, and no orphan outlives it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import engine.__main__
from gateway.host import children, supervisor

STOP_S_MAX = 15.0  # a second or two, and what a machine stands still


def wait_for(condition: Callable[[], bool], timeout_s: float) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - began


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_engine_and_a_gateway_that_die_come_back(serve: Any) -> None:
    serve.start("--demo", "--fake")
    for name, other in (("engine", "gateway"), ("gateway", "engine")):
        before = serve.demo["pids"]
        assert serve.chat("acme").status_code == 200
        os.kill(before[name], signal.SIGKILL)
        serve.until(lambda name=name: f"the {name} is back" in serve.output, 30.0)
        after = serve.demo["pids"]
        assert after[name] != before[name]
        assert alive(after[name])
        assert after[other] == before[other], "the other one lives on"
        assert f"the {name} ended (SIGKILL); it starts again in 0.2 s" in serve.output
        assert serve.chat("acme").status_code == 200
    assert (serve.data / "demo.json").stat().st_mode & 0o777 == 0o600
    assert serve.stop() < STOP_S_MAX


@pytest.mark.parametrize(("still_s_max", "killed"), [(2.0, True), (0, False)])
def test_an_engine_that_lives_and_stands_still(
    make_serve: Callable[..., Any], still_s_max: float, killed: bool
) -> None:
    serve = make_serve(f"[engine]\nstill_s_max = {still_s_max}\n")
    serve.start("--demo", "--fake")
    frozen = serve.demo["pids"]["engine"]
    os.kill(frozen, signal.SIGSTOP)
    if killed:
        serve.until(lambda: "the engine is back" in serve.output, 60.0)
        assert "the engine did not answer for 2 s and is killed" in serve.output
        assert serve.demo["pids"]["engine"] != frozen
        assert serve.chat("acme").status_code == 200
    else:
        time.sleep(6)
        assert "is killed" not in serve.output
        os.kill(frozen, signal.SIGCONT)
        serve.until(lambda: serve.chat("acme").status_code == 200, 30.0)
    assert serve.stop() < STOP_S_MAX


def test_an_engine_that_keeps_dying_is_started_ever_later(serve: Any) -> None:
    serve.start("--demo", "--fake")
    settings = serve.data / "engine.json"
    good = settings.read_bytes()
    settings.write_bytes(b"{}")
    os.kill(serve.demo["pids"]["engine"], signal.SIGKILL)
    serve.until(lambda: "starts again in 0.8 s" in serve.output, 30.0)
    settings.write_bytes(good)
    serve.until(lambda: "the engine is back" in serve.output, 30.0)
    waits = re.findall(r"the engine ended \((.*)\); it starts again in ([\d.]+) s", serve.output)
    assert waits[:3] == [("SIGKILL", "0.2"), ("exit status 2", "0.4"), ("exit status 2", "0.8")]
    assert serve.chat("acme").status_code == 200
    assert serve.stop() < STOP_S_MAX


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_stop_in_the_middle_of_streams_is_quick_and_complete(serve: Any, number: signal.Signals) -> None:
    serve.start("--demo", "--fake")
    body = {
        "model": "smollm2-135m-instruct",
        "max_tokens": 4000,
        "stream": True,
        "messages": [{"role": "user", "content": "Count."}],
    }
    headers = {"Authorization": f"Bearer {serve.demo['keys']['acme']}"}
    with httpx.stream("POST", f"{serve.url}/v1/chat/completions", json=body, headers=headers, timeout=30) as stream:
        next(stream.iter_bytes())
        assert serve.stop(number) < STOP_S_MAX
    assert "is killed" not in serve.output, "each ended by itself"


def test_an_engine_ends_itself_before_it_is_killed_and_on_a_gpu_the_kernel_has_time_too() -> None:
    nowhere = Path("/nowhere")
    on_cpu = supervisor.engine_spec(nowhere, nowhere, fake=False, environ={})
    on_gpu = supervisor.engine_spec(nowhere, nowhere, fake=False, environ={}, on_gpu=True)
    assert engine.__main__.STOP_S_MAX < on_cpu.stop_s < on_gpu.stop_s


def test_frozen_children_do_not_delay_the_stop(serve: Any) -> None:
    serve.start("--demo", "--fake")
    for pid in serve.demo["pids"].values():
        os.kill(pid, signal.SIGSTOP)
    assert serve.stop() < STOP_S_MAX, "both graces together, and both were used up"
    for name in ("gateway", "engine"):
        assert f"the {name} did not stop within" in serve.output


def test_no_orphan_when_the_parent_is_killed(serve: Any) -> None:
    serve.start("--demo", "--fake")
    pids = serve.demo["pids"].values()
    serve.process.kill()
    serve.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), 30.0)
    serve.start("--demo", "--fake")
    assert serve.chat("acme").status_code == 200, "what was left behind is in nobody's way"
    serve.stop()


def test_serve_without_the_demo_has_no_tenants(serve: Any) -> None:
    serve.start("--fake")
    assert f"Laneway serves at {serve.url}/v1" in serve.output
    assert httpx.get(f"{serve.url}/health/ready").status_code == 200
    assert not (serve.data / "secrets.json").exists()
    assert serve.stop() < STOP_S_MAX


def test_a_start_that_fails_says_why_and_leaves_nothing(make_serve: Callable[..., Any]) -> None:
    serve = make_serve()
    (serve.directory / "laneway.toml").write_text('[[models]]\nname = "absent"\npath = "nowhere"\n')
    says = serve.refused("--fake")
    assert "nowhere" in says
    assert "Error: the gateway ended before it was ready (exit status 2)" in says


def test_gateway_and_engine_run_alone_too(serve: Any) -> None:
    laneway = [sys.executable, "-m", "gateway.cli"]
    environ = {**os.environ, "LANEWAY_PORT": str(serve.port)}
    subprocess.run([*laneway, "db", "upgrade"], cwd=serve.directory, check=True, capture_output=True)
    with serve.output_file.open("wb") as output:
        both = [
            subprocess.Popen([*laneway, *command], cwd=serve.directory, env=environ, stdout=output, stderr=output)
            for command in (["engine", "--fake"], ["gateway"])
        ]
    try:
        wait_for(lambda: is_ready(serve.url), 60.0)
    finally:
        for process in reversed(both):
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0, serve.output


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("line", "ready"),
    [
        (b'{"event":"ready","epoch":"x"}\n', True),
        (b'{"event":"loading"}\n', False),
        (b'["ready"]\n', False),
        (b"{not json\n", False),
        (b"ready\n", False),
        (b"", False),
    ],
)
def test_what_a_ready_line_is(line: bytes, ready: bool) -> None:
    assert children.is_ready_line(line) is ready


def test_how_an_ending_is_told() -> None:
    assert [children.describe_exit(code) for code in (0, 3, -9, -250)] == [
        *("exit status 0", "exit status 3"),
        *("SIGKILL", "signal 250"),
    ]


async def test_what_a_child_warns_of_is_said_before_it_counts_as_ready() -> None:
    """The engine's ready line, whose warnings a person who starts the demo must see among its words."""
    line = '{"event": "ready", "warnings": ["the targets are larger"]}'
    spec = children.ChildSpec("engine", ["sh", "-c", f"echo '{line}'"], {}, 1.0, signal.SIGTERM, speaks=True)
    said: list[str] = []
    child = children.Child(spec, said.append, lambda: None)
    assert await child.live() == "exit status 0"
    assert said == ["warning: the targets are larger"]
    assert children.warnings_of(b'{"event": "ready"}') == children.warnings_of(b'{"warnings": 3}') == []


def test_only_a_demo_raises_targets() -> None:
    nowhere = Path("/nowhere")
    for raises in (False, True):
        spec = supervisor.engine_spec(nowhere, nowhere, fake=False, environ={}, raise_targets=raises)
        assert ("--raise-targets" in spec.argv) is raises
