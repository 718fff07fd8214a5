"""The workers of one host: each answers on a Unix socket for its own metrics, so that any of them can tell all, and
that it still moves, for whoever keeps it.

A worker's counters start again with it, so its series keep their own label. It must never know what is measured.
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
# What may be asked, a line.
METRICS, PULSE = b"metrics\n", b"pulse\n"


@dataclass(frozen=True, slots=True)
class WorkerIndex:
    """Which worker of how many this process is, counted from 0."""

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

    def __init__(self, data_dir: Path, place: WorkerIndex, own: Callable[[], bytes]) -> None:
        self._data_dir = data_dir
        self._place = place
        self._own = own
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises OSError."""
        if self._place.alone:
            return
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._tell, os.fspath(socket_path(self._data_dir, self._place.number))
            )
        finally:
            os.umask(mask)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def metrics(self) -> bytes:
        """This process's own, in Prometheus' text format; with siblings, everybody's, each series with its worker."""
        if self._place.alone:
            return self._own()
        numbers = range(self._place.workers)
        texts = await asyncio.gather(*(self._ask(number) for number in numbers))
        return merge_metrics(dict(zip(numbers, texts, strict=True)))

    async def silent_workers(self) -> list[int]:
        """Which of the workers do not answer now."""
        others = [number for number in range(self._place.workers) if number != self._place.number]
        answers = await asyncio.gather(*(ask_worker(socket_path(self._data_dir, number), PULSE) for number in others))
        return [number for number, answer in zip(others, answers, strict=True) if answer != PULSE]

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # ValueError: a line without an end
            async with asyncio.timeout(ANSWER_S_MAX):
                asked = await reader.readline()
                writer.write(PULSE if asked == PULSE else self._own())
                await writer.drain()
        writer.close()

    async def _ask(self, number: int) -> bytes | None:
        """None when it does not answer."""
        if number == self._place.number:
            return self._own()
        return await ask_worker(socket_path(self._data_dir, number), METRICS)


async def ask_worker(path: Path, question: bytes) -> bytes | None:
    """What the worker at `path` answers; None when it does not, within ANSWER_S_MAX."""
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            reader, writer = await asyncio.open_unix_connection(os.fspath(path))
            try:
                writer.write(question)
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
    """One text of those of all workers: each family once, each series with the label `worker`."""
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
