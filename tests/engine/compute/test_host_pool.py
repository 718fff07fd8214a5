"""Pages in host memory: their bytes come back, on this CPU; tests/engine/gpu does the same on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.compute.host_pool import TensorHostPool, build_host_pool
from engine.cpu.runner import build_runner
from engine.models.config import ModelRefused
from engine.protocol.config import EngineConfig, ModelConfig
from support.engine.in_process import MODEL, Drive
from support.engine.poisoned_arena import tiny_model
from support.engine.swap_round_trip import run_swapped


def test_pages_come_back_as_they_went() -> None:
    arena = torch.randint(0, 256, (8, 4096), dtype=torch.uint8)
    before = arena.clone()
    pool = TensorHostPool(arena, 4)
    assert torch.equal(arena, before), "measuring changes nothing"
    assert pool.page_copy_s > 0
    pool.copy_out([2, 7, 5], [3, 0, 1])
    arena.fill_(0xFF)
    pool.copy_in([0, 3], [1, 6])
    assert torch.equal(arena[1], before[7])
    assert torch.equal(arena[6], before[2])
    assert torch.equal(arena[2], torch.full((4096,), 0xFF, dtype=torch.uint8)), "no other page was written"


def test_a_pool_is_asked_for_and_holds_a_page_at_least() -> None:
    arena = torch.zeros(2, 4096, dtype=torch.uint8)
    assert build_host_pool(arena, 0) is None
    pool = build_host_pool(arena, 3 * 4096 + 1)
    assert pool is not None
    assert pool.slots == 3
    with pytest.raises(ModelRefused, match="host_pool_bytes: 4095 is less than one page of 4096 bytes"):
        build_host_pool(arena, 4095)


@pytest.mark.parametrize("adapted", [False, True])
def test_who_comes_back_goes_on_as_if_nobody_had_interrupted(adapted: bool, tmp_path: Path) -> None:
    model, adapters = tiny_model(tmp_path, seed=1)
    config = EngineConfig(
        models=(ModelConfig(name=MODEL, path=str(model)),),
        arena_bytes=16 << 20,
        host_pool_bytes=1 << 20,
        step_tokens_max=96,
        sequences_max=1,
        threads=1,
    )
    engine = Drive(build_runner(config), model, step_tokens_max=96, sequences_max=1)
    digests = engine.add_adapters(adapters[:1], tmp_path / "store") if adapted else {}
    run_swapped(engine, next(iter(digests.values()), None))
