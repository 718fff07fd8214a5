"""Figures of a benchmark as rows of a CSV: date, commit, machine, workload, metric, value, note.

It must never know what was measured.
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"
COLUMNS = ["date", "commit", "machine", "workload", "metric", "value", "note"]


def machine(*more: str) -> str:
    """This machine in a few words; `more` is what mattered beside its cores."""
    return ", ".join([f"{platform.machine()} {os.cpu_count()} cores", *more])


def append_rows(name: str, machine: str, workload: str, found: Mapping[str, float], note: str) -> None:
    """One row for each of `found`, at the end of benchmarks/results/<name>.csv."""
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=REPO, check=False)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    file = RESULTS / f"{name}.csv"
    fresh = not file.exists()
    RESULTS.mkdir(exist_ok=True)
    with file.open("a", newline="") as rows:
        writer = csv.writer(rows, lineterminator="\n")
        if fresh:
            writer.writerow(COLUMNS)
        for metric, value in found.items():
            writer.writerow([now, git.stdout.strip(), machine, workload, metric, f"{value:.4g}", note])
