"""Executes steps on one GPU: packs a step, replays its graph or runs it eagerly, draws on the device, and returns.

The ids reach the host when the result is read. The scheduler decides which chunk runs and in which pages; this module
must never import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from adapters.device.pool import TilePool
from adapters.device.table import AdapterRows
from engine.compute.logprobs import NO_LOGPROB
from engine.compute.masks import check_masks, sampling_rows
from engine.compute.numerics import gpu_numerics
from engine.compute.penalties import Draw, changes_logits
from engine.compute.shared import check_page, draw_of, sort_out
from engine.gpu.decoder import GpuDecoder
from engine.gpu.draw_state import DrawRow, DrawState
from engine.gpu.draws import (
    PendingLogprobs,
    PendingPrompts,
    PendingVectors,
    draw_fields,
    mode_of,
    pool_prompts,
    report_logprobs,
    report_prompts,
    to_host,
    undrawable,
)
from engine.gpu.driver import DriverError
from engine.gpu.graphs import Graphs
from engine.gpu.layouts import LayoutLimits, StepLayouts
from engine.gpu.model import STEPS_AHEAD, WARM_ROWS, WARM_SENDS, GpuModel, SharedStepState
from engine.gpu.opening import OpenedModel, open_model
from engine.gpu.packing import NOWHERE, PackedStep, Packer, StepLayout
from engine.gpu.products import make_product
from engine.gpu.step_memory import StepMemories, StepMemory, StepSizes, form_bytes, step_form
from engine.gpu.weights import GpuWeights
from engine.models.config import DecoderConfig, ModelRefused
from engine.models.slab import slab_weights
from engine.protocol.config import ModelConfig, QualityLimits
from engine.protocol.frames import Logprobs, ModelInfo, PromptLogprobs
from engine.step import NO_ID, NO_VECTOR, Chunk, DeviceLost, HostPool, Masks, Sequence, Step, StepResult
from kernels.changes import Changes
from kernels.prefill_attention import PROGRAMS_PER_SM
from kernels.sample import Draws, sample

DRAW_FIELDS = ("temperatures", "seeds", "choices", "draw_positions", "top_ks", "top_ps", "min_ps")


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step's ids and logprobs on their way to the host."""

    ids: Tensor  # [samples] int32, page-locked; −1: no id can be drawn from the row
    reported: PendingLogprobs | None
    skipped: frozenset[int]  # chunk indices
    done: torch.cuda.Event


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that the device is computing."""

    step: Step
    model: GpuModel
    errors: dict[int, str]  # by chunk index
    places: list[int]  # chunk index in the step, in the order of samples
    draws: list[Draw]  # likewise; their output ids are known once the step may be drawn
    layout: StepLayout | None  # None: no chunk can be computed
    launch: Callable[[PendingStep, Masks], DrawnStep]
    prompts: PendingPrompts | None = None  # None: the step reports no log probabilities of prompts
    vectors: PendingVectors | None = None  # None: the step pools nothing
    drawn: DrawnStep | None = None

    def is_forward_done(self) -> bool:
        """Whether the stream has no work left: the forward pass is the newest work in it."""
        with _device_errors():
            return bool(torch.cuda.current_stream().query())

    @torch.inference_mode()
    def draw(self, masks: Masks | None) -> None:
        """Launch the draw behind the forward pass. Raises DeviceLost."""
        with _device_errors():
            self.drawn = self.launch(self, masks or Masks())

    def result(self) -> StepResult:
        """Wait until the ids are on the host. Raises DeviceLost."""
        assert self.drawn is not None, "the step was not drawn"
        with _device_errors():
            self.drawn.done.synchronize()
        errors, skipped = dict(self.errors), self.drawn.skipped
        ids: list[int | None] = [None] * len(self.step.chunks)
        for index, drawn in zip(self.places, self.drawn.ids.tolist(), strict=True):
            if not self.step.chunks[index].sample or index in self.errors or index in skipped:
                continue
            if drawn < 0:
                errors[index] = NO_ID
            else:
                ids[index] = drawn
        found: dict[int, Logprobs] = {}
        if self.drawn.reported is not None:
            found = {self.places[place]: own for place, own in self.drawn.reported.by_place().items()}
        reported = {index: own for index, own in found.items() if ids[index] is not None}
        return StepResult(ids, errors, reported, skipped, self._prompt_parts(errors), self._vectors(errors))

    def _prompt_parts(self, errors: dict[int, str]) -> dict[int, PromptLogprobs]:
        """Log probabilities of prompt tokens by chunk index. Adds the errors of chunks that have no error yet."""
        parts: dict[int, PromptLogprobs] = {}
        if self.prompts is not None:
            indices = {id(chunk): index for index, chunk in enumerate(self.step.chunks)}
            for chunk, part in zip(self.prompts.chunks, self.prompts.parts(), strict=True):
                index = indices[id(chunk)]
                if part is None:
                    errors.setdefault(index, NO_LOGPROB)
                else:
                    parts[index] = part
        return parts

    def _vectors(self, errors: dict[int, str]) -> dict[int, NDArray[Any]]:
        """By chunk index. Adds the errors of chunks that have none."""
        vectors: dict[int, NDArray[Any]] = {}
        if self.vectors is not None:
            indices = {id(chunk): index for index, chunk in enumerate(self.step.chunks)}
            for chunk, vector in zip(self.vectors.chunks, self.vectors.sums.numpy(), strict=True):
                index = indices[id(chunk)]
                if math.isfinite(vector.sum()):
                    vectors[index] = vector
                else:
                    errors.setdefault(index, NO_VECTOR)
        return vectors


class GpuRunner:
    """Implements engine.step.Runner. Steps are for one thread; `load_adapter` and `load_model` may run beside it, one
    `load_model` at a time."""

    steps_ahead = STEPS_AHEAD

    def __init__(
        self,
        arena: Tensor,
        adapters: TilePool,
        weights: GpuWeights,
        graphs: Graphs,
        host_pool: HostPool | None,
        limits: LayoutLimits,
    ) -> None:
        """`arena` [pages, page_bytes] uint8: K and V of all models, and the adapters' tiles. Models are added to
        `adapters` here. `limits.pages` is ignored: each model has its own."""
        assert adapters.rows is not None
        self.adapters = adapters
        self.weights = weights
        self.host_pool = host_pool
        self.pages, self.page_bytes = arena.shape
        self.models: dict[str, ModelInfo] = {}
        self.page_waste: dict[str, int] = {}  # by model, bytes
        self.quality_limits = QualityLimits()
        self.refused: dict[str, str] = {}  # configured models that are not served, and why
        self._arena = arena
        self._rows: AdapterRows = adapters.rows
        self._dtype = adapters.rows.table.arena.dtype
        self._limits = limits
        self._multiprocessors = torch.cuda.get_device_properties(arena.device).multi_processor_count
        self._memories = StepMemories(arena.device)
        self._common = SharedStepState(
            Packer(1, STEPS_AHEAD + 2, pinned=True),
            torch.zeros(limits.sequences, dtype=torch.int32, device=arena.device),
            adapters,
            _stream(arena.device),
            graphs,
            DrawState(arena.device, limits.sequences),
        )
        self._drawn = self._common.drawn
        # Streams of all loads: torch reuses freed memory only within a stream, and has few streams.
        self._loading, self._loading_side = _stream(arena.device), _stream(arena.device)
        # By sequence: index of its id in `drawn`.
        self._places: dict[Sequence, int] = {}
        self._served: dict[str, GpuModel] = {}
        self._numbers = 0

    def reserve_step_memory(self, opened: list[OpenedModel]) -> None:
        """Reserve the memory that the steps of all these models share. Called before the first model is registered.
        Raises ModelRefused."""
        forms = []
        for model in opened:
            layouts = self._layouts(model.shape, model.kv.tokens_per_page(self.page_bytes))
            forms.append(self._form(model, layouts))
        self._memories.place(max(forms, key=form_bytes))
        self._common.draws.reserve(max(model.shape.vocab for model in opened))

    def register_model(self, opened: OpenedModel) -> None:
        """Register a model, without its weights, before the first step. Raises ModelRefused."""
        self._publish(opened, self._build(opened))

    def _build(self, opened: OpenedModel) -> GpuModel:
        shape, name = opened.shape, opened.name
        layers = self._rows.table.entries.shape[1]
        if name in self.models:
            raise ModelRefused(f"{name} is served already")
        if shape.layers > layers:
            raise ModelRefused(f"{shape.layers} layers; this engine has room for adapters of {layers}")
        check_page(name, opened.kv, self.page_bytes, self.pages)
        try:
            slab = self.weights.register_model(name, opened.source)
        except (MemoryError, DriverError) as error:
            raise ModelRefused(str(error)) from error
        try:
            return self._build_in(opened, slab)
        except BaseException:
            self.weights.forget_weights(name)
            raise

    def _build_in(self, opened: OpenedModel, slab: Tensor) -> GpuModel:
        """Build a model over its registered slab."""
        shape, name = opened.shape, opened.name
        weights = slab_weights(slab, opened.source.layout, shape, make_product)
        decoder = GpuDecoder(shape, opened.base, weights, self._arena, opened.kv)
        per_page, size = decoder.tokens_per_page, self.weights.weights_bytes(name)
        info = ModelInfo(
            name,
            opened.digest,
            shape.context_tokens,
            shape.vocab,
            per_page,
            self.pages,
            size,
            opened.pinned,
            opened.source.weights_format,
            opened.kv.dtype,
            opened.quality,
            opened.kv.identity,
            gpu_numerics(self._arena.device, self._dtype),
            shape.hidden,
        )
        layouts = self._layouts(shape, per_page)
        memory = self._memories.place(self._form(opened, layouts))
        self._common.packer.ensure(layouts.words_max())
        self._common.draws.reserve(shape.vocab)
        self._numbers += 1
        return GpuModel(info, decoder, layouts, memory, self._common, self._numbers)

    def _publish(self, opened: OpenedModel, model: GpuModel) -> None:
        name = opened.name
        self.adapters.add_base(name, opened.base)
        self._served[name] = model
        self.page_waste[name] = model.page_waste
        self.models[name] = model.info

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every model's kernels, before the first step."""
        for model in self._served.values():
            model.warm_up()
        torch.cuda.synchronize()

    @torch.inference_mode()
    def capture(self, models: list[str], *, with_lora: bool = True) -> None:
        """Capture all graphs of these models, as far as the budget allows, before the first step. Other graphs are
        captured on use."""
        for name in models:
            self._served[name].capture_all(with_lora=with_lora)
        torch.cuda.synchronize()

    @torch.inference_mode()
    def begin_step(self, step: Step) -> PendingStep:
        """Start one forward pass of all chunks. A chunk with an invalid id fails alone. Raises DeviceLost."""
        with _device_errors():
            return self._begin_step(step)

    def _begin_step(self, step: Step) -> PendingStep:
        model, indices = self._served[step.model], {id(chunk): index for index, chunk in enumerate(step.chunks)}
        good, errors = sort_out(step.chunks, model.info)
        packed, chunks, draws = _packed(good, model.info)
        try:
            fields = draw_fields(draws, model.info.vocab_size)
        except Exception:
            bad = undrawable(draws, model.info.vocab_size)
            if not bad:
                raise
            errors.update((indices[id(chunks[place])], why) for place, why in bad.items())
            good = [chunk for chunk in good if indices[id(chunk)] not in errors]
            packed, chunks, draws = _packed(good, model.info)
            fields = draw_fields(draws, model.info.vocab_size)
        layout = model.forward(packed, self._places, fields) if good else None
        self._places = {chunk.sequence: place for place, chunk in enumerate(chunks)}
        places = [indices[id(chunk)] for chunk in chunks]
        prompts = report_prompts(packed, model.reported_logits, self._drawn.device) if good else None
        vectors = pool_prompts(packed, model.pooled_sums) if good else None
        return PendingStep(step, model, errors, places, draws, layout, self._launch_draw, prompts, vectors)

    def _launch_draw(self, pending: PendingStep, masks: Masks) -> DrawnStep:
        """Launch the draw of the newest step; adds the rows that cannot be drawn to its errors."""
        check_masks(pending.step, masks, pending.model.info.vocab_size)
        reported = self._draw_ids(pending, pending.layout, masks) if pending.draws and pending.layout else None
        ids = to_host(self._drawn[: len(pending.draws)])
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        pending.model.capture_due()  # while the device computes the step
        return DrawnStep(ids, reported, masks.skip, done)

    def load_model(self, model: ModelConfig) -> ModelInfo:
        """Check the model's files, compile its kernels, and register it. Raises ModelRefused, OSError.

        Steps may be delayed by the interpreter's lock, which compiling holds for some milliseconds at a time, and by
        the allocation of step memory for a model with larger steps than any before, which may wait for the device."""
        device = self._arena.device
        torch.cuda.set_device(device)
        with torch.cuda.stream(self._loading), self._common.graphs.paused():
            opened = open_model(model, self._dtype, device, self.quality_limits)
            served = self._build(opened)
            try:
                self._warm_up_beside(opened, served)
            except BaseException:
                self.weights.forget_weights(opened.name)
                raise
            self._publish(opened, served)
        return served.info

    def unload_model(self, name: str) -> None:
        """Forget a model. Before, the scheduler has evicted its weights, and every step of it is completed."""
        self._common.graphs.forget_graphs(self._served[name].number)
        self.adapters.remove_base(name)
        del self.models[name], self.page_waste[name], self._served[name]
        self.weights.forget_weights(name)

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Check the adapter's files and register it. Raises ValueError with the reason, OSError."""
        self.adapters.register_adapter(digest, model, Path(path))

    def unload_adapter(self, digest: str) -> None:
        """Forget an adapter. The scheduler has evicted it from the arena before."""
        self.adapters.unload(digest)

    @torch.inference_mode()
    def _warm_up_beside(self, opened: OpenedModel, served: GpuModel) -> None:
        """Compile a new model's kernels in separate memory and on separate streams, because steps of other models run
        meanwhile."""
        device, words = self._arena.device, served.warm_words()
        sizes = StepSizes(words, WARM_ROWS, WARM_ROWS, self._limits.sequences)
        form = self._sized_form(opened, sizes)
        common = SharedStepState(
            Packer(words, WARM_SENDS, pinned=True),
            torch.zeros(WARM_ROWS, dtype=torch.int32, device=device),
            self.adapters,
            self._loading_side,
            self._common.graphs,
            DrawState(device, 1),
        )
        served.beside(StepMemories(device).place(form), common).warm_up()
        torch.cuda.current_stream().synchronize()

    def _layouts(self, shape: DecoderConfig, tokens_per_page: int) -> StepLayouts:
        limits = self._limits
        # A sequence has at most all pages of the arena, whatever the model's context.
        tables = limits.sequences * min(self.pages, -(-shape.context_tokens // tokens_per_page))
        own = LayoutLimits(limits.rows, limits.sequences, tables)
        programs = self._multiprocessors * PROGRAMS_PER_SM
        return StepLayouts(own, self._rows.table.tiles_max, shape.heads, shape.kv_heads, programs)

    def _form(self, opened: OpenedModel, layouts: StepLayouts) -> StepMemory:
        limits = self._limits
        sizes = StepSizes(layouts.words_max(), limits.rows, limits.sequences, limits.sequences)
        return self._sized_form(opened, sizes)

    def _sized_form(self, opened: OpenedModel, sizes: StepSizes) -> StepMemory:
        table, processors, layout = self._rows.table, self._multiprocessors, opened.source.layout
        return step_form(opened.shape, self._dtype, table, sizes, processors, layout, kv_fp8=opened.kv.is_fp8)

    def _draw_ids(self, pending: PendingStep, layout: StepLayout, masks: Masks) -> PendingLogprobs | None:
        """Draw into the fixed buffer that the next step reads; the errors of rows that cannot be prepared are added to
        the step's, and their ids are meaningless."""
        model, draws = pending.model, pending.draws
        memory, vocab = model.memory, model.info.vocab_size
        logits, drawn = memory.logits[: len(draws)], self._drawn[: len(draws)]
        fields = Draws(*(layout.view(memory.packed, name)[: len(draws)] for name in DRAW_FIELDS))
        changes = self._changes(pending, masks) if masks.words is not None or any(map(changes_logits, draws)) else None
        sample(logits, fields, memory.scratch, drawn, mode=mode_of(draws, vocab), changes=changes)
        return report_logprobs(logits, drawn, draws)

    def _changes(self, pending: PendingStep, masks: Masks) -> Changes | None:
        """The changes of the logits of a step's rows, sent to the device."""
        chunks, of_chunk = pending.step.chunks, sampling_rows(pending.step)
        rows: list[DrawRow | None] = []
        word_rows: list[int] = []
        for index, draw in zip(pending.places, pending.draws, strict=True):
            used = chunks[index].sample and index not in masks.skip
            rows.append(DrawRow(chunks[index].sequence, draw) if used else None)
            word_rows.append(of_chunk[index] if used and of_chunk[index] not in masks.free else NOWHERE)
        changes, bad = self._common.draws.prepare(rows, masks.words, word_rows, pending.model.info.vocab_size)
        pending.errors.update((pending.places[place], why) for place, why in bad.items())
        return changes


def _packed(chunks: list[Chunk], info: ModelInfo) -> tuple[PackedStep, list[Chunk], list[Draw]]:
    """The packed step, its sampling chunks, and the Draw of each."""
    packed = PackedStep(chunks, info.tokens_per_page)
    sampling = [packed.chunks[index] for index in packed.sampling]
    return packed, sampling, [draw_of(chunk) for chunk in sampling]


@contextmanager
def _device_errors() -> Iterator[None]:
    """Raises DeviceLost for an error such as an illegal access, after which CUDA refuses every further call of this
    process. An out-of-memory error of torch's allocator is not such an error. One of the driver is, since its state is
    unknown."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise DeviceLost(str(error)) from error


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
