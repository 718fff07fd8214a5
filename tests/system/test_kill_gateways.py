"""Gateways that get SIGKILL at random moments under load: the short form of benchmarks/faults/kill_gateways.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.faults.kill_gateways import Plan, rehearse


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("postgres", Plan(kills=5, seed=20, workers=3, clients=8)),
        ("sqlite", Plan(kills=2, seed=4, workers=1, clients=8)),
    ],
    ids=["postgres", "sqlite"],
)
def test_the_books_add_up_whoever_was_killed(
    kind: str, plan: Plan, tmp_path: Path, model_dir: Path, request: pytest.FixtureRequest
) -> None:
    books = asyncio.run(rehearse(plan, request.getfixturevalue(f"{kind}_url"), tmp_path / "kills", model_dir))
    books.show()
    assert books.faults == []
    assert books.made == books.billed + books.discarded + books.overrun + books.lost
    assert books.requests["settled"] > 0
    assert books.requests["expired"] > 0
    assert books.lost > 0
