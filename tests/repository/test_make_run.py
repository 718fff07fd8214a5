"""deploy/first_run.py: what `make run` prints while it installs, and how it refuses a machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import REPO
from support.services import missing_service


def first_run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(REPO / "deploy" / "first_run.py"), *arguments]
    return subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60)


def test_a_step_says_its_name_and_keeps_what_its_command_printed(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"
    done = first_run("step", "2/6", "a thing (1 GB)", str(log), "--", sys.executable, "-c", "print('many\\nlines')")
    assert done.returncode == 0
    assert done.stdout == "==> 2/6 a thing (1 GB)\n    done after 0 s\n"
    assert log.read_text() == "many\nlines\n"


def test_a_step_that_takes_long_shows_its_seconds_and_its_last_line(tmp_path: Path) -> None:
    code = "import time; print('Downloading x', flush=True); time.sleep(11)"
    done = first_run("step", "1/1", "slow", str(tmp_path / "a.log"), "--", sys.executable, "-c", code)
    assert re.search(r"^    … 1\d s  Downloading x\n", done.stdout, re.MULTILINE), done.stdout


def test_a_step_that_fails_shows_its_last_words(tmp_path: Path) -> None:
    code = "import sys; print('no such package'); sys.exit(3)"
    done = first_run("step", "3/6", "packages", str(tmp_path / "a.log"), "--", sys.executable, "-c", code)
    assert done.returncode == 1
    assert "    no such package\n" in done.stdout
    assert done.stderr == f"error: step 3/6 failed with status 3; all its output: {tmp_path}/a.log\n"
    missing = first_run("step", "3/6", "packages", str(tmp_path / "a.log"), "--", "/no/such/command")
    assert missing.stderr == "error: /no/such/command cannot be started: No such file or directory\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300m", "laneway-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        missing_service("a small file system", f"mounting one takes root: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_sizes_and_a_small_disk_are_said_before_anything_is_spent(small_disk: Path) -> None:
    venv = str(small_disk / ".venv")
    refused = first_run("check", venv, "torch==2.13.0 --index-url https://example.org/cpu")
    assert refused.returncode == 1
    assert "downloads about 0.5 GB and takes 2.1 GB on disk" in refused.stdout
    assert f"error: the disk of {small_disk} has 0.3 GB free, and the first run needs 2.1 GB" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert first_run("check", venv, "torch", LANEWAY_ANY_DISK="1").returncode == 0


def test_make_run_stops_before_it_makes_anything_on_a_small_disk(small_disk: Path) -> None:
    done = subprocess.run(
        ["make", "run", f"VENV={small_disk}/.venv"], cwd=REPO, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "GB free, and the first run needs" in done.stderr
    assert not (small_disk / ".venv").exists()


def test_the_steps_of_make_run_are_numbered_without_a_gap(tmp_path: Path) -> None:
    changed = tmp_path / "changed"  # newer than a console that is built already
    changed.touch()
    for target, steps in (("run", 6), ("test", 7)):
        done = subprocess.run(
            ["make", "-n", target, f"VENV={tmp_path}/.venv", f"UI_SOURCES={changed}"],
            cwd=REPO,
            capture_output=True,
            text=True,
            timeout=60,
        )
        numbers = [line.split(" step ")[1].split()[0] for line in done.stdout.splitlines() if " step " in line]
        assert numbers == [f"{number}/{steps}" for number in range(1, steps + 1)], done.stdout
