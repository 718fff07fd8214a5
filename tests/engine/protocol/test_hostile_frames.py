"""A short run of hostile_frames.py. `make long` sends 4,700 frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs.hostile_frames import fake_config, play, real_config
from support.engine.process import EngineProcess


@pytest.mark.parametrize("kind", ["fake", pytest.param("real", marks=pytest.mark.model)])
async def test_hostile_frames_end_no_engine_and_no_other_request(kind: str, socket_dir: Path, tiny_dir: Path) -> None:
    config, flags = (fake_config(), ["--fake"]) if kind == "fake" else (real_config(tiny_dir), [])
    process = EngineProcess(socket_dir / f"hostile-{kind}.sock", config, *flags)
    try:
        seen = await play(process, frames=300 if kind == "fake" else 60, seed=2026)
    finally:
        status = process.stop()
    assert status == 0
    # The run proves little if all frames are refused before they are decoded.
    assert {"stream closed", "bad_request", "length"} <= set(seen), seen
