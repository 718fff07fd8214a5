"""`python -m gateway.fleet.placement.ray_watch ADDRESS NAMESPACE FILE`: writes the engines of a Ray cluster to FILE.

It runs in a separate process, because Ray's library ends its process when the head is lost for a minute. `ray_roster`
then starts it again. The file is written anew after each answer of the head, so its age says how old the list is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gateway.config.private_files import write_private
from gateway.fleet.placement import ray_cluster
from gateway.fleet.placement.watched_engines import EngineList, WatchedEngines, read_watched

POLL_S = 1.0
REPORTS_S = 2.0


def watch_actors(file: Path, parent: int) -> None:
    """Watch until the parent ends. Raises Ray's errors when the head is lost."""
    known = read_watched(file)
    engines = EngineList(known.engines if known else ())
    reports = ray_cluster.ActorReports()
    answers, answered_at = 0, time.monotonic()
    while os.getppid() == parent:
        found = reports.collect(ray_cluster.list_actors(), REPORTS_S)
        passed_s = min(time.monotonic() - answered_at, 2 * (POLL_S + REPORTS_S))
        answered_at = time.monotonic()
        answers += 1
        content = WatchedEngines(engines.note_reports(found, passed_s), answers, os.getpid())
        write_private(file, msgspec.json.encode(content).decode(), replace=True)
        time.sleep(POLL_S)


def main(argv: Sequence[str]) -> int:
    parent = os.getppid()
    address, namespace, file = argv[1:]
    try:
        with ray_cluster.connected(address, namespace):
            watch_actors(Path(file), parent)
    except Exception as error:  # noqa: BLE001 - the process's edge: its last line is the reason that the gateway logs
        sys.stderr.write(f"{type(error).__name__}: {error}\n".replace("\n", " ") + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
