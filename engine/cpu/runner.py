"""Executes steps with torch on a CPU: the models' weights, the arena, and one forward pass over all chunks of a step.

The scheduler decides which chunk runs and in which pages; this module must never import it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from adapters.device.layer import LoraBatch, cpu_threads
from adapters.device.pool import TilePool
from adapters.files.spec import BaseShape
from engine.compute.host_pool import build_host_pool
from engine.compute.logprobs import NO_LOGPROB, logprobs, prompt_parts, prompt_report, reported_ids
from engine.compute.masks import mask_rows
from engine.compute.numerics import cpu_numerics
from engine.compute.penalties import Draw
from engine.compute.pooling import pooled_sum
from engine.compute.shared import check_page, draw_of, host_memory, page_size, sort_out
from engine.cpu.batch import pack_step
from engine.cpu.decoder import EXACT_ROWS, Decoder
from engine.cpu.sampler import sample
from engine.cpu.threads import available_cores, measured_threads
from engine.cpu.weights import CpuModel, CpuWeights
from engine.models.compatibility import check_any_served, check_weights_fit, loading_order, note_refusal
from engine.models.linear import PACKED_ROWS, multiplies_int8
from engine.protocol.config import EngineConfig, ModelConfig, QualityLimits
from engine.protocol.frames import Logprobs, ModelInfo, PromptLogprobs
from engine.step import NO_ID, NO_VECTOR, UNDRAWABLE, Chunk, HostPool, Masks, Step, StepResult

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class TorchPending:
    """A step whose logits are computed."""

    step: Step
    vocab: int
    errors: dict[int, str]  # by chunk index
    sampling: list[int]  # chunk index of each row of `logits`
    logits: Tensor | None  # [sampling, vocab]; None: no chunk samples
    prompts: dict[int, PromptLogprobs] = field(default_factory=dict)  # by chunk index
    vectors: dict[int, NDArray[Any]] = field(default_factory=dict)  # likewise
    drawn: StepResult | None = None

    def is_forward_done(self) -> bool:
        return True

    @torch.inference_mode()
    def draw(self, masks: Masks | None) -> None:
        """Draw an id for every row that is not skipped. A row without finite logits fails alone."""
        masks = masks or Masks()
        allowed = mask_rows(self.step, masks, self.vocab)
        errors = dict(self.errors)
        ids: list[int | None] = [None] * len(self.step.chunks)
        reported: dict[int, Logprobs] = {}
        rows = [row for row, index in enumerate(self.sampling) if index not in masks.skip]
        if rows and self.logits is not None:
            logits = self.logits if len(rows) == len(self.sampling) else self.logits[rows]
            indices = [self.sampling[row] for row in rows]
            draws = [draw_of(self.step.chunks[index], allowed.get(index)) for index in indices]
            drawn, failed = draw_rows(logits, draws)
            errors.update((indices[row], why) for row, why in failed.items())
            for index, (token, found) in zip(indices, drawn, strict=True):
                ids[index] = token
                if found is not None:
                    reported[index] = found
                if token is None and index not in errors:
                    errors[index] = NO_ID
        self.drawn = StepResult(ids, errors, reported, masks.skip, self.prompts, self.vectors)

    def result(self) -> StepResult:
        assert self.drawn is not None, "the step was not drawn"
        return self.drawn


class TorchRunner:
    """Implements engine.step.Runner. `begin_step` is for one thread, and computes; `load_model` and `load_adapter` may
    run beside it."""

    steps_ahead = 0

    def __init__(
        self,
        arena: Tensor,
        dtype: torch.dtype,
        weights: CpuWeights,
        adapters: TilePool,
        host_pool: HostPool | None,
    ) -> None:
        """`arena` [pages, page_bytes] uint8: K and V of all models, and the adapters' tiles."""
        self.adapters = adapters
        self.host_pool = host_pool
        self.weights = weights
        self.pages, self.page_bytes = arena.shape
        self.models: dict[str, ModelInfo] = {}
        self.page_waste: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.quality_limits = QualityLimits()
        self.few_rows_threads: int | None = None  # of a step of few rows, such as one of decodes; None: all
        self._arena = arena
        self._dtype = dtype

    @torch.inference_mode()
    def begin_step(self, step: Step) -> TorchPending:
        """One forward pass of all chunks. A chunk with an invalid id fails alone."""
        info, decoder = self.models[step.model], self.weights.decoder(step.model)
        good, errors = sort_out(step.chunks, info)
        pending = TorchPending(step, info.vocab_size, errors, [], None)
        if good:
            # An exact decoder multiplies few rows at once in every step, and must do so with the same threads.
            few = decoder.exact or sum(chunk.count for chunk in good) <= PACKED_ROWS
            with cpu_threads(self.few_rows_threads if few else None):
                self._forward(good, decoder, pending)
        return pending

    def _forward(self, chunks: list[Chunk], decoder: Decoder, pending: TorchPending) -> None:
        """Compute the logits, the prompt logprobs and the pooled vectors of the pending step."""
        device, exact = self._arena.device, decoder.exact
        batch = pack_step(chunks, decoder.kv.tokens_per_page, device, decoder.dtype, exact=exact)
        runs = [(chunk.sequence.adapter, chunk.count) for chunk in batch.chunks]
        lora = LoraBatch(self.adapters, runs, device, rows_per_product=EXACT_ROWS if exact else None)
        indices = {id(chunk): index for index, chunk in enumerate(pending.step.chunks)}
        pending.sampling = [indices[id(chunk)] for chunk in batch.chunks if chunk.sample]
        hidden = decoder.run_layers(decoder.embed(batch), batch, lora if lora else None)
        pending.logits = decoder.logits(hidden, batch.sampled)
        for chunk, rows in batch.pooled_rows():
            vector = pooled_sum(decoder.final_norm(hidden[rows]))
            if vector.isfinite().all():
                pending.vectors[indices[id(chunk)]] = vector.numpy()
            else:
                pending.errors[indices[id(chunk)]] = NO_VECTOR
        reporting = [chunk for chunk in batch.chunks if chunk.reported()]
        if not reporting:
            return
        ids, most = reported_ids(reporting)
        parts = prompt_parts(reporting, prompt_report(decoder.logits(hidden, batch.reported), torch.tensor(ids), most))
        for chunk, part in zip(reporting, parts, strict=True):
            if part is None:
                pending.errors[indices[id(chunk)]] = NO_LOGPROB
            else:
                pending.prompts[indices[id(chunk)]] = part

    def load_model(self, model: ModelConfig) -> ModelInfo:
        """Check the model's files and register it. Raises ValueError with the reason, OSError."""
        return self.register_model(CpuModel.from_config(model, self._dtype, self.quality_limits))

    def register_model(self, found: CpuModel) -> ModelInfo:
        """Register a checked model. Raises ValueError with the reason, OSError."""
        model, shape = found.config, found.shape
        directory, layout = Path(model.path), found.kv
        waste = check_page(model.name, layout, self.page_bytes, self.pages)
        check_weights_fit(found.bytes, self.weights.bytes_max)
        info = ModelInfo(
            model.name,
            found.digest,
            min(shape.context_tokens, model.context_tokens or shape.context_tokens),
            shape.vocab,
            layout.tokens_per_page(self.page_bytes),
            self.pages,
            found.bytes,
            model.pinned,
            found.weights_format,
            layout.dtype,
            found.quality.quality if found.quality else None,
            layout.identity,
            cpu_numerics(self._dtype, int8=multiplies_int8() if found.is_quantised else None),
            shape.hidden,
        )
        self.adapters.add_base(model.name, BaseShape.from_directory(directory))
        self.weights.register_model(found)
        self.page_waste[model.name] = waste
        self.models[model.name] = info
        return info

    def unload_model(self, name: str) -> None:
        """Forget a model and its adapters. The scheduler has evicted its weights before."""
        del self.models[name]
        del self.page_waste[name]
        self.weights.forget_weights(name)
        self.adapters.remove_base(name)

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Check the adapter's files and register it. Raises ValueError with the reason, OSError."""
        self.adapters.register_adapter(digest, model, Path(path))

    def unload_adapter(self, digest: str) -> None:
        """Forget an adapter. The scheduler has evicted it from the arena before."""
        self.adapters.unload(digest)


