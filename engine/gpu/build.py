"""From the engine's configuration to a runner on one GPU: models, arena, the adapters' table, captured graphs.

It must never decide what to serve: the configuration says.
"""

from __future__ import annotations

from pathlib import Path

import torch

from adapters.pool import TilePool
from adapters.spec import BaseShape
from adapters.staging import CudaLane, Staging
from adapters.table import AdapterRows
from engine.config import EngineConfig, ModelConfig
from engine.gpu.decoder import GpuDecoder
from engine.gpu.layouts import Limits, row_buckets
from engine.gpu.runner import GpuRunner
from engine.host_pool import build_host_pool
from engine.models.config import DecoderConfig, ModelRefused, load_config
from engine.models.dummy import DUMMY_DIGEST, dummy_weights
from engine.models.weights import Weights, load_weights, model_digest
from engine.protocol import ModelInfo
from engine.runner import PAGE_TOKENS, base_shape, check_page, host_memory


def build_gpu_runner(config: EngineConfig, *, capture: bool = True) -> GpuRunner:
    """Load every configured model and lay out the arena. Raises ModelRefused, OSError.

    `capture` False leaves graphs out, which tests need for steps that are all eager."""
    if not torch.cuda.is_available():
        raise ModelRefused("device: cuda is configured, and torch sees no CUDA device here")
    device = torch.device("cuda", torch.cuda.current_device())
    dtype = _dtype(config)
    shapes = {model.name: load_config(Path(model.path)) for model in config.models}
    token_bytes = {name: shape.kv_elements_per_token() * dtype.itemsize for name, shape in shapes.items()}
    page_bytes = PAGE_TOKENS * max(token_bytes.values())
    pages = config.arena_bytes // page_bytes
    for name, size in token_bytes.items():
        check_page(name, size, page_bytes, pages)
    arena = torch.zeros(pages, page_bytes, dtype=torch.uint8, device=device)
    sequences = row_buckets(config.sequences_max)[-1]
    bases: dict[str, BaseShape] = {model.name: base_shape(Path(model.path)) for model in config.models}
    decoders: dict[str, tuple[ModelInfo, GpuDecoder]] = {}
    tables = 0
    for model in config.models:
        shape = shapes[model.name]
        decoder = GpuDecoder(shape, bases[model.name], _weights(model, shape, dtype, device), arena, sequences)
        info = ModelInfo(model.name, _digest(model), shape.context_tokens, shape.vocab, decoder.tokens_per_page, pages)
        decoders[model.name] = info, decoder
        tables = max(tables, config.sequences_max * -(-shape.context_tokens // decoder.tokens_per_page))
    layers = max(shape.layers for shape in shapes.values())
    rows = AdapterRows(arena, dtype, layers, config.adapters_max, config.adapter_rank_max)
    limits = Limits(max(config.step_tokens_max, sequences), sequences, tables)
    pool = build_host_pool(arena, config.host_pool_bytes)
    memory = torch.empty(config.adapter_staging_bytes, dtype=torch.uint8, device=device)
    staging = Staging(memory, CudaLane(device))
    adapters = TilePool(arena, dtype, bases, rows, host=host_memory(config, pinned=True), staging=staging)
    runner = GpuRunner(decoders, arena, adapters, pool, limits)
    if capture:
        runner.capture()
    return runner


def _dtype(config: EngineConfig) -> torch.dtype:
    names = {model.dtype for model in config.models}
    if len(names) > 1:
        raise ModelRefused(f"dtype: the models of one engine share one, these have {', '.join(sorted(names))}")
    name = names.pop()
    if name == "float32":
        raise ModelRefused("dtype: a GPU serves bfloat16 or float16, float32 is the CPU's")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _weights(model: ModelConfig, shape: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    if model.dummy:
        return dummy_weights(shape, dtype, device)
    return load_weights(Path(model.path), shape, dtype, device)


def _digest(model: ModelConfig) -> str:
    if model.digest is not None:
        return model.digest
    return DUMMY_DIGEST if model.dummy else model_digest(Path(model.path))
