"""The workers of one host. Each gateway process answers commands on a Unix socket: METRICS with its metrics, so that
any worker can answer /metrics for all of them, PULSE, by which the supervisor sees that its event loop makes progress,
STATE with its state, and DRAIN, which takes it out of service.

The series of each worker have a separate label, since a worker's counters begin at 0 when it restarts.

Supervisor, workers and commands may be of different versions: a socket answers a command that it does not know with
metrics, fields are only added to WorkerState, and a reader ignores the fields that it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

ANSWER_S_MAX = 1.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
UP = "laneway_worker_up"
# The commands of the socket, one line each.
METRICS, PULSE, STATE, DRAIN = b"metrics\n", b"pulse\n", b"state\n", b"drain\n"
# A worker's socket: of the worker that serves, of its successor that is not ready yet, and of the worker before, which
# drains. The supervisor renames them.
_NAME = re.compile(r"worker-(\d+)(?:\.next|\.last)?\.sock")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerIndex:
    """The index of this process among the host's workers: `number`, from 0, of `workers`. `supervised`: a supervisor
    may replace it, so the port is shared. `successor`: it replaces the worker of the same number."""

    number: int = 0
    workers: int = 1
    supervised: bool = False
    successor: bool = False

    @property
    def alone(self) -> bool:
        return self.workers == 1

    @property
    def shares_port(self) -> bool:
        return self.supervised or not self.alone


ALONE = WorkerIndex()


class WorkerState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a gateway process. `seconds`: since its stop began. `requests`: running requests. `problems`: why it
    cannot serve now, by part."""

    pid: int
    number: int = 0
    phase: str = "serving"
    seconds: float = 0.0
    requests: int = 0
    problems: dict[str, str] = {}


def socket_path(data_dir: Path, number: int, role: str = "") -> Path:
    """The socket of a worker; `role` "next": of its successor; "last": of its predecessor."""
    return data_dir / f"worker-{number}{role and '.'}{role}.sock"


class Workers:
    """The socket of this process, and through the sockets the metrics of all workers of a host."""

    def __init__(
        self,
        data_dir: Path,
        index: WorkerIndex,
        own: Callable[[], bytes],
        state: Callable[[], WorkerState],
        drain: Callable[[], None],
    ) -> None:
        """`own`: returns this process's metrics in Prometheus' text format. `drain`: begins a drain."""
        self._data_dir = data_dir
        self._index = index
        self._own = own
        self._state = state
        self._drain = drain
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Open this worker's socket. Raises OSError, but not for a process alone, which serves without it too."""
        path = socket_path(self._data_dir, self._index.number, "next" if self._index.successor else "")
        # uvloop would remove the file of a socket that it has bound, also after another worker took over the name.
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            mask = os.umask(0o177)
            try:
                bound.bind(os.fspath(path))
            finally:
                os.umask(mask)
            self._inode = path.stat().st_ino
            self._server = await asyncio.start_unix_server(self._answer, sock=bound)
        except OSError as error:  # e.g. the path is too long
            bound.close()
            if not self._index.alone:
                raise
            _log.warning("worker.no_socket", extra={"fields": {"path": str(path), "reason": str(error)}})

    async def close(self) -> None:
        """Close the socket and remove its file, whatever the supervisor renamed it to."""
        if self._server is None:
            return
        self._server.close()
        for role in ("", "next", "last"):
            path = socket_path(self._data_dir, self._index.number, role)
            with contextlib.suppress(OSError):
                if path.stat().st_ino == self._inode:
                    path.unlink()

    async def metrics(self) -> bytes:
        """Metrics in Prometheus' text format: of this process alone, or of all workers, each series with the label
        `worker`."""
        if self._index.alone:
            return self._own()
        numbers = range(self._index.workers)
        texts = await asyncio.gather(*(self._ask(number) for number in numbers))
        return merge_metrics(dict(zip(numbers, texts, strict=True)))

    async def silent_workers(self) -> list[int]:
        """The numbers of the other workers that do not answer now."""
        others = [number for number in range(self._index.workers) if number != self._index.number]
        answers = await asyncio.gather(*(ask_worker(socket_path(self._data_dir, number), PULSE) for number in others))
        return [number for number, answer in zip(others, answers, strict=True) if answer != PULSE]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # ValueError: a line without an end
            async with asyncio.timeout(ANSWER_S_MAX):
                writer.write(self._reply(await reader.readline()))
                await writer.drain()
        writer.close()

    def _reply(self, command: bytes) -> bytes:
        if command == PULSE:
            return PULSE
        if command == DRAIN:
            self._drain()
        return msgspec.json.encode(self._state()) if command in (STATE, DRAIN) else self._own()

    async def _ask(self, number: int) -> bytes | None:
        """The metrics of a worker; None: it does not answer."""
        if number == self._index.number:
            return self._own()
        return await ask_worker(socket_path(self._data_dir, number), METRICS)


async def ask_worker(path: Path, command: bytes) -> bytes | None:
    """The answer of the worker with the socket `path`; None: no answer within ANSWER_S_MAX."""
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            reader, writer = await asyncio.open_unix_connection(os.fspath(path))
            try:
                writer.write(command)
                return await _read_all(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None


async def ask_state(path: Path, command: bytes = STATE) -> WorkerState | None:
    """The state of the worker with the socket `path`, after the `command` STATE or DRAIN; None: it does not answer, or
    its version does not know the command."""
    answer = await ask_worker(path, command)
    try:
        return None if answer is None else msgspec.json.decode(answer, type=WorkerState)
    except msgspec.MsgspecError:
        return None


def worker_sockets(data_dir: Path) -> list[Path]:
    """The sockets of the gateway processes of this data directory, including draining ones. Sockets of ended processes
    may remain."""
    return sorted(path for path in data_dir.glob("worker-*.sock") if _NAME.fullmatch(path.name))


async def _read_all(reader: asyncio.StreamReader) -> bytes | None:
    text = b""
    while part := await reader.read(65536):
        text += part
        if len(text) > ANSWER_BYTES_MAX:
            return None
    return text


def merge_metrics(texts: dict[int, bytes | None]) -> bytes:
    """Merge the metrics of all workers (None: a worker did not answer) into one text: each family once, each series
    with the label `worker`."""
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for worker, text in texts.items():
        family = ""
        for line in (text or b"").decode().splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                series.setdefault(family, []).append(_labelled(line, worker))
    lines = [f"# HELP {UP} Whether this worker answered", f"# TYPE {UP} gauge"]
    lines += [f'{UP}{{worker="{worker}"}} {float(text is not None)}' for worker, text in texts.items()]
    for family, head in heads.items():
        lines += head + series.get(family, [])
    return "\n".join([*lines, ""]).encode()


def _labelled(line: str, worker: int) -> str:
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
