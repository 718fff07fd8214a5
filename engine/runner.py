"""Executes steps with torch: the models' weights, the arena, and one forward a step over all its chunks.

It decides nothing: which chunk runs, and in which pages, is the scheduler's. It must never import it.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from adapters.host import HostMemory
from adapters.layer import LoraBatch
from adapters.pool import TilePool
from adapters.spec import BaseShape
from engine.config import EngineConfig, ModelConfig
from engine.host_pool import build_host_pool
from engine.logprobs import logprobs
from engine.models.batch import pack
from engine.models.config import DecoderConfig, ModelRefused, load_config
from engine.models.decoder import Decoder, PagedKv
from engine.models.dummy import DUMMY_DIGEST, dummy_weights
from engine.models.weights import load_weights, model_digest
from engine.penalties import Draw
from engine.protocol import Logprobs, ModelInfo
from engine.sampler import sample
from engine.step import Chunk, Done, HostPool, Step, StepResult

# A page holds this many tokens of the hungriest model, and no model is served with fewer than the minimum.
PAGE_TOKENS = 16
PAGE_TOKENS_MIN = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    info: ModelInfo
    decoder: Decoder


class TorchRunner:
    """Implements engine.step.Runner. `begin` is for one thread, and computes; `load_adapter` may run beside it."""

    steps_ahead = 0

    def __init__(
        self, models: dict[str, LoadedModel], arena: torch.Tensor, adapters: TilePool, host_pool: HostPool | None
    ) -> None:
        """`arena` [pages, page_bytes] uint8: every model's K and V, and the adapters' tiles, lie in it."""
        self.adapters = adapters
        self.host_pool = host_pool
        self.pages, self.page_bytes = arena.shape
        self.models = {name: model.info for name, model in models.items()}
        self._arena = arena
        self._decoders = {name: model.decoder for name, model in models.items()}

    @torch.inference_mode()
    def begin(self, step: Step) -> Done:
        """One forward of all chunks. A chunk with an id that is no id, or whose logits are not numbers, fails alone."""
        info, decoder = self.models[step.model], self._decoders[step.model]
        good, errors = sort_out(step.chunks, info)
        drawn = self._forward(good, decoder) if good else {}
        ids: list[int | None] = []
        reported: dict[int, Logprobs] = {}
        for index, chunk in enumerate(step.chunks):
            token, found = drawn.get(id(chunk), (None, None))
            ids.append(token)
            if found is not None:
                reported[index] = found
            if chunk.sample and token is None and index not in errors:
                errors[index] = "the model's logits are not finite numbers"
        return Done(StepResult(ids, errors, reported))

    def _forward(self, chunks: list[Chunk], decoder: Decoder) -> dict[int, tuple[int | None, Logprobs | None]]:
        """Ids drawn and their logprobs where asked for, by id() of the chunk."""
        batch = pack(chunks, decoder.kv.tokens_per_page, self._arena.device, decoder.dtype)
        lora = LoraBatch(self.adapters, [(c.sequence.adapter, c.count) for c in batch.chunks], self._arena.device)
        logits = decoder.forward(batch, lora if lora else None)
        sampling = [chunk for chunk in batch.chunks if chunk.sample]
        if not sampling:
            return {}
        draws = [draw_of(chunk) for chunk in sampling]
        ids = sample(logits, draws)
        found = logprobs(logits, draws, ids)
        return {id(chunk): (ids[row], found.get(row)) for row, chunk in enumerate(sampling)}

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Check its files, and know it. Raises ValueError with the reason, OSError."""
        self.adapters.load(digest, model, Path(path))

    def unload_adapter(self, digest: str) -> None:
        """Forget it; the scheduler has removed it from the arena before."""
        self.adapters.unload(digest)


def draw_of(chunk: Chunk) -> Draw:
    """How the id is drawn that a sampling chunk yields."""
    own = chunk.sequence
    return Draw(own.sampling, chunk.start + chunk.count, own.prompt_ids, own.output_ids, own.stop_ids)


