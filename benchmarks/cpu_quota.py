"""Slows a process down: by a cgroup's CPU quota where cgroups are writable, else by SIGSTOP and SIGCONT.

It knows no benchmark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


@contextlib.contextmanager
def quota(pid: int, share: float) -> Iterator[str]:
    """Limit all threads of the process together to `share` of one core; 1: no limit. Yields a word for the means."""
    if share >= 1:
        yield "nothing"
        return
    try:
        group, before = _limited(pid, share)
    except OSError:
        with _by_turns(pid, share):
            yield "SIGSTOP and SIGCONT by turns"
        return
    try:
        yield f"the CPU quota of cgroup v{2 if (group / 'cpu.max').exists() else 1}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            (before / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _limited(pid: int, share: float) -> tuple[Path, Path]:
    """Move the process into a new group. Returns the new group and the old one. Raises OSError."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    of_process = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    first = "cpu" in of_process
    root = CGROUPS / "cpu" if first else CGROUPS
    before = root / of_process["cpu" if first else ""].lstrip("/")
    group = before / f"laneway-{os.getpid()}"
    group.mkdir()
    try:
        if first:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(round(share * PERIOD_US)))
        else:
            (group / "cpu.max").write_text(f"{round(share * PERIOD_US)} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.rmdir()
        raise
    return group, before


@contextlib.contextmanager
def _by_turns(pid: int, share: float) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, signal.SIGSTOP)
                stopping = over.wait((1 - share) * PERIOD_US / 1e6)
                os.kill(pid, signal.SIGCONT)
                if stopping or over.wait(share * PERIOD_US / 1e6):
                    return

    thread = threading.Thread(target=run, name="quota")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
