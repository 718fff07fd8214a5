"""benchmarks/faults/attacks.py in its shortest form: every kind of attack runs against a gateway and gives a row.

No figure is checked against its limit: the machine may be busy.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from benchmarks.faults import attacks
from benchmarks.faults.attack_stage import Row
from benchmarks.pinned_stack import lacks
from support.services import missing_service

SECONDS = 0.2
# One form of each way to attack: the other forms differ in their numbers.
FORMS = {
    "F2a/starved",
    "F2e/at-limit",
    "F3/whole",
    "F4/many-addresses",
    "F5",
    "F6",
    "F7/chat",
    "F8/standard",
    "bodies/declared",
}


@pytest.fixture(autouse=True)
def two_cores(model_dir: Path) -> None:
    if missing := lacks(model_dir):
        missing_service("two cores", missing)


def check(rows: list[Row], tmp_path: Path) -> None:
    """Each row has its attack's figures, and can be read back from the file of results."""
    file = tmp_path / "attacks.csv"
    attacks.append(file, rows, "a test")
    read = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["attack"] for row in read] == [row["attack"] for row in rows]
    for row in rows:
        assert row["victim_p99_ms"] > 0 or row["refused"] > 0, row
        assert row["quiet_p99_ms"] > 0, row


def test_every_attack_on_a_gateway_gives_its_row(model_dir: Path, tmp_path: Path) -> None:
    assert {one.name for one in attacks.attacks()} >= FORMS
    rows = attacks.run(sorted(FORMS), SECONDS, model_dir)
    check(rows, tmp_path)
    assert {row["attack"] for row in rows} >= FORMS - {"F6"}, "F6 takes root"
    for row in rows:
        assert row["attempts"] > 0, row
        assert row["loop_stall_ms"] > 0, row


@pytest.mark.model
@pytest.mark.slow
def test_the_attack_on_an_engine_gives_its_rows(model_dir: Path, tmp_path: Path) -> None:
    rows = attacks.run(["F1"], SECONDS, model_dir)
    check(rows, tmp_path)
    assert [row["attack"] for row in rows] == ["F1", "F1/restart"]


def test_a_row_over_a_limit_is_missed_by_the_name_of_its_figure() -> None:
    within: Row = {
        "attack": "F2",
        "loop_stall_ms": 50.0, "cpu_ms_per_refusal": 3.0, "victim_p99_ms": 40.0, "quiet_p99_ms": 20.0, "refused": 0,
    }  # fmt: skip
    assert attacks.missed(within) == []
    for name, over in (("loop_stall_ms", 51.0), ("cpu_ms_per_refusal", 3.1), ("victim_p99_ms", 41.0), ("refused", 1)):
        assert attacks.missed(within | {name: over}) == [name]
    assert attacks.missed(within | {"cpu_ms_per_refusal": math.nan}) == [], "nothing was refused"
    assert attacks.missed(within | {"victim_p99_ms": 900.0, "target_ms": 1000.0}) == []
