"""The workers of one host. Each worker answers two commands on a Unix socket: METRICS with its metrics, so that any
worker can answer /metrics for all of them, and PULSE, by which the supervisor sees that its event loop makes progress.

The series of each worker keep a label of their own, since a worker's counters begin at 0 when it restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ANSWER_S_MAX = 1.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
UP = "laneway_worker_up"
# The commands of the socket, one line each.
METRICS, PULSE = b"metrics\n", b"pulse\n"


@dataclass(frozen=True, slots=True)
class WorkerIndex:
    """The index of this process among the host's workers: `number`, from 0, of `workers`."""

    number: int = 0
    workers: int = 1

    @property
    def alone(self) -> bool:
        return self.workers == 1


ALONE = WorkerIndex()


def socket_path(data_dir: Path, number: int) -> Path:
    return data_dir / f"worker-{number}.sock"


class Workers:
    """The metrics of all workers of a host. With one worker no socket is opened."""

    def __init__(self, data_dir: Path, index: WorkerIndex, own: Callable[[], bytes]) -> None:
        """`own`: returns this process's metrics in Prometheus' text format."""
        self._data_dir = data_dir
        self._index = index
        self._own = own
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Open this worker's socket. Raises OSError."""
        if self._index.alone:
            return
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._answer, os.fspath(socket_path(self._data_dir, self._index.number))
            )
        finally:
            os.umask(mask)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

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
                command = await reader.readline()
                writer.write(PULSE if command == PULSE else self._own())
                await writer.drain()
        writer.close()

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
