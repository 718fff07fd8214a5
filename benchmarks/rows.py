"""Figures of a benchmark as rows of benchmarks/results/NAME.csv: when, of which commit, on what, doing what."""

from __future__ import annotations

import csv
import datetime
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"
HEADER = ["date", "commit", "machine", "workload", "metric", "value", "note"]


def append_rows(name: str, found: Mapping[str, float], machine: str, workload: str, note: str) -> None:
    """Print `found` (metric → value) and append one row for each. A new file gets its header first."""
    for metric, value in found.items():
        print(f"{metric:32} {value:12.3f}")
    path, when = RESULTS / f"{name}.csv", stamp()
    path.parent.mkdir(exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(HEADER)
        for metric, value in found.items():
            writer.writerow([*when, machine, workload, metric, f"{value:.4g}", note])


def append_table(rows: Sequence[Mapping[str, object]], file: Path) -> None:
    """One row for each, all of the same columns, after date and commit: at the end of `file`, and printed."""
    date, commit = stamp()
    fresh = not file.exists()
    file.parent.mkdir(exist_ok=True)
    with file.open("a", newline="") as out:
        for target in (out, sys.stdout):
            writer = csv.DictWriter(target, ["date", "commit", *rows[0]], lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows({"date": date, "commit": commit, **row} for row in rows)


def stamp() -> tuple[str, str]:
    """Now, and the commit that is checked out."""
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=REPO, check=False)
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), git.stdout.strip()


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
