"""Gateways and fake engines that start as forks of a process with their modules: the imports are half of a gateway's
start.

Each pytest process has a `multiprocessing` fork server. A child has its own environment, folder, output and `sys.argv`,
and runs the module as `python -m` does. Differences: its command line in /proc is the server's, its parent is the
server, and `atexit` does not run.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ["gateway.__main__", "engine.__main__"]
POLL_S = 0.005
_server_environ: dict[str, str] | None = None  # None: forks are not enabled, and each process starts an interpreter


def enable_forks() -> None:
    """From now on `start_process` forks. The fork server has the present environment: call this before a test changes
    the environment."""
    global _server_environ
    _server_environ = dict(os.environ)


class ForkedProcess:
    """The part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, module: str, arguments: Sequence[str], *, environ: dict[str, str], log: Path) -> None:
        self.args = [sys.executable, "-m", module, *arguments]
        _SERVER.set_forkserver_preload(_PRELOADED)
        run = (module, list(arguments), environ, os.getcwd(), str(log))
        self._process = _SERVER.Process(target=run_module, args=run, daemon=True)
        self._lock = threading.Lock()
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with self._lock:  # two threads would read the exit status twice
            return self._process.exitcode

    def wait(self, timeout: float = math.inf) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


StartedProcess = subprocess.Popen[bytes] | ForkedProcess


def start_process(
    module: str, arguments: Sequence[str], *, environ: dict[str, str], log: Path, own_session: bool = False
) -> StartedProcess:
    """Start `python -m MODULE ARGUMENTS`, with its output appended to `log`: as a fork if forks are enabled and the
    process needs neither another environment nor its own session."""
    if not own_session and _has_server_environ(environ):
        return ForkedProcess(module, arguments, environ=environ, log=log)
    argv = [sys.executable, "-m", module, *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(argv, stdout=output, stderr=output, env=environ, start_new_session=own_session)


def _has_server_environ(environ: dict[str, str]) -> bool:
    """Whether the interpreter and the libraries would read the same variables as in the server. Laneway's own settings
    are read after the fork."""
    if _server_environ is None:
        return False
    names = environ.keys() | _server_environ.keys()
    own = ("LANEWAY_", "PYTEST_")
    return all(name.startswith(own) or environ.get(name) == _server_environ.get(name) for name in names)


def run_module(module: str, arguments: list[str], environ: dict[str, str], directory: str, log: str) -> None:
    """Run a module as `python -m` does; called in the child."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(directory)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.modules.pop(f"{module}.__main__", None)  # loaded by the server under this name, run below under another
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
