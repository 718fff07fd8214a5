"""The parent process of an engine and its gateway: it starts them, restarts a process that ends or makes no progress,
and stops them in order. No child outlives it (on Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.config.private_files import make_private

START_S_MAX = 300.0
BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 5.0
# After a child has run this long, its next restart waits BACKOFF_MIN_S again.
STEADY_S = 10.0
# The gateway gets SIGKILL gateway.shutdown_grace_s and this margin after SIGTERM.
STOP_MARGIN_S = 0.5
# The engine exits within 1.5 s of SIGTERM (engine.__main__.STOP_S_MAX). On a GPU the kernel then takes seconds to unpin
# host memory (adapter_host_bytes, host_pool_bytes, weights_host_bytes) and to destroy the device's context, and SIGKILL
# would not shorten that.
STOP_ENGINE_S = 2.5
STOP_ENGINE_ON_GPU_S = 15.0
# A stop that takes longer is logged.
STOP_SAID_S = 2.0
PROBE_EVERY_S = 0.1
LINE_BYTES_MAX = 1024 * 1024
PR_SET_PDEATHSIG = 1


class CannotStart(Exception):
    """The processes cannot start. The message is one sentence for the person who typed the command."""


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


class Child:
    """A process that is restarted whenever it ends. `pid` and `ready` describe the current process."""

    def __init__(
        self,
        spec: ChildSpec,
        say: Callable[[str], None],
        changed: Callable[[], None],
        needs: Sequence[Child] = (),
    ) -> None:
        """`changed` is called at each new pid. `needs`: children without which this one cannot be ready; its health is
        probed only when they are ready."""
        self.spec = spec
        self.pid = 0
        self.ready = asyncio.Event()
        self.restarts = 0
        self._say = say
        self._changed = changed
        self._needs = needs
        self._process: asyncio.subprocess.Process | None = None
        self._spoken = asyncio.Event()
        self._stopped = False

    async def live(self) -> str:
        """Start the process once and wait until it ends; return how it ended."""
        piped = self.spec.speaks
        self._spoken.clear()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
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

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the child's `stop_s`."""
        self._stopped = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.spec.stop_s)
            if (seconds := time.monotonic() - began) > STOP_SAID_S:
                self._say(f"the {self.spec.name} stopped after {seconds:.1f} s")
        except TimeoutError:
            self._say(f"the {self.spec.name} did not stop within {self.spec.stop_s:g} s and is killed")
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


