"""A thousand steps of mixed traffic on a GPU, in an arena full of traps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpu_engine import GpuEngine
from traps import run_among_traps, tiny_model

pytestmark = pytest.mark.gpu
# Fewer under a sanitizer.
STEPS = int(os.environ.get("LANEWAY_TRAP_STEPS", "1000"))


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_steps_among_traps(seed: int, capture: bool, tmp_path: Path) -> None:
    model, adapters = tiny_model(tmp_path, seed)
    engine = GpuEngine(model, arena_bytes=16 << 20, step_tokens_max=96, sequences_max=16, capture=capture)
    print("\n" + run_among_traps(engine, adapters, tmp_path / "store", seed, STEPS))
