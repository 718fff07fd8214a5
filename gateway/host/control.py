"""The supervisor's Unix socket: `laneway upgrade` asks it to replace the processes, and receives the progress as JSON
lines.

The two may be of different versions: fields and kinds are added only, a reader ignores fields that it does not know,
and a command that the supervisor does not know is answered with a failure that names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from gateway.host.rolling import RollFailed, Say

COMMAND_S_MAX = 5.0
CONNECT_S_MAX = 5.0
# Two commands, one line each.
UPGRADE, UPGRADE_ENGINE = "upgrade", "upgrade engine"


class ProgressLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """`kind`: "progress", and as the last line "done" or "failed"."""

    kind: str
    text: str = ""


class NoSupervisor(Exception):
    """No supervisor answers on this data directory."""


def control_path(data_dir: Path) -> Path:
    return data_dir / "supervisor.sock"


@contextlib.asynccontextmanager
async def control_socket(
    data_dir: Path, roll: Callable[[Say, bool], Coroutine[Any, Any, None]], say: Say
) -> AsyncIterator[None]:
    """Answer commands while the block runs. `roll(say, engine)` carries out an upgrade. Without a socket, for example
    because its path is too long, the block runs all the same, and `say` receives the reason."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # ValueError: a line without an end
            async with asyncio.timeout(COMMAND_S_MAX):
                command = (await reader.readline()).decode(errors="replace").strip()
            await _carry_out(command, roll, writer)
        writer.close()

    path = control_path(data_dir)
    mask = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(answer, os.fspath(path))
    except OSError as error:
        server = None
        say(f"laneway upgrade is not possible, since {path} cannot be opened: {error.strerror or error}")
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        if server is not None:
            server.close()
            path.unlink(missing_ok=True)


async def _carry_out(
    command: str, roll: Callable[[Say, bool], Coroutine[Any, Any, None]], writer: asyncio.StreamWriter
) -> None:
    def send(kind: str, text: str) -> None:
        if not writer.is_closing():  # the upgrade continues without a reader
            writer.write(msgspec.json.encode(ProgressLine(kind, text)) + b"\n")

    if command not in (UPGRADE, UPGRADE_ENGINE):
        send("failed", f"the running supervisor does not know the command {command!r}: restart the service once")
        return
    try:
        await roll(lambda text: send("progress", text), command == UPGRADE_ENGINE)
    except RollFailed as error:
        send("failed", str(error))
    else:
        send("done", "")
    await writer.drain()


async def ask_supervisor(data_dir: Path, command: str) -> AsyncIterator[ProgressLine]:
    """Send the command, and yield the supervisor's answers until the command has ended. Raises NoSupervisor."""
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            reader, writer = await asyncio.open_unix_connection(os.fspath(control_path(data_dir)))
    except (OSError, TimeoutError):
        raise NoSupervisor from None
    try:
        writer.write(command.encode() + b"\n")
        while line := await reader.readline():
            with contextlib.suppress(msgspec.MsgspecError):
                yield msgspec.json.decode(line, type=ProgressLine)
    finally:
        writer.close()