def draw_rows(logits: Tensor, draws: list[Draw]) -> tuple[list[tuple[int | None, Logprobs | None]], dict[int, str]]:
    """The id of each row of `logits` [rows, vocab], with logprobs if requested; and by row, the errors of rows that
    could not be drawn. A failed row does not change what the other rows draw."""
    try:
        ids = sample(logits, draws)
        found = logprobs(logits, draws, ids)
        return [(token, found.get(row)) for row, token in enumerate(ids)], {}
    except Exception as error:  # noqa: BLE001 - a row's edge: its request ends, its neighbours are drawn
        if len(draws) == 1:
            return [(None, None)], {0: f"{UNDRAWABLE}: {type(error).__name__}: {error}"}
        _log.warning("draw.failed", exc_info=error, extra={"fields": {"rows": len(draws)}})
    drawn: list[tuple[int | None, Logprobs | None]] = []
    errors: dict[int, str] = {}
    for row, draw in enumerate(draws):
        (own,), failed = draw_rows(logits[row : row + 1], [draw])
        drawn.append(own)
        if failed:
            errors[row] = failed[0]
    return drawn, errors


def build_runner(config: EngineConfig) -> TorchRunner:
    """Lay out the arena and load as many configured models as weights_bytes allows. Models that cannot be served are in
    the runner's `refused`. Raises ModelRefused if none can be served."""
    torch.set_num_threads(config.threads or available_cores())
    dtype: torch.dtype = getattr(torch, config.models[0].dtype)
    refused: dict[str, str] = {}
    # Before the arena is laid out: a model that cannot be served does not make pages larger.
    checked: list[CpuModel] = []
    for model in config.models:
        with note_refusal(model.name, refused):
            found = CpuModel.from_config(model, dtype, config.quality)
            check_weights_fit(found.bytes, config.weights_bytes or None)
            checked.append(found)
    check_any_served(config.models, [found.config.name for found in checked], refused)
    page_bytes = page_size(((found.shape, found.kv) for found in checked), dtype)
    arena = torch.zeros(config.arena_bytes // page_bytes, page_bytes, dtype=torch.uint8)
    adapters = TilePool(arena, dtype, {}, host=host_memory(config, pinned=False))
    weights = CpuWeights(arena, config.weights_bytes or None)
    runner = TorchRunner(arena, dtype, weights, adapters, build_host_pool(arena, config.host_pool_bytes))
    for found in checked:
        with note_refusal(found.config.name, refused):
            runner.register_model(found)
    for info in loading_order(runner.models.values()):
        if weights.free_bytes() >= info.weights_bytes:
            with note_refusal(info.name, refused):
                weights.load_now(info.name)
    for name in refused.keys() & runner.models.keys():
        runner.unload_model(name)
    check_any_served(config.models, runner.models, refused)
    runner.refused = refused
    runner.quality_limits = config.quality
    runner.few_rows_threads = config.threads or measured_threads()
    return runner
