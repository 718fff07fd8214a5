"""Gateways and engines get SIGKILL while batches run: the short form of tests/programs/batch_kills.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs.batch_kills import make_stage


@pytest.mark.slow
def test_each_line_has_one_output_and_one_charge(tmp_path: Path, postgres_url: str, model_dir: Path) -> None:
    stage = make_stage(tmp_path / "stack", postgres_url, model_dir, seed=3)
    try:
        found = stage.run(kills=4, lines=300, count=2)
    finally:
        stage.stack.stop()
    found.show()
    assert found.faults == []
    assert sum(found.killed.values()) == 4
    assert found.charged == found.lines >= 300
