"""One supervised process of a host: its start, its readiness, its pulse and its end. No child outlives
its parent (on Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

# A stop that takes longer is logged.
STOP_SAID_S = 2.0
PROBE_EVERY_S = 0.1
LINE_BYTES_MAX = 1024 * 1024
PR_SET_PDEATHSIG = 1


class Pulse(Protocol):
    async def lost(self) -> str:
        """Wait until the child, which runs and is ready, has made no progress for too long. Returns a predicate for a
        message: "the engine …"."""
        ...


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process to run. It is ready when it has printed its ready line on stdout (if `speaks`), and /health/ready at
    the address `health` answers 200 (if not None)."""

    name: str
    argv: list[str]
    environ: dict[str, str]
    stop_s: float  # from SIGTERM to SIGKILL
    orphan_signal: signal.Signals  # sent by the kernel to the process when its parent dies
    health: tuple[str, int] | None = None  # host, port
    speaks: bool = False
    pulse: Pulse | None = None  # the process is killed when it makes no progress
    quick_stop_s: float | None = None  # from SIGINT to SIGKILL; None: only SIGTERM stops it
    worker: int | None = None  # its index among the host's gateway processes, if another process may replace it


class Child:
    """A process that is restarted whenever it ends. `pid` and `ready` describe the current process.

    Two states end the restarts: a `successor` is not adopted yet, so nothing depends on it, and a `retired` child was
    replaced."""

    def __init__(
        self,
        spec: ChildSpec,
        say: Callable[[str], None],
        changed: Callable[[], None],
        needs: Sequence[Child] = (),
        *,
        successor: bool = False,
    ) -> None:
        """`changed` is called at each new pid. `needs`: children without which this one cannot be ready; its health is
        probed only when they are ready. `successor`: the process starts beside the one that it will replace."""
        self.spec = spec
        self.pid = 0
        self.ready = asyncio.Event()
        self.restarts = 0
        self.successor = successor
        self.retired = False
        self.end: str | None = None  # how the last process ended; None: it runs, or none was started
        self.restarting = False  # `restart` ended the process
        self._say = say
        self._changed = changed
        self._needs = needs
        self._process: asyncio.subprocess.Process | None = None
        self._spoken = asyncio.Event()
        self._stopped = False

    async def live(self) -> str:
        """Start the process once and wait until it ends; return how it ended."""
        self.end = None
        self.end = await self._live()
        return self.end

    async def _live(self) -> str:
        piped = self.spec.speaks
        self._spoken.clear()
        argv = [current_python(self.spec.argv[0]), *self.spec.argv[1:]]
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(argv if not self.successor else [*argv, "--successor"]),
                env=self.spec.environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else None,
                limit=LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which stops its children in order
                preexec_fn=die_with_parent(self.spec.orphan_signal),
            )
        except OSError as error:  # e.g. no memory or no pid is free
            return f"it could not be started: {error}"
        self.pid = process.pid
        self._changed()
        if self._stopped:  # `stop` was called during the start
            self.kill()
        becoming = asyncio.create_task(self._become_ready())
        watching = asyncio.create_task(self._watch_pulse())
        reading = asyncio.create_task(self._read_lines(process)) if piped else None
        try:
            return describe_exit(await process.wait())
        finally:
            self.ready.clear()
            if reading is not None:
                await asyncio.wait([reading], timeout=1.0)  # its last lines
            for watch in (becoming, watching, reading):
                if watch is not None:
                    watch.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await watch

    async def stop(self, *, quick: bool = False) -> None:
        """SIGTERM, then SIGKILL after the child's `stop_s`. `quick`: SIGINT and `quick_stop_s`, if it has these."""
        self._stopped = True
        if quick and self.spec.quick_stop_s is not None:
            await self._end_process(signal.SIGINT, self.spec.quick_stop_s)
        else:
            await self._end_process(signal.SIGTERM, self.spec.stop_s)

    async def hurry(self) -> None:
        """Make a stop that runs a quick one."""
        if self.spec.quick_stop_s is not None:
            await self._end_process(signal.SIGINT, self.spec.quick_stop_s)

    async def retire(self) -> None:
        """Stop the process, whose successor serves: SIGHUP, then SIGKILL after `stop_s`. It is not restarted."""
        self.retired = True
        await self._end_process(signal.SIGHUP, self.spec.stop_s)

    async def restart(self) -> None:
        """End the process in order; it starts again at once. Returns when it has ended."""
        self.restarting = True
        self.ready.clear()
        await self._end_process(signal.SIGTERM, self.spec.stop_s)

    async def _end_process(self, number: signal.Signals, seconds: float) -> None:
        """Send the signal, and SIGKILL when the process still runs after `seconds`."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
            if (took_s := time.monotonic() - began) > STOP_SAID_S:
                self._say(f"the {self.spec.name} stopped after {took_s:.1f} s")
        except TimeoutError:
            self._say(f"the {self.spec.name} did not stop within {seconds:g} s and is killed")
            self.kill()
            await process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _read_lines(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than LINE_BYTES_MAX; asyncio has dropped it
                continue
            if not line:
                return
            if is_ready_line(line):
                for warning in warnings_of(line):
                    self._say(f"warning: {warning}")
                self._spoken.set()
            else:
                sys.stdout.buffer.write(line)
                sys.stdout.flush()

    async def _become_ready(self) -> None:
        if self.spec.speaks:
            await self._spoken.wait()
        if self.spec.health is not None:
            for other in self._needs:
                await other.ready.wait()
            await self.until_healthy()
        self.ready.set()

    async def _watch_pulse(self) -> None:
        if self.spec.pulse is not None:
            await self.ready.wait()
            reason = await self.spec.pulse.lost()
            self._say(f"the {self.spec.name} {reason} and is killed")
            self.kill()

    async def until_healthy(self) -> None:
        assert self.spec.health is not None
        while True:
            if await healthy(*self.spec.health):
                return
            await asyncio.sleep(PROBE_EVERY_S)


def current_python(executable: str) -> str:
    """`executable`, a virtual environment's python, with the environment's symbolic links followed now. A new version
    may be installed beside the old one and a link moved to it: a process that starts then is of the new version
    altogether, and a process of the old version never imports a module of the new one."""
    bin_dir, name = os.path.split(executable)
    return os.path.join(os.path.realpath(bin_dir), name) if bin_dir else executable


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn`: the kernel sends the signal `number` to the child when its parent dies (PR_SET_PDEATHSIG). Linux
    only; elsewhere the children of a parent that gets SIGKILL keep running."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, number.value)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return in_child


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def is_ready_line(line: bytes) -> bool:
    """Whether `line` is the engine's {"event": "ready", …}."""
    if not line.startswith(b"{"):
        return False
    try:
        event = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return isinstance(event, dict) and event.get("event") == "ready"


def warnings_of(ready_line: bytes) -> list[str]:
    """The child's warnings for the operator, one sentence each."""
    warnings = msgspec.json.decode(ready_line).get("warnings")
    return [str(warning) for warning in warnings] if isinstance(warnings, list) else []


async def healthy(host: str, port: int) -> bool:
    """Whether http://host:port/health/ready answers 200 within a second."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET /health/ready HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.split(b" ")[1:2] == [b"200"]
