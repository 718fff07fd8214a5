"""Shared by the GPU tests: the real scheduler and runner on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("these tests need a CUDA device", allow_module_level=True)

from engine.gpu.build import build_gpu_runner
from engine.protocol.config import EngineConfig, ModelConfig, QualityLimits
from support.engine.in_process import MODEL, Drive

ANY_QUALITY = QualityLimits(mean_kl_max=100.0, top1_min=0.0, layer_error_max=100.0)


class GpuEngine(Drive):
    """One model directory in an arena of a given size in bytes."""

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
        quantize: Literal["none", "fp8", "int8", "int4"] = "none",
    ) -> None:
        """Random models are no models of text, and formats are compared here: the quality gate passes them all."""
        model = ModelConfig(name=MODEL, path=str(directory), dtype=dtype, kv_dtype=kv_dtype, quantize=quantize)  # type: ignore[arg-type]
        config = EngineConfig(
            models=(model,),
            quality=ANY_QUALITY,
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
