"""A little of tests/programs/guided_schemas.py: answers of a real engine on a CPU are instances of their schemas."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import guided_schemas
from support.paths import REPO

TINY = REPO / "examples" / "models" / "laneway-tiny"


@pytest.mark.slow
async def test_the_tiny_model(socket_dir: Path, tmp_path: Path) -> None:
    process = guided_schemas.start(socket_dir / "guided-tiny.sock", TINY, 16 * 1024 * 1024)
    try:
        counts = await guided_schemas.play(process, TINY, 24, 3, guided_schemas.trained_adapters(TINY), tmp_path)
    finally:
        process.stop()
    assert counts["stop"] > 20, counts
    assert counts["cached"] > 20, counts
    assert counts["preemptions"] > 0, counts


@pytest.mark.model
@pytest.mark.long
async def test_the_demo_model(socket_dir: Path, model_dir: Path, tmp_path: Path) -> None:
    process = guided_schemas.start(socket_dir / "guided-smol.sock", model_dir, 32_000_000)
    try:
        counts = await guided_schemas.play(
            process, model_dir, 6, 3, guided_schemas.trained_adapters(model_dir), tmp_path
        )
    finally:
        process.stop()
    assert counts["stop"] > 5
