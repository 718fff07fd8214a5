"""The real scheduler and runner on a GPU: what the GPU tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("these tests need a CUDA device", allow_module_level=True)

from engine.gpu.build import build_gpu_runner
from engine.protocol.config import EngineConfig, ModelConfig
from support.engine.in_process import MODEL, Drive


class GpuEngine(Drive):
    """One model directory in an arena of so many bytes."""

    def __init__(
        self,
        directory: Path,
        *,
        dtype: str = "bfloat16",
        arena_bytes: int = 256 << 20,
        host_pool_bytes: int = 0,
        step_tokens_max: int = 512,
        sequences_max: int = 64,
        capture: bool = True,
        rank_max: int = 64,
        kv_dtype: Literal["auto", "fp8"] = "auto",
    ) -> None:
        config = EngineConfig(
            models=(ModelConfig(name=MODEL, path=str(directory), dtype=dtype, kv_dtype=kv_dtype),),  # type: ignore[arg-type]
            arena_bytes=arena_bytes,
            host_pool_bytes=host_pool_bytes,
            step_tokens_max=step_tokens_max,
            sequences_max=sequences_max,
            adapter_rank_max=rank_max,
            adapters_max=64,
            adapter_host_bytes=64 << 20,
            adapter_staging_bytes=16 << 20,
            device="cuda",
        )
        runner = build_gpu_runner(config, capture=capture)
        super().__init__(runner, directory, step_tokens_max=step_tokens_max, sequences_max=sequences_max)
