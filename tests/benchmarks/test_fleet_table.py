"""The table of a fleet's faults on the README is the one of the newest rows."""

from __future__ import annotations

from pathlib import Path

from benchmarks.faults.fleet_table import ROWS, fault_table
from support.paths import REPO

HEADER = "date,commit,engines,fault,requests,failed,retried,other_text,longest_gap_s,books_difference_tokens"


def test_the_readme_has_the_newest_rows() -> None:
    """If not: put what `python -m benchmarks.faults.fleet --table` prints there."""
    assert fault_table(ROWS) in (REPO / "README.md").read_text()


def test_the_newest_row_of_each_fault_counts(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    rows = [
        "d1,c1,4 fake,at random,9,9,9,9,9.99,9",
        "d1,c1,4 fake,kill,9,9,9,9,9.99,9",
        "d2,c2,4 fake,at random,2000,3,4,5,1.25,6",
        "d2,c2,4 fake,kill,30,0,1,0,0.04,0",
        "d3,c3,3 tiny,kill,8,8,8,8,8.88,8",
    ]
    file.write_text("\n".join([HEADER, *rows, ""]))
    lines = fault_table(file).splitlines()
    assert lines[2:] == [
        "| kill | 30 | 0 | 1 | all | 0.0 s | 0 tokens |",
        "| at random | 2,000 | 3 | 4 | 1,992 | 1.2 s | 6 tokens |",
    ]
    assert len({line.count("|") for line in lines}) == 1
