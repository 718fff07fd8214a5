"""The engines that laneway.toml lists. A change of [[engines]] takes effect without a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from gateway.config import file as configuration
from gateway.config.file import Config, ConfigError
from gateway.fleet.roster import EngineAddress, OnEngines, configured_engines

# A change is read once the file has been the same for one interval: an editor may write it in several steps.
CHECK_S = 2.0

_log = logging.getLogger(__name__)

FileState = tuple[int, int, int]  # inode, bytes, time of the last change in ns
NO_FILE: FileState = (0, 0, 0)


class StaticRoster:
    """Implements `Roster`. Of a changed file only [[engines]] is used; other settings need a restart."""

    def __init__(self, config: Config, file: Path | None, check_s: float = CHECK_S) -> None:
        self._engines = configured_engines(config)
        self._file = file
        self._check_s = check_s
        self._stale_since: float | None = None

    @property
    def stale_since(self) -> float | None:
        """Since when the file could not be read or was invalid."""
        return self._stale_since

    async def follow_engines(self, on_engines: OnEngines) -> None:
        on_engines(self._engines)
        used: FileState | None = None  # the state of the file that was read last
        seen: FileState | None = None
        while True:
            await asyncio.sleep(self._check_s)
            if self._file is None:
                continue
            before, seen = seen, await asyncio.to_thread(file_state, self._file)
            if seen == used or seen != before:
                continue
            used = seen
            engines = await asyncio.to_thread(self._read_engines, self._file)
            if engines is not None and engines != self._engines:
                self._engines = engines
                fields = {"engines": [engine.name for engine in engines]}
                _log.info("roster.changed", extra={"fields": fields})
                on_engines(engines)

    def _read_engines(self, file: Path) -> tuple[EngineAddress, ...] | None:
        """None: the file cannot be used."""
        try:
            engines = configured_engines(configuration.load_gateway_config(file))
        except ConfigError as error:
            if self._stale_since is None:
                self._stale_since = time.monotonic()
            _log.warning("roster.file_refused", extra={"fields": {"reason": str(error)}})
            return None
        self._stale_since = None
        return engines


def file_state(file: Path) -> FileState:
    """NO_FILE: it is missing or in a directory that cannot be read."""
    try:
        found = file.stat()
    except OSError:
        return NO_FILE
    return found.st_ino, found.st_size, found.st_mtime_ns
