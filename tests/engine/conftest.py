"""Engine processes and streams that are cleaned up after the test."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.engine.process import EngineProcess, Peer


@pytest.fixture(scope="session")
def socket_dir() -> Iterator[Path]:
    """Short, as a Unix socket's path has to be."""
    directory = Path(tempfile.mkdtemp(prefix="lw"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def start_engine(socket_dir: Path) -> Iterator[Callable[..., EngineProcess]]:
    """Start a fake engine of its own for one test: `start_engine({"step_ms": 1}, **fields of the configuration)`;
    `flags`: further arguments of the process."""
    started: list[EngineProcess] = []

    def start(fake: dict[str, Any] | None = None, flags: Sequence[str] = (), **config: Any) -> EngineProcess:
        name = f"{os.getpid()}-{len(list(socket_dir.iterdir()))}"
        whole = {"models": [{"name": "fake-model"}], "fake": {"step_ms": 1.0, **(fake or {})}, **config}
        started.append(EngineProcess(socket_dir / f"{name}.sock", whole, "--fake", *flags))
        return started[-1]

    yield start
    for engine in started:
        engine.stop(signal.SIGKILL)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[EngineProcess], Any]]:
    """Open streams that are closed after the test: `peer = await connect(engine)`."""
    peers: list[Peer] = []

    async def open_peer(engine: EngineProcess) -> Peer:
        peers.append(await Peer.connect(engine.socket))
        return peers[-1]

    yield open_peer
    for peer in peers:
        await peer.close()
