"""`laneway serve` as a person would type it, in its own directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from support.ports import free_port
from support.processes import alive, children

START_S_MAX = 90.0
MODEL = "smollm2-135m-instruct"


class Serve:
    """One `laneway serve` in `directory`; started again it is the same installation."""

    def __init__(self, directory: Path, model_dir: Path, toml: str = "") -> None:
        self.directory = directory
        self.port = free_port()
        # `make run` has no such file: only the model, converted once for all tests, lies elsewhere.
        model = f'[[models]]\nname = "{MODEL}"\npath = "{model_dir}"\ntools = "hermes"\n'
        (directory / "laneway.toml").write_text(model + toml)
        self.data = directory / ".laneway"
        self.output_file = directory / "output.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, *arguments: str, port: int | None = None) -> subprocess.Popen[bytes]:
        with self.output_file.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve", *arguments],
                cwd=self.directory,
                env={**os.environ, "LANEWAY_PORT": str(port or self.port)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def refused(self, *arguments: str, port: int | None = None) -> str:
        """Start it, and expect exit status 2. Returns its output."""
        process = self.spawn(*arguments, port=port)
        assert process.wait(60) == 2, self.output
        return self.output

    def start(self, *arguments: str) -> None:
        """Start it, and wait until it is ready; with --demo, demo.json exists then."""
        self.process = self.spawn(*arguments)
        self.until(lambda: "Ctrl-C stops it." in self.output, START_S_MAX)

    def until(self, condition: Callable[[], bool], timeout_s: float) -> float:
        """Wait; return the seconds it took."""
        began = time.monotonic()
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            assert time.monotonic() - began < timeout_s, f"not in time:\n{self.output}"
            time.sleep(0.02)
        return time.monotonic() - began

    def stop(self, number: int = signal.SIGINT) -> float:
        """Stop it and see that nothing is left; return the seconds it took."""
        assert self.process is not None
        pids = children(self.process.pid)
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(60)
        took = time.monotonic() - began
        assert status == 0, self.output
        assert not [pid for pid in pids if alive(pid)]
        return took

    def children(self) -> list[int]:
        assert self.process is not None
        return children(self.process.pid)

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def demo(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.data / "demo.json").read_text())
        return content

    def chat(self, tenant: str, model: str = MODEL, **fields: Any) -> httpx.Response:
        body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], **fields}
        headers = {"Authorization": f"Bearer {self.demo['keys'][tenant]}"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)

    def admin(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.demo['admin_key']}"}
        return httpx.get(f"{self.url}/v1/admin/{path}", headers=headers, timeout=30).json()