def sort_out(chunks: list[Chunk], info: ModelInfo) -> tuple[list[Chunk], dict[int, str]]:
    """Those that can be computed, and by index why the others cannot."""
    reasons = [_unfit(chunk, info) for chunk in chunks]
    good = [chunk for chunk, reason in zip(chunks, reasons, strict=True) if reason is None]
    return good, {index: reason for index, reason in enumerate(reasons) if reason is not None}


def _unfit(chunk: Chunk, info: ModelInfo) -> str | None:
    """Why the chunk cannot be computed; None when it can."""
    stop = chunk.start + chunk.count
    if stop > info.context_tokens:
        return f"token {stop} is beyond the model's context of {info.context_tokens}"
    if chunk.start >= len(chunk.sequence.prompt_ids):
        return None  # an id that was drawn here
    ids = chunk.sequence.tokens(chunk.start, stop)
    if min(ids) < 0 or max(ids) >= info.vocab_size:
        return f"an id is not in the vocabulary of {info.vocab_size}"
    return None


def build_runner(config: EngineConfig, device: torch.device | None = None) -> TorchRunner:
    """Load every configured model and lay out the arena. Raises ModelRefused, OSError."""
    device = device or torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(config.threads or os.cpu_count() or 1)
    dtypes = {model.dtype for model in config.models}
    if len(dtypes) > 1:
        raise ModelRefused(f"dtype: the models of one engine share one, these have {', '.join(sorted(dtypes))}")
    dtype: torch.dtype = getattr(torch, dtypes.pop())
    shapes = {model.name: load_config(Path(model.path)) for model in config.models}
    page_bytes = PAGE_TOKENS * max(shape.kv_elements_per_token() for shape in shapes.values()) * dtype.itemsize
    pages = config.arena_bytes // page_bytes
    for name, shape in shapes.items():
        check_page(name, shape.kv_elements_per_token() * dtype.itemsize, page_bytes, pages)
    arena = torch.zeros(pages, page_bytes, dtype=torch.uint8, device=device)
    models = {model.name: _load(model, shapes[model.name], arena, dtype) for model in config.models}
    bases = {model.name: base_shape(Path(model.path)) for model in config.models}
    adapters = TilePool(arena, dtype, bases, host=host_memory(config, pinned=False))
    return TorchRunner(models, arena, adapters, build_host_pool(arena, config.host_pool_bytes))


def host_memory(config: EngineConfig, *, pinned: bool) -> HostMemory:
    """For adapters. What is not pinned costs nothing until it is written."""
    return HostMemory(torch.empty(config.adapter_host_bytes, dtype=torch.uint8, pin_memory=pinned))


def check_page(name: str, token_bytes: int, page_bytes: int, pages: int) -> None:
    """Log tokens per page and the waste. Raises ModelRefused when pages do not suit the model."""
    tokens = page_bytes // token_bytes
    if tokens < PAGE_TOKENS_MIN:
        raise ModelRefused(
            f"{name}: a page of {page_bytes} bytes holds {tokens} tokens of {token_bytes} bytes; "
            f"at least {PAGE_TOKENS_MIN} are needed"
        )
    if pages < 2:
        raise ModelRefused(f"{name}: arena_bytes is less than two pages of {page_bytes} bytes")
    waste = page_bytes - tokens * token_bytes
    fields = {"model": name, "pages": pages, "page_bytes": page_bytes, "tokens_per_page": tokens, "waste_bytes": waste}
    _log.info("arena.page", extra={"fields": fields})


def _load(model: ModelConfig, shape: DecoderConfig, arena: torch.Tensor, dtype: torch.dtype) -> LoadedModel:
    directory = Path(model.path)
    if model.dummy:
        weights = dummy_weights(shape, dtype, arena.device)
    else:
        weights = load_weights(directory, shape, dtype, arena.device)
    kv = PagedKv(arena, shape, dtype)
    digest = model.digest or (DUMMY_DIGEST if model.dummy else model_digest(directory))
    info = ModelInfo(model.name, digest, shape.context_tokens, shape.vocab, kv.tokens_per_page, arena.shape[0])
    return LoadedModel(info, Decoder(shape, weights, kv))


def base_shape(directory: Path) -> BaseShape:
    return BaseShape.from_config(json.loads((directory / "config.json").read_bytes()))
