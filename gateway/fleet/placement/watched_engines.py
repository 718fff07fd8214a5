"""The file in which the watching process of a Ray cluster leaves the list of engines, and how the list changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gateway.fleet.placement.supervised_engine import EngineReport
from gateway.fleet.roster import EngineAddress

# An engine that no actor has reported for this long leaves the list. Only time in which the head answered counts. While
# Ray restarts an actor, the actor does not report, but its engine serves.
ABSENT_S = 60.0


class WatchedEngines(msgspec.Struct, frozen=True):
    """The content of the file."""

    engines: tuple[EngineAddress, ...] = ()
    answers: int = 0  # of the head, so that no two contents are equal
    watcher: int = 0  # the process that wrote it


class EngineList:
    """The engines from the actors' reports over time."""

    def __init__(self, engines: Sequence[EngineAddress]) -> None:
        self._engines = {engine.name: engine for engine in engines}
        self._absent_s = dict.fromkeys(self._engines, 0.0)

    def note_reports(self, reports: Mapping[str, EngineReport], passed_s: float) -> tuple[EngineAddress, ...]:
        """The list after an answer of the head, `passed_s` after the one before. Without any report the list is
        unchanged: a head that lost its state knows no actors, but the engines continue to serve."""
        reported = {
            report.name: EngineAddress(report.name, report.address, report.server_name)
            for report in reports.values()
            if report.name and (report.state == "ready" or report.name in self._engines)
        }
        if reported:
            for name in list(self._engines):
                self._absent_s[name] = 0.0 if name in reported else self._absent_s[name] + passed_s
                if self._absent_s[name] >= ABSENT_S:
                    del self._engines[name], self._absent_s[name]
        self._engines.update(reported)
        self._absent_s.update(dict.fromkeys(reported, 0.0))
        return tuple(self._engines[name] for name in sorted(self._engines))


def read_watched(file: Path) -> WatchedEngines | None:
    """None: there is no usable file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=WatchedEngines)
    except (OSError, msgspec.DecodeError):
        return None
