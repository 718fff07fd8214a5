"""Mixed traffic on the CPU, in an arena full of traps; tests/engine/gpu does the same on a GPU, and longer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from engine.cpu.runner import build_runner
from engine.protocol.config import EngineConfig, ModelConfig
from support.engine.in_process import MODEL, Drive
from support.engine.poisoned_arena import run_among_traps, tiny_model


@pytest.mark.parametrize("host_pool_bytes", [0, 1 << 20])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_nobody_reads_or_writes_what_is_not_theirs(
    kv_dtype: Literal["auto", "fp8"], host_pool_bytes: int, tmp_path: Path
) -> None:
    model, adapters = tiny_model(tmp_path, seed=1)
    config = EngineConfig(
        models=(ModelConfig(name=MODEL, path=str(model), kv_dtype=kv_dtype),),
        arena_bytes=16 << 20,
        host_pool_bytes=host_pool_bytes,
        step_tokens_max=96,
        sequences_max=16,
        threads=1,
    )
    engine = Drive(build_runner(config), model, step_tokens_max=96, sequences_max=16)
    print(run_among_traps(engine, adapters, tmp_path / "store", seed=1, steps=150))
