"""`python -m benchmarks`: what `make bench` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.benchmarks.load_tool import REPO


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)


def test_the_list_names_programs_that_are_there() -> None:
    listed = benchmarks("--list")
    assert listed.returncode == 0, listed.stderr
    names = [line.split()[1].rstrip(":") for line in listed.stdout.splitlines() if line.startswith("==> ")]
    assert "load_ceiling" in names
    assert all(Path(REPO, "benchmarks", f"{name.replace('.', '/')}.py").exists() for name in names)


def test_a_name_that_is_none_is_refused() -> None:
    refused = benchmarks("nonsense")
    assert refused.returncode == 2
    assert "load_ceiling" in refused.stderr
