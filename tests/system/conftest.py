"""Fixtures of the system tests: `laneway serve` as somebody would type it, in a directory of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import alive, children
from support.serve import Serve


@contextmanager
def servers(folder: Path, model_dir: Path) -> Iterator[Callable[..., Serve]]:
    """Makes a directory where `laneway serve` may be started. Whatever still runs at the end is killed."""
    made: list[Serve] = []

    def make(toml: str = "") -> Serve:
        directory = folder / f"s{len(made)}"  # short: sockets below it have paths of at most 107 bytes
        directory.mkdir()
        made.append(Serve(directory, model_dir, toml))
        return made[-1]

    yield make
    for serve in made:
        if serve.process is not None and serve.process.poll() is None:
            pids = children(serve.process.pid)
            serve.process.kill()
            serve.process.wait()
            for pid in pids:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def make_serve(tmp_path: Path, model_dir: Path) -> Iterator[Callable[..., Serve]]:
    with servers(tmp_path, model_dir) as make:
        yield make


@pytest.fixture(scope="module")
def module_serve(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Callable[..., Serve]]:
    """As `make_serve`, for all tests of a module."""
    with servers(tmp_path_factory.mktemp("serve"), model_dir) as make:
        yield make


@pytest.fixture
def serve(make_serve: Callable[..., Serve]) -> Serve:
    return make_serve()