class Supervisor:
    """Runs its children until `request_stop`. Then gateways (the children with a health check) stop before the engine,
    on which they depend. `changed(pids)` is called when all are ready, and again at each new pid."""

    def __init__(
        self, specs: list[ChildSpec], say: Callable[[str], None], changed: Callable[[dict[str, int]], None]
    ) -> None:
        self._engines = [Child(spec, say, self._report_pids) for spec in specs if spec.health is None]
        self._gateways = [
            Child(spec, say, self._report_pids, self._engines) for spec in specs if spec.health is not None
        ]
        self.children = [*self._gateways, *self._engines]
        self._say = say
        self._changed = changed
        self._stopping = asyncio.Event()
        self._started = False

    def pids(self) -> dict[str, int]:
        return {child.spec.name: child.pid for child in self.children}

    def request_stop(self) -> None:
        """Stop the children in order; a second call kills them."""
        if self._stopping.is_set():
            for child in self.children:
                child.kill()
        self._stopping.set()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start all children, call `on_ready` when all are ready, and restart those that end until `request_stop`.
        Raises CannotStart when a child ends before all were ready, or all are not ready within START_S_MAX."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_stop)
        keepers = [asyncio.create_task(self._keep(child)) for child in self.children]
        all_ready = asyncio.create_task(self._all_ready())
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([all_ready, stop, *keepers], timeout=START_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if all_ready.done():
                self._started = True
                self._changed(self.pids())
                on_ready()
                await asyncio.wait([stop, *keepers], return_when=asyncio.FIRST_COMPLETED)
            elif not stop.done() and not any(keeper.done() for keeper in keepers):
                raise CannotStart(f"{self._not_ready()} was not ready after {START_S_MAX:g} s")
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
        finally:
            self._stopping.set()
            all_ready.cancel()
            for children in (self._gateways, self._engines):
                await asyncio.gather(*(child.stop() for child in children))
            await asyncio.gather(all_ready, stop, *keepers, return_exceptions=True)

    async def _all_ready(self) -> None:
        for child in self.children:
            await child.ready.wait()

    def _not_ready(self) -> str:
        return " and ".join(f"the {child.spec.name}" for child in self.children if not child.ready.is_set())

    async def _keep(self, child: Child) -> None:
        name = child.spec.name
        wait_s = BACKOFF_MIN_S
        while not self._stopping.is_set():
            began = time.monotonic()
            life = asyncio.create_task(child.live())
            if child.restarts:
                await self._announce(child, life)
            end = await life
            if self._stopping.is_set():
                return
            if not self._started:
                raise CannotStart(f"the {name} ended before it was ready ({end}); its output is above")
            if time.monotonic() - began >= STEADY_S:
                wait_s = BACKOFF_MIN_S
            self._say(f"the {name} ended ({end}); it starts again in {wait_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            wait_s = min(wait_s * 2, BACKOFF_MAX_S)
            child.restarts += 1

    def _report_pids(self) -> None:
        if not self._started:
            return
        try:
            self._changed(self.pids())
        except OSError as error:  # a full disk must not stop the service
            self._say(f"the new pids could not be written: {error}")

    async def _announce(self, child: Child, life: asyncio.Task[str]) -> None:
        """After a restart, log when requests are served again; log nothing if the child ends before."""
        began = time.monotonic()
        serving = asyncio.create_task(self._serving(child))
        await asyncio.wait([serving, life], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            self._say(f"the {child.spec.name} is back (pid {child.pid}) after {time.monotonic() - began:.1f} s")
        serving.cancel()

    async def _serving(self, child: Child) -> None:
        await child.ready.wait()
        for other in self.children:
            if other.spec.health is not None:
                await other.until_healthy()


def engine_spec(
    socket_path: Path,
    config_file: Path,
    *,
    fake: bool,
    environ: dict[str, str],
    pulse: Pulse | None = None,
    on_gpu: bool = False,
    raise_targets: bool = False,
    arguments: Sequence[str] = (),
) -> ChildSpec:
    """The engine's process. It prints a line on stdout when it is ready. Without gateways it is of no use, so SIGKILL
    ends it when the parent dies. `raise_targets`: raise the tiers' targets on a machine that cannot meet them, instead
    of refusing to start. `arguments`: further ones (config.file.engine_arguments)."""
    argv = [sys.executable, "-m", "engine", "--socket", str(socket_path), "--config", str(config_file), *arguments]
    if raise_targets:
        argv.append("--raise-targets")
    return ChildSpec(
        name="engine",
        argv=[*argv, "--fake"] if fake else argv,
        environ=environ,
        stop_s=STOP_ENGINE_ON_GPU_S if on_gpu else STOP_ENGINE_S,
        orphan_signal=signal.SIGKILL,
        speaks=True,
        pulse=pulse,
    )


def gateway_specs(
    workers: int,
    health: tuple[str, int] | None,
    *,
    grace_s: float,
    environ: dict[str, str],
    pulse: Callable[[int], Pulse] | None = None,
) -> list[ChildSpec]:
    """The gateway's processes. `health`: the address at which /health/ready is probed; None: not probed. Several
    workers share that address, so each also prints a ready line, and `pulse(number)` watches it. When the parent dies
    they get SIGTERM, so that they settle their requests."""
    argv = [sys.executable, "-m", "gateway"]
    several = workers > 1
    return [
        ChildSpec(
            name=f"gateway worker {number}" if several else "gateway",
            argv=[*argv, "--workers", str(workers), "--worker", str(number)] if several else argv,
            environ=environ,
            stop_s=grace_s + STOP_MARGIN_S,
            orphan_signal=signal.SIGTERM,
            health=health,
            speaks=several,
            pulse=pulse(number) if several and pulse is not None else None,
        )
        for number in range(workers)
    ]


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


def check_port(host: str, port: int) -> None:
    """Check that the address can be bound. Raises CannotStart."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CannotStart(
                f"port {port} on {host} cannot be used ({error.strerror}); choose another with --port or LANEWAY_PORT, "
                f"for example LANEWAY_PORT={port + 1 if port < 65535 else 8080}"
            ) from error


@contextlib.contextmanager
def lock_data_dir(data_dir: Path, lock: str = "lock") -> Iterator[None]:
    """Lock the data directory: two instances must not share an engine socket and a SQLite file. Raises CannotStart when
    another process holds its file `lock`."""
    make_private(data_dir)
    with (data_dir / lock).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise CannotStart(
                f"another Laneway (pid {file.read().strip() or 'unknown'}) already runs on {data_dir}; stop it first"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
