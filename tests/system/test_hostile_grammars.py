"""A short run of hostile_grammars.py. `make long` sends 10,000 requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs.hostile_grammars import play, running_stack


@pytest.mark.slow
def test_hostile_grammars_end_no_engine_and_the_books_are_equal(tmp_path: Path) -> None:
    with running_stack(tmp_path / "stack") as stack:
        seen = play(stack, 240, 2026)
    # The run proves little if all requests are refused, or none.
    assert seen.statuses[200] > 60, seen.statuses
    assert seen.statuses[400] > 60, seen.statuses
    assert seen.endings["stop"] > 10, seen.endings
    assert seen.instances > 5
