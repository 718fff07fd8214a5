"""The parent process of an engine and its gateways: it starts them, restarts a process that ends or makes no progress,
replaces the gateways by gateways of a new version, and stops all processes in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gateway.config.private_files import make_private
from gateway.host.children import Child, ChildSpec, Pulse
from gateway.host.control import control_socket
from gateway.host.rolling import RollFailed, Say, replace_worker

START_S_MAX = 300.0
BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 5.0
# After a child has run this long, its next restart waits BACKOFF_MIN_S again.
STEADY_S = 10.0
# Seconds between the end of a gateway's own time for its stop and its SIGKILL.
STOP_MARGIN_S = 1.0
# The engine exits within 1.5 s of SIGTERM (engine.__main__.STOP_S_MAX). On a GPU the kernel then takes seconds to unpin
# host memory (adapter_host_bytes, host_pool_bytes, weights_host_bytes) and to destroy the device's context, and SIGKILL
# would not shorten that.
STOP_ENGINE_S = 2.5
STOP_ENGINE_ON_GPU_S = 15.0


class CannotStart(Exception):
    """The processes cannot start. The message is one sentence for the person who typed the command."""


class Supervisor:
    """Runs its children until `request_stop`. Then gateways (the children with a worker index) stop before the engine,
    on which they depend. `changed(pids)` is called when all are ready, and again at each new pid."""

    def __init__(
        self,
        specs: list[ChildSpec],
        say: Say,
        changed: Callable[[dict[str, int]], None] = lambda pids: None,
        *,
        data_dir: Path | None = None,
        why_not_rolled: str = "",
        quick: bool = False,
    ) -> None:
        """`data_dir`: of the sockets of workers and supervisor; None: nothing is replaced. `why_not_rolled`: why
        gateways cannot be replaced while they serve; "": they can. `quick`: each stop is quick, as after SIGINT."""
        self._engines = [Child(spec, say, self._report_pids) for spec in specs if spec.worker is None]
        self._gateways = [self._gateway(spec, say) for spec in specs if spec.worker is not None]
        self._say = say
        self._changed = changed
        self._data_dir = data_dir
        self._why_not_rolled = why_not_rolled
        self._quick = quick
        self._stopping = asyncio.Event()
        self._failed = asyncio.Event()
        self._started = False
        self._keepers: dict[Child, asyncio.Task[None]] = {}  # of all children, also of children being replaced
        self._rolling: asyncio.Task[None] | None = None
        self._hurrying: list[asyncio.Task[None]] = []

    @property
    def children(self) -> list[Child]:
        return [*self._gateways, *self._engines]

    def pids(self) -> dict[str, int]:
        return {child.spec.name: child.pid for child in self.children}

    def request_stop(self, number: signal.Signals) -> None:
        """Stop the children: SIGTERM in order, SIGINT quickly; a second SIGINT kills them."""
        if number is signal.SIGINT and self._stopping.is_set():
            if self._quick:
                for child in self._keepers:
                    child.kill()
            else:
                self._hurrying += [asyncio.create_task(child.hurry()) for child in self._keepers]
        self._quick |= number is signal.SIGINT
        self._stopping.set()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start all children, call `on_ready` when all are ready, and restart those that end until `request_stop`.
        Raises CannotStart when a child ends before all were ready, or all are not ready within START_S_MAX."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_stop, number)
        for child in self.children:
            self._start_keeping(child)
        waits = [asyncio.create_task(wait) for wait in (self._all_ready(), self._stopping.wait(), self._failed.wait())]
        all_ready, stop, failed = waits
        try:
            await asyncio.wait(waits, timeout=START_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if all_ready.done():
                self._started = True
                self._changed(self.pids())
                loop.add_signal_handler(signal.SIGHUP, self._hang_up)
                async with self._control():
                    on_ready()
                    await asyncio.wait([stop, failed], return_when=asyncio.FIRST_COMPLETED)
            elif not stop.done() and not failed.done():
                raise CannotStart(f"{self._not_ready()} was not ready after {START_S_MAX:g} s")
            for keeper in self._keepers.values():
                if keeper.done():
                    keeper.result()
        finally:
            await self._stop_all()
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _stop_all(self) -> None:
        self._stopping.set()
        if self._rolling is not None:
            self._rolling.cancel()
        for is_engine in (False, True):
            children = [child for child in self._keepers if (child.spec.worker is None) is is_engine]
            await asyncio.gather(*(child.stop(quick=self._quick) for child in children))
        tasks = [*self._keepers.values(), *self._hurrying, *([self._rolling] if self._rolling else [])]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _gateway(self, spec: ChildSpec, say: Say, *, successor: bool = False) -> Child:
        return Child(spec, say, self._report_pids, self._engines, successor=successor)

    def _start_keeping(self, child: Child) -> None:
        keeper = self._keepers[child] = asyncio.create_task(self._keep(child), name=child.spec.name)
        keeper.add_done_callback(lambda _: self._note_kept(child, keeper))

    def _note_kept(self, child: Child, keeper: asyncio.Task[None]) -> None:
        """The child is not restarted any more: it was replaced, all stop, or it could not start."""
        if not keeper.cancelled() and keeper.exception() is not None:
            self._failed.set()
        elif child.retired or child.successor:
            self._keepers.pop(child, None)

    async def _all_ready(self) -> None:
        for child in self.children:
            await child.ready.wait()

    def _not_ready(self) -> str:
        return " and ".join(f"the {child.spec.name}" for child in self.children if not child.ready.is_set())

    async def _keep(self, child: Child) -> None:
        name = child.spec.name
        wait_s = BACKOFF_MIN_S
        while not self._stopping.is_set() and not child.retired:
            began = time.monotonic()
            life = asyncio.create_task(child.live())
            if child.restarts:
                await self._announce(child, life)
            end = await life
            if self._stopping.is_set() or child.retired or child.successor:
                return
            if not self._started:
                raise CannotStart(f"the {name} ended before it was ready ({end}); its output is above")
            if time.monotonic() - began >= STEADY_S:
                wait_s = BACKOFF_MIN_S
            child.restarts += 1
            if child.restarting:
                child.restarting = False
                continue
            self._say(f"the {name} ended ({end}); it starts again in {wait_s:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()
            wait_s = min(wait_s * 2, BACKOFF_MAX_S)

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

    # ---- a new version

    def _control(self) -> contextlib.AbstractAsyncContextManager[None]:
        if self._data_dir is None:
            return contextlib.nullcontext()
        return control_socket(self._data_dir, self.roll, self._say)

    def _hang_up(self) -> None:
        """SIGHUP: replace the gateways. A terminal that is closed sends it too, and means that all should stop."""
        if has_terminal():
            self.request_stop(signal.SIGINT)
        elif self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._roll_and_say(), name="roll")

    async def _roll_and_say(self) -> None:
        try:
            await self._roll(self._say, engine=False)
        except RollFailed as error:
            self._say(f"the upgrade failed: {error}")

    async def roll(self, say: Say, engine: bool) -> None:
        """Replace each gateway process by a process of the code that is on disk now, one after another. `engine`: then
        restart the engine. `say` is called with each line of progress. Raises RollFailed: the processes that were not
        replaced continue to serve."""
        if self._rolling is not None and not self._rolling.done():
            raise RollFailed("an upgrade runs already")
        self._rolling = asyncio.create_task(self._roll(say, engine=engine), name="roll")
        try:
            await asyncio.shield(self._rolling)
        except asyncio.CancelledError:
            if not self._rolling.cancelled():
                raise
            raise RollFailed("the supervisor stops") from None

    async def _roll(self, say: Say, *, engine: bool) -> None:
        if self._why_not_rolled or self._data_dir is None:
            raise RollFailed(self._why_not_rolled or "the processes have no data directory")
        began = time.monotonic()
        for number, old in enumerate(list(self._gateways)):
            successor = self._gateway(old.spec, self._say, successor=True)
            self._start_keeping(successor)

            def adopt(number: int = number, successor: Child = successor) -> None:
                self._gateways[number] = successor
                self._report_pids()

            await replace_worker(self._data_dir, old, successor, adopt, say)
        for child in self._engines if engine else ():
            say(f"the {child.spec.name} restarts")
            await child.restart()
            await child.ready.wait()
            say(f"the {child.spec.name} is ready (pid {child.pid})")
        say(f"the upgrade took {time.monotonic() - began:.1f} s")


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


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
    stop_s: float,
    quick_stop_s: float,
    environ: dict[str, str],
    pulse: Callable[[int], Pulse] | None = None,
    rolls: bool = False,
) -> list[ChildSpec]:
    """The gateway's processes. `health`: the address at which /health/ready is probed; None: not probed. Several
    workers share that address, so each also prints a ready line, and `pulse(number)` watches it. `rolls`: a successor
    may share the port. When the parent dies they get SIGINT, so that they settle their requests and free the port."""
    argv = [sys.executable, "-m", "gateway"]
    several = workers > 1
    if rolls:
        argv.append("--supervised")
    return [
        ChildSpec(
            name=f"gateway worker {number}" if several else "gateway",
            argv=[*argv, "--workers", str(workers), "--worker", str(number)] if several else argv,
            environ=environ,
            stop_s=stop_s + STOP_MARGIN_S,
            quick_stop_s=quick_stop_s + STOP_MARGIN_S,
            orphan_signal=signal.SIGINT,
            health=health,
            speaks=several or rolls,
            pulse=pulse(number) if several and pulse is not None else None,
            worker=number,
        )
        for number in range(workers)
    ]


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
