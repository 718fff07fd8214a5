"""Searches for schedules that break the scheduler: support.engine.schedules makes them, scheduler_auditor.House
audits each step. pytest runs a short search; alone it runs until its time is over:

    python tests/programs/scheduler_search.py [--seconds CPU_SECONDS] [--seed-from N] [--cases N] [--log FILE]

Each seed is printed with its number of cases and CPU-seconds. It stops at the first failure, prints the shrunk schedule
that reproduces it, and exits with 1. To continue a search, start at the seed that was printed last, or name a `--log`
file, which is continued and summed up. Parallel processes need seeds and logs of their own.

An exception that the scheduler caught and charged to one request (engine.scheduler.faults) is a failure here, unless
the schedule itself planted it.
"""

from __future__ import annotations

import argparse
import csv
import logging
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

from hypothesis import HealthCheck, Phase, given, seed, settings

from support.engine.schedules import Planted, Schedule, play, schedules

CASES = 60  # per seed


def search(number: int, cases: int) -> int:
    """Search one seed. Returns how many schedules were played. Raises the error of the first failure, shrunk, with the
    schedule in its notes."""
    played, failed = 0, False

    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(schedule=schedules)
    def case(schedule: Schedule) -> None:
        nonlocal played, failed
        played += 1
        try:
            play(schedule)
        except Exception as error:
            if not failed:
                print(f"seed {number} fails, and is shrunk: {error!r}\n{schedule}", flush=True)
            failed = True
            raise

    case()
    return played


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of CPU, of this process")
    parser.add_argument("--seed-from", type=int, help="default: 1, or the one after the last in the log")
    parser.add_argument("--cases", type=int, default=CASES, help="schedules of each seed")
    parser.add_argument("--log", type=Path, help="CSV file that is appended to: seed, cases, cpu_s")
    options = parser.parse_args(argv)
    earlier: list[list[str]] = []
    if options.log and options.log.exists():
        earlier = list(csv.reader(options.log.read_text().splitlines()))
    number = options.seed_from or max((int(row[0]) for row in earlier), default=0) + 1
    seeds, cases, cpu_s = len(earlier), sum(int(row[1]) for row in earlier), sum(float(row[2]) for row in earlier)
    logging.getLogger("engine.scheduler.faults").addFilter(lambda record: not _planted(record))
    began = time.process_time()
    while time.process_time() - began < options.seconds:
        started = time.process_time()
        try:
            played = search(number, options.cases)
        except BaseException:
            print(f"seed {number} FAILED, after {seeds} seeds, {cases} cases, {cpu_s:.0f} CPU-s", flush=True)
            raise
        took = time.process_time() - started
        seeds, cases, cpu_s = seeds + 1, cases + played, cpu_s + took
        total = f"{seeds} seeds, {cases} cases, {cpu_s:.0f} CPU-s, 0 failures"
        print(f"seed {number}: {played} cases, {took:.1f} CPU-s; in all {total}", flush=True)
        if options.log:
            with options.log.open("a") as log:
                csv.writer(log).writerow([number, played, f"{took:.3f}"])
        number += 1
    return 0


def _planted(record: logging.LogRecord) -> bool:
    return bool(record.exc_info and isinstance(record.exc_info[1], Planted))


if __name__ == "__main__":
    sys.exit(main())
