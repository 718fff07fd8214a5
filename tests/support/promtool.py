"""Prometheus itself, its checker promtool, and rule tests in promtool's form."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from support.ports import free_port
from support.services import missing_service
from support.waiting import eventually


@contextlib.contextmanager
def running_prometheus(directory: Path, config: Path) -> Iterator[str]:
    """The URL of a Prometheus with this configuration."""
    port = free_port()
    argv = [
        _program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/-/ready").status_code == 200
        return False

    try:
        eventually(is_ready)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def promtool(*arguments: str | Path) -> str:
    """The output of `promtool ARGUMENTS`. Fails with it for another exit status than 0."""
    done = subprocess.run(
        [_program("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def lint_metrics(text: str) -> list[str]:
    """The complaints of `promtool check metrics` about a page of metrics; empty: none. Fails if it cannot read the
    page."""
    done = subprocess.run(
        [_program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr  # 3: readable, with complaints
    return (done.stdout + done.stderr).splitlines()


def check_rules(directory: Path, rules: Path, tests: list[dict[str, Any]]) -> None:
    """Run `promtool test rules`. JSON is YAML, so the file is written as such."""
    file = directory / "rules_test.yml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        missing_service(name, "it is not installed: apt-get install prometheus")
    return path
