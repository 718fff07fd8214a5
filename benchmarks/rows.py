"""Figures of a benchmark as rows of benchmarks/results/NAME.csv: when, of which commit, on what, doing what."""

from __future__ import annotations

import csv
import datetime
import subprocess
from collections.abc import Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"
HEADER = ["date", "commit", "machine", "workload", "metric", "value", "note"]


def append_rows(name: str, found: Mapping[str, float], machine: str, workload: str, note: str) -> None:
    """Print `found` (metric → value) and append one row for each. A new file gets its header first."""
    for metric, value in found.items():
        print(f"{metric:32} {value:12.3f}")
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=REPO, check=False)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = RESULTS / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(HEADER)
        for metric, value in found.items():
            writer.writerow([now, git.stdout.strip(), machine, workload, metric, f"{value:.4g}", note])
