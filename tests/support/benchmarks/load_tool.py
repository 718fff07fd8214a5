"""The load tool as its user starts it, and the canned server that it is tried on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import REPO

RUN_S_MAX = 60


@dataclass
class Ran:
    code: int
    out: str
    err: str  # empty if stderr was redirected
    report: dict[str, Any]


class Bench:
    """Runs `python -m benchmarks.load` against `target`'s arguments; each run's report is read from its JSON."""

    def __init__(self, directory: Path, *target: str) -> None:
        self.json = directory / "report.json"
        self.argv = [sys.executable, "-m", "benchmarks.load", *target, "--json", str(self.json)]

    def start(self, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        self.json.unlink(missing_ok=True)
        return subprocess.Popen([*self.argv, *arguments], cwd=REPO, text=True, stdout=subprocess.PIPE, stderr=stderr)

    def finish(self, process: subprocess.Popen[str]) -> Ran:
        out, err = process.communicate(timeout=RUN_S_MAX)
        report = json.loads(self.json.read_text()) if self.json.exists() else {}
        return Ran(process.returncode, out, err or "", report)

    def __call__(self, *arguments: str) -> Ran:
        return self.finish(self.start(*arguments))


@contextmanager
def canned_server(gap_ms: float) -> Iterator[str]:
    """The base URL of a canned server."""
    argv = [sys.executable, "-m", "benchmarks.canned_server", "--gap-ms", str(gap_ms)]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()
