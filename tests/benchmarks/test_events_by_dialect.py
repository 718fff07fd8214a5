"""The benchmark of the dialects' events, small."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.events_by_dialect import run
from support.stack import Stack


def test_each_dialect_gets_its_figure(tmp_path: Path, model_dir: Path) -> None:
    stack = Stack(tmp_path, f"sqlite:///{tmp_path}/laneway.db", model_dir, {"stop_after": 10**6})
    try:
        stack.start()
        figures = asyncio.run(run(stack, streams=8, tokens=400, rounds=1))
    finally:
        stack.stop()
    assert set(figures) == {
        "chat_us_per_token",
        "responses_us_per_token",
        "messages_us_per_token",
        "responses_beside_chat",
        "messages_beside_chat",
    }
    assert all(value > 0 for value in figures.values())
