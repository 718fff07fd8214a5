"""Engines on a real Ray cluster of one node: `laneway fleet up`, requests, and an actor that is killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.paths import REPO


@pytest.mark.slow
def test_an_actor_is_killed_and_adopts_its_engine_again() -> None:
    """`make long` runs the program whole: it kills a node and the head too."""
    argv = [sys.executable, "tests/programs/ray_faults.py", "--short"]
    environ = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO}/tests"}
    done = subprocess.run(argv, cwd=REPO, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "none failed; no GPU was used twice" in done.stdout
