"""The README's table of the fleet's faults, from the rows of benchmarks/results/fleet_faults.csv."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.rows import RESULTS

ROWS = RESULTS / "fleet_faults.csv"
AT_RANDOM = "at random"
ENGINES = "4 fake"  # whose rows are in the table
COLUMNS = ("fault", "requests", "failed", "same text", "longest gap", "books' difference")


def fault_table(file: Path) -> str:
    """Markdown, with the newest row of each fault in the order of their first rows; faults at random are last."""
    newest: dict[str, dict[str, str]] = {}
    with file.open(newline="") as rows:
        for row in csv.DictReader(rows):
            if row["engines"] == ENGINES:
                newest[row["fault"]] = row
    if AT_RANDOM in newest:
        newest[AT_RANDOM] = newest.pop(AT_RANDOM)
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    return "\n".join(lines + [_line(_cells(row)) for row in newest.values()])


def _cells(row: dict[str, str]) -> list[str]:
    requests, other = int(row["requests"]), int(row["other_text"])
    answered = requests - int(row["failed"])
    return [
        row["fault"],
        f"{requests:,}",
        row["failed"],
        f"{answered - other:,} of {answered:,}",
        f"{float(row['longest_gap_s']):.1f} s",
        f"{row['books_difference_tokens']} tokens",
    ]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
