"""Builds the runner of one GPU from the engine's configuration: models, arena, the adapters' table, captured graphs."""

from __future__ import annotations

import logging
import threading

import torch

from adapters.device.pool import TilePool
from adapters.device.staging import CopyBuffer, CudaCopyLane
from adapters.device.table import LAYERS_MIN, AdapterRows
from engine.compute.host_pool import build_host_pool
from engine.compute.shared import check_page, host_memory, page_size
from engine.gpu.driver import OUT_OF_MEMORY, DriverError, DriverMemory
from engine.gpu.graphs import CudaRecorder, Graphs
from engine.gpu.layouts import LayoutLimits, row_buckets
from engine.gpu.memory import ChunkedSpace, UnboundedSpace, WeightSpace, chunk_size
from engine.gpu.opening import OpenedModel, dtype_of, open_model
from engine.gpu.pinned import CudaCopies, pinned_pieces
from engine.gpu.runner import GpuRunner
from engine.gpu.weights import GpuWeights
from engine.gpu.weights_loader import PASSING
from engine.models.compatibility import check_any_served, check_weights_fit, loading_order, note_refusal
from engine.models.config import ModelRefused
from engine.protocol.config import EngineConfig

# Without a budget, pieces of host memory are multiples of this.
GRAIN_BYTES = 2 << 20

_log = logging.getLogger(__name__)


def build_gpu_runner(config: EngineConfig, *, capture: bool = True, with_lora: bool = True) -> GpuRunner:
    """Register every configured model, load as many weights as fit, and lay out the arena. Models that cannot be served
    are in the runner's `refused`. Raises ModelRefused if none can be served, OSError.

    `capture` False: no graphs, for tests of eager steps; `with_lora` False: no graphs with LoRA."""
    if not torch.cuda.is_available():
        raise ModelRefused("device: cuda is configured, and torch sees no CUDA device here")
    device = torch.device("cuda", torch.cuda.current_device())
    dtype = _dtype(config)
    refused: dict[str, str] = {}
    opened = _open(config, dtype, device, refused)
    lock = threading.Lock()
    runner = _runner(config, opened, dtype, device, lock, capture=capture)
    runner.refused = refused
    runner.quality_limits = config.quality
    for model in opened:
        with note_refusal(model.name, refused):
            runner.register_model(model)
    _load_at_start(runner)
    check_any_served(config.models, runner.models, refused)
    if capture:
        runner.warm_up()
        # Up to graph_bytes, so that no request waits for a capture; graphs of later models are captured on use.
        at_start = [name for name in runner.models if runner.weights.weights_location(name) == "device"]
        runner.capture(at_start, with_lora=with_lora)
    return runner


def _open(config: EngineConfig, dtype: torch.dtype, device: torch.device, refused: dict[str, str]) -> list[OpenedModel]:
    opened = []
    for model in config.models:
        with note_refusal(model.name, refused):
            found = open_model(model, dtype, device, config.quality)
            # Before the arena is laid out: a model that cannot be served does not make pages larger.
            check_weights_fit(found.source.layout.bytes, config.weights_bytes or None)
            opened.append(found)
    check_any_served(config.models, [model.name for model in opened], refused)
    return opened


def _runner(
    config: EngineConfig,
    opened: list[OpenedModel],
    dtype: torch.dtype,
    device: torch.device,
    lock: threading.Lock,
    *,
    capture: bool,
) -> GpuRunner:
    """The runner, still without models."""
    page_bytes = page_size(((model.shape, model.kv) for model in opened), dtype)
    pages = config.arena_bytes // page_bytes
    for model in opened:
        check_page(model.name, model.kv, page_bytes, pages)
    try:
        arena = torch.zeros(pages, page_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise ModelRefused(f"arena_bytes: {config.arena_bytes}: not enough device memory") from error
    sequences = row_buckets(config.sequences_max)[-1]
    layers = max(LAYERS_MIN, *(model.shape.layers for model in opened))
    rows = AdapterRows(arena, dtype, layers, config.adapters_max, config.adapter_rank_max)
    memory = torch.empty(config.adapter_staging_bytes, dtype=torch.uint8, device=device)
    staging = CopyBuffer(memory, CudaCopyLane(device))
    adapters = TilePool(arena, dtype, {}, rows, host=host_memory(config, pinned=True), staging=staging)
    weights = _weights(config, opened, device, lock)
    graphs = Graphs(CudaRecorder(device), config.graph_bytes if capture else 0, lock)
    limits = LayoutLimits(max(config.step_tokens_max, sequences), sequences, 0)
    pool = build_host_pool(arena, config.host_pool_bytes)
    runner = GpuRunner(arena, adapters, weights, graphs, pool, limits)
    runner.reserve_step_memory(opened)
    return runner


def _weights(config: EngineConfig, opened: list[OpenedModel], device: torch.device, lock: threading.Lock) -> GpuWeights:
    budget = config.weights_bytes
    room: WeightSpace
    together = sum(model.source.layout.bytes for model in opened)
    _, total = torch.cuda.mem_get_info(device)
    if budget > total:
        raise ModelRefused(f"weights_bytes: {budget}: the device has {total} bytes")
    try:
        if budget:
            driver = DriverMemory(device)
            piece = chunk_size(budget, driver.granularity())
            if budget < piece:
                raise ModelRefused(f"weights_bytes: {budget} is less than the {piece} bytes that a GPU gives at once")
            room = ChunkedSpace(driver, budget, piece, lock)
        else:
            piece, room = chunk_size(together, GRAIN_BYTES), UnboundedSpace(device)
    except DriverError as error:
        why = "not enough device memory" if error.code == OUT_OF_MEMORY else str(error)
        raise ModelRefused(f"weights_bytes: {budget}: {why}") from error
    # Without a budget, weights are never evicted.
    held = config.weights_host_bytes // piece if budget else 0
    pieces = pinned_pieces(held + PASSING, piece, "weights_host_bytes")
    copies = CudaCopies(device)
    weights = GpuWeights(room, copies, pieces[PASSING:], pieces[:PASSING], piece)
    weights.rates["host"] = copies.measure(pieces[0])
    fields = {"chunk_bytes": piece, "host_pieces": held, "bytes_per_s": round(weights.rates["host"])}
    _log.info("weights.memory", extra={"fields": fields})
    return weights


def _load_at_start(runner: GpuRunner) -> None:
    """Load the first models to the device, as many as fit, and the following ones to host memory."""
    weights = runner.weights
    order = [model.name for model in loading_order(runner.models.values())]
    for name, why in weights.load_models(order).items():
        runner.unload_model(name)
        runner.refused[name] = why
    for name in runner.models:
        if weights.weights_location(name) != "device":
            weights.prefetch_weights(name)


def _dtype(config: EngineConfig) -> torch.dtype:
    names = {model.dtype for model in config.models}
    if len(names) > 1:
        raise ModelRefused(f"dtype: the models of one engine share one, these have {', '.join(sorted(names))}")
    return dtype_of(names.pop())
