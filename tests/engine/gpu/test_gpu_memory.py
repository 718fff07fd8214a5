"""A thousand steps of mixed traffic on a GPU, in an arena full of traps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from support.engine.gpu import GpuEngine
from support.engine.poisoned_arena import run_among_traps, tiny_model
from support.engine.swap_round_trip import run_swapped

pytestmark = pytest.mark.gpu
# Fewer under a sanitizer.
STEPS = int(os.environ.get("LANEWAY_TRAP_STEPS", "1000"))


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize(("seed", "host_pool_bytes"), [(1, 0), (2, 1 << 20)])
def test_a_thousand_steps_among_traps(
    seed: int, host_pool_bytes: int, kv_dtype: Literal["auto", "fp8"], capture: bool, tmp_path: Path
) -> None:
    model, adapters = tiny_model(tmp_path, seed)
    engine = GpuEngine(
        model,
        arena_bytes=16 << 20,
        host_pool_bytes=host_pool_bytes,
        step_tokens_max=96,
        sequences_max=16,
        capture=capture,
        kv_dtype=kv_dtype,
    )
    print("\n" + run_among_traps(engine, adapters, tmp_path / "store", seed, STEPS))


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("adapted", [False, True])
def test_who_comes_back_from_host_memory_goes_on_as_if_nobody_had_interrupted(
    adapted: bool, kv_dtype: Literal["auto", "fp8"], capture: bool, tmp_path: Path
) -> None:
    model, adapters = tiny_model(tmp_path, seed=1)
    engine = GpuEngine(
        model,
        arena_bytes=16 << 20,
        host_pool_bytes=1 << 20,
        step_tokens_max=96,
        sequences_max=1,
        capture=capture,
        kv_dtype=kv_dtype,
    )
    digests = engine.add_adapters(adapters[:1], tmp_path / "store") if adapted else {}
    run_swapped(engine, next(iter(digests.values()), None))
