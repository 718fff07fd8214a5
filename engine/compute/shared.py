"""Shared by the runners of all devices: the size of arena pages, which chunks can be computed, and draw parameters."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import NDArray

from adapters.device.host_cache import HostMemory
from adapters.files.slab_order import TILE_ALIGN_BYTES, TILE_RANK
from engine.compute.penalties import Draw
from engine.models.config import DecoderConfig, ModelRefused
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import ModelInfo
from engine.step import Chunk
from kernels.kv_layout import FP8, KvLayout

# Tokens in a page of the model with the largest KV per token, and the minimum of any served model.
PAGE_TOKENS = 16
PAGE_TOKENS_MIN = 8

_log = logging.getLogger(__name__)


def kv_layout(model: ModelConfig, shape: DecoderConfig, dtype: torch.dtype) -> KvLayout:
    """The layout of a model's K and V. `dtype`: the engine's."""
    return shape.kv_layout(FP8 if model.kv_dtype == "fp8" else str(dtype).removeprefix("torch."))


def page_size(models: Iterable[tuple[DecoderConfig, KvLayout]], dtype: torch.dtype) -> int:
    """Bytes of a page: PAGE_TOKENS tokens of the model with the largest KV per token. `dtype`: the engine's.

    With KV in fp8 a page also holds the largest tile of the model's adapters, as long as a page of KV in `dtype` would:
    fp8 must not make adapters too large."""
    largest = 0
    for shape, layout in models:
        size = layout.layers * layout.run_bytes(PAGE_TOKENS)
        if layout.is_fp8:
            tile = TILE_RANK * dtype.itemsize * (shape.hidden + max(shape.intermediate, shape.q_size))
            size = max(size, min(tile, PAGE_TOKENS * shape.kv_elements_per_token() * dtype.itemsize))
        largest = max(largest, size)
    return -(-largest // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES


def check_page(name: str, layout: KvLayout, page_bytes: int, pages: int) -> int:
    """Check and log the model's tokens per page. Returns the unused bytes of a page. Raises ModelRefused if a page
    holds less than PAGE_TOKENS_MIN tokens, or the arena less than two pages."""
    tokens, token_bytes = layout.tokens_per_page(page_bytes), layout.token_bytes
    if tokens < PAGE_TOKENS_MIN:
        raise ModelRefused(
            f"{name}: a page of {page_bytes} bytes holds {tokens} tokens of {token_bytes} bytes; "
            f"at least {PAGE_TOKENS_MIN} are needed"
        )
    if pages < 2:
        raise ModelRefused(f"{name}: arena_bytes is less than two pages of {page_bytes} bytes")
    waste = layout.page_waste(page_bytes)
    fields = {"model": name, "pages": pages, "page_bytes": page_bytes, "tokens_per_page": tokens, "waste_bytes": waste}
    _log.info("arena.page", extra={"fields": fields})
    return waste


def host_memory(config: EngineConfig, *, pinned: bool) -> HostMemory:
    """Host memory for adapters. `pinned`: page-locked; otherwise pages take no memory before they are written."""
    return HostMemory(torch.empty(config.adapter_host_bytes, dtype=torch.uint8, pin_memory=pinned))


def draw_of(chunk: Chunk, allowed: NDArray[Any] | None = None) -> Draw:
    """The draw parameters of a sampling chunk. Its `output_ids` are the sequence's own list: read them in the draw,
    when they are known. `allowed`: its mask's words."""
    own = chunk.sequence
    return Draw(own.sampling, chunk.start + chunk.count, own.prompt_ids, own.output_ids, own.stop_ids, allowed)


def sort_out(chunks: list[Chunk], info: ModelInfo) -> tuple[list[Chunk], dict[int, str]]:
    """The chunks that can be computed, and for each other chunk, by index, the reason."""
    reasons = [_unfit(chunk, info) for chunk in chunks]
    good = [chunk for chunk, reason in zip(chunks, reasons, strict=True) if reason is None]
    return good, {index: reason for index, reason in enumerate(reasons) if reason is not None}


def _unfit(chunk: Chunk, info: ModelInfo) -> str | None:
    """Why the chunk cannot be computed; None when it can."""
    stop = chunk.start + chunk.count
    if stop > info.context_tokens:
        return f"token {stop} is beyond the model's context of {info.context_tokens}"
    if chunk.start >= len(chunk.sequence.prompt_ids) + chunk.sequence.resumed:
        return None  # an id drawn by this engine
    ids = chunk.sequence.tokens(chunk.start, stop)
    if min(ids) < 0 or max(ids) >= info.vocab_size:
        return f"an id is not in the vocabulary of {info.vocab_size}"
    return None
