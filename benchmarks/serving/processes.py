"""Engines in separate processes, and the connections over which a measuring gateway talks to them.

It knows the configuration, the socket and the frames; it must never know the internals of an engine, nor load torch.
"""

from __future__ import annotations

import contextlib
import gc
import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.serving.gateway import Gateway, Line, Measured, Phase
from engine.protocol.codec import FrameReader, decode_from_engine, encode
from engine.protocol.config import EngineConfig
from engine.protocol.frames import Abort, Finished, Hello, Refused, Submit, Watch

START_S_MAX = 400.0  # loading weights, compiling kernels the first time, and capturing
STOP_S_MAX = 10.0
HELLO_S_MAX = 10.0
READ_BYTES = 1 << 20
LOG_LINES = 15  # lines of log that are shown of an engine that did not start


class NotStarted(Exception):
    """An engine that did not become ready; the message ends with what it logged last."""


class SocketLine(Line):
    """A connection to an engine's socket. After `listen`, a separate thread passes the engine's frames to a gateway."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(HELLO_S_MAX)
        self._socket.connect(str(path))
        self._reader = FrameReader()
        bodies: list[bytes] = []
        while not bodies:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise NotStarted("the engine closed its stream")
            bodies = self._reader.feed(data)
        hello = decode_from_engine(bodies[0])
        assert isinstance(hello, Hello), hello
        self.epoch = hello.epoch
        self.models = hello.models
        self._socket.settimeout(None)
        self._closing = False
        self._thread: threading.Thread | None = None

    def take(self, frame: Submit | Abort | Watch) -> None:
        self._socket.sendall(encode(frame))

    def listen(self, gateway: Gateway) -> None:
        self._thread = threading.Thread(target=self._read, args=(gateway,), name="engine-line", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _read(self, gateway: Gateway) -> None:
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                data = b""
            if not data:
                break
            ended = []
            for body in self._reader.feed(data):
                frame = decode_from_engine(body)
                if isinstance(frame, Finished | Refused):
                    ended.append(frame.handle)
            gateway.arrived(self, data, ended)
        if not self._closing:
            gateway.lost()


class EngineProcess:
    """`python -m engine`; its log is written to a file beside its socket."""

    def __init__(
        self,
        directory: Path,
        name: str,
        settings: Mapping[str, Any],
        *,
        fake: bool = False,
        flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`flags`: further options of the command. `environ`: of the process, instead of this process's environment."""
        self.path = directory / f"{name}.sock"
        self._log = directory / f"{name}.log"
        config = directory / f"{name}.json"
        config.write_bytes(msgspec.json.encode(settings))
        command = [sys.executable, "-m", "engine", "--socket", str(self.path), "--config", str(config)]
        self._began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *["--fake"] * fake, *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
            )

    def wait(self) -> float:
        """Wait until it is ready. Returns the seconds since its start. Raises NotStarted."""
        assert self._process.stdout is not None
        left = max(0.0, self._began + START_S_MAX - time.monotonic())
        readable, _, _ = select.select([self._process.stdout], [], [], left)
        line = self._process.stdout.readline() if readable else b""
        if not line or json.loads(line).get("event") != "ready":
            raise NotStarted(f"{self.path.stem} is not ready after {START_S_MAX:g} s, or ended:\n{self.last_words()}")
        return time.monotonic() - self._began

    def captured_s(self) -> float:
        """Seconds of capturing graphs, from its log."""
        lines = (json.loads(line) for line in self._log.read_text(errors="replace").splitlines() if line[:1] == "{")
        return float(sum(line["seconds"] for line in lines if line.get("event") == "graphs.captured"))

    def died(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def started(
    directory: Path, settings: Mapping[str, Mapping[str, Any]], *, fake: bool = False
) -> Iterator[list[SocketLine]]:
    """An engine for each name, all started at once, and connections to them. Raises NotStarted."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, own in settings.items():
            processes[name] = EngineProcess(directory, name, own, fake=fake)
            stack.callback(processes[name].stop)
        lines = []
        for name, process in processes.items():
            print(f"{name}: ready after {process.wait():.1f} s, graphs {process.captured_s():.1f} s of it", flush=True)
            lines.append(SocketLine(process.path))
            stack.callback(lines[-1].close)
        yield lines
        for name, process in processes.items():
            if process.died():
                print(f"{name} ended by itself:\n{process.last_words()}", flush=True)


def measure(lines: Sequence[SocketLine], phases: Sequence[Phase], seed: int) -> tuple[list[Measured], str]:
    """Run the phases one after another over engines that serve different models, until a phase fails. Returns the
    results of the earlier phases, and the failure. The connections are closed afterwards."""
    models = {info.name: line for line in lines for info in line.models}
    vocab = min(info.vocab_size for line in lines for info in line.models)
    gateway = Gateway(models, {}, vocab, seed)
    for line in lines:
        line.listen(gateway)
    done, failed = 0, ""
    gc.collect()
    gc.disable()  # a collection would look like a long step
    try:
        for phase in phases:
            gateway.run((phase,))
            done += 1
    except (TimeoutError, OSError) as error:
        failed = f"{phases[done].name}: {error}"
        print(f"FAILED in phase {failed}", flush=True)
    finally:
        gc.enable()
    for line in lines:
        line.close()
    measured = gateway.measured()[:done]
    for own in measured:
        for why, count in own.failures().most_common(3):
            print(f"{own.phase.name}: {count} requests failed: {why}", flush=True)
    return measured, failed


def settings_of(config: EngineConfig, **more: Any) -> dict[str, Any]:
    """The settings of engine.json; `more`: further settings by name."""
    found: dict[str, Any] = msgspec.to_builtins(config)
    return found | more


def known_setting(name: str) -> bool:
    return name in EngineConfig.__struct_fields__
