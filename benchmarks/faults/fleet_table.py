"""The table of a fleet's faults in docs/operators/fleet.md, from the rows of benchmarks/results/fleet_faults.csv."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rows import RESULTS

ROWS = RESULTS / "fleet_faults.csv"
AT_RANDOM = "at random"
ENGINES = "4 fake"  # whose rows are in the table
COLUMNS = ("fault", "requests", "failed", "sent again", "same text", "longest gap", "difference of the books")


def fault_table(file: Path) -> str:
    """Markdown with the newest row of each fault, in the order of these rows; faults at random are last."""
    newest: dict[str, dict[str, str]] = {}
    with file.open(newline="") as rows:
        for row in csv.DictReader(rows):
            if row["engines"] == ENGINES:
                newest.pop(row["fault"], None)
                newest[row["fault"]] = row
    if AT_RANDOM in newest:
        newest[AT_RANDOM] = newest.pop(AT_RANDOM)
    lines = [_line(COLUMNS), "|---" * len(COLUMNS) + "|"]
    return "\n".join(lines + [_line(_cells(row)) for row in newest.values()])


def _cells(row: dict[str, str]) -> list[str]:
    requests, other = int(row["requests"]), int(row["other_text"])
    answered = requests - int(row["failed"])
    same = "all" if answered == requests and not other else f"{answered - other:,}"
    gap, difference = f"{float(row['longest_gap_s']):.1f} s", f"{row['books_difference_tokens']} tokens"
    return [row["fault"], f"{requests:,}", row["failed"], row["retried"], same, gap, difference]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
