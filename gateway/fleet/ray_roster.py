"""The engines that `laneway fleet up` started on a Ray cluster, as a gateway follows them.

The gateway process does not load Ray. A process of `ray_watch` writes the list to a file, which all gateway processes
of a data directory follow; whichever process gets the lock starts it, and it ends with that process. The file outlives
all of them: a gateway that starts while Ray's head is lost has the last list.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from gateway.config.file import Config, ConfigError
from gateway.config.private_files import make_private
from gateway.fleet.placement.host_gpus import try_lock
from gateway.fleet.placement.watched_engines import read_watched
from gateway.fleet.roster import EngineAddress, OnEngines
from gateway.host.children import die_with_parent

WATCHER = "gateway.fleet.placement.ray_watch"
CHECK_S = 0.5
# Without an answer of the head for this long, the list is stale. An answer takes up to ray_watch's POLL_S + REPORTS_S.
STALE_S = 10.0
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 5.0
STEADY_S = 60.0
ERROR_BYTES_MAX = 64 * 1024
LINE_CHARACTERS_MAX = 500

_log = logging.getLogger(__name__)


class RayRoster:
    """Implements `Roster`."""

    def __init__(self, address: str, namespace: str, file: Path, stale_s: float = STALE_S) -> None:
        """`file`: of the list. `stale_s`: how long the head may not answer."""
        self._address = address
        self._namespace = namespace
        self._file = file
        self._lock = file.with_suffix(".lock")
        self._engines: tuple[EngineAddress, ...] | None = None
        self._answered_at = time.monotonic()
        self._is_stale = True
        self._stale_s = stale_s
        self._watcher_starts = 0

    @property
    def stale_since(self) -> float | None:
        """When the head last answered, if that is long ago."""
        return self._answered_at if self._is_stale else None

    async def follow_engines(self, on_engines: OnEngines) -> None:
        await asyncio.to_thread(make_private, self._file.parent)
        watching = asyncio.create_task(self._keep_watcher())
        try:
            await self._follow_file(on_engines)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _follow_file(self, on_engines: OnEngines) -> None:
        seen = None
        first = True
        while True:
            watched = await asyncio.to_thread(read_watched, self._file)
            if watched is not None and watched != seen:
                seen = watched
                if not first:  # the file may be older than this process
                    self._answered_at = time.monotonic()
                    self._is_stale = False
                if watched.engines != self._engines and (watched.engines or self._engines is None):
                    self._engines = watched.engines
                    names = [engine.name for engine in watched.engines]
                    _log.info("roster.changed", extra={"fields": {"engines": names}})
                    on_engines(watched.engines)
            first = False
            if not self._is_stale and time.monotonic() - self._answered_at > self._stale_s:
                self._is_stale = True
                _log.warning("roster.stale", extra={"fields": {"engines": len(self._engines or ())}})
            await asyncio.sleep(CHECK_S)

    async def _keep_watcher(self) -> None:
        """Run the watching process whenever no other gateway process of this data directory does."""
        backoff_s = BACKOFF_MIN_S
        while True:
            descriptor = try_lock(self._lock)
            if descriptor is None:
                await asyncio.sleep(CHECK_S)
                continue
            began = time.monotonic()
            self._watcher_starts += 1
            reason = await self._run_watcher(descriptor)
            _log.warning("roster.source_unavailable", extra={"fields": {"reason": reason}})
            if time.monotonic() - began > STEADY_S:
                backoff_s = BACKOFF_MIN_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _run_watcher(self, descriptor: int) -> str:
        """Run the watcher until it ends; returns its last output. It inherits the lock, which so lasts as long as the
        process."""
        argv = [sys.executable, "-m", WATCHER, self._address, self._namespace, str(self._file)]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(descriptor,),
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            return f"it could not be started: {error}"
        finally:
            os.close(descriptor)
        assert process.stderr is not None
        last = b""
        try:
            while data := await process.stderr.read(ERROR_BYTES_MAX):
                last = (last + data)[-ERROR_BYTES_MAX:]
            await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        lines = [line for line in last.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:LINE_CHARACTERS_MAX] if lines else f"exit status {process.returncode}"


def build_ray_roster(config: Config) -> RayRoster:
    """Raises ConfigError without the extra `ray`."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("fleet.driver: ray needs the extra: pip install 'laneway[ray]'")
    section = config.fleet.ray
    return RayRoster(section.address, section.namespace, config.data_dir / "engines-of-ray.json")
