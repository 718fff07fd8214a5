"""A Redis of a test's own, that it may freeze, kill and start again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import redis

from support.ports import free_port


class RedisServer:
    """`start()`s when made; holds nothing on disk."""

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        """`address`: of this host, on which it listens."""
        self._directory = directory
        self._address = address
        self.port = free_port()
        self.start()

    @staticmethod
    def installed() -> bool:
        return shutil.which("redis-server") is not None

    @property
    def url(self) -> str:
        return f"redis://{self._address}:{self.port}/0"

    def start(self) -> None:
        argv = ["redis-server", "--port", str(self.port), "--bind", self._address, "--protected-mode", "no"]
        argv += ["--save", "", "--dir", str(self._directory)]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(self._address, self.port, decode_responses=True)
        deadline = time.monotonic() + 30
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.01)

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()
