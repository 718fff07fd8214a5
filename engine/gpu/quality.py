"""A model in two versions on a GPU, a layer at a time, for the quality gate.

Its memory lies beside the engine's: two layers of the model, the hidden rows of the held-out text, and at the end the
head. It runs the kernels of a served step with prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapters.files.spec import BaseShape
from engine.compute.quality import ERROR_WINDOWS, WINDOW_TOKENS, LayerRun, window_chunks
from engine.compute.shared import kv_layout, page_size
from engine.gpu.decoder import GpuDecoder
from engine.gpu.layouts import LayoutLimits, StepLayouts
from engine.gpu.packing import PackedStep, Packer, StepLayout, views
from engine.gpu.products import GpuProduct, PlainProduct, make_product
from engine.gpu.step_memory import StepMemories, StepSizes, step_form
from engine.models.checkpoints import load_quantization
from engine.models.config import DecoderConfig, ModelRefused
from engine.models.matrices import MatrixFormat, QuantizedMatrix, dequantize_matrix
from engine.models.slab import SlabLayout, section_product
from engine.models.slab_source import FileSource
from engine.models.weights import LayerWeights, Weights, assemble_layer
from engine.protocol.config import ModelConfig
from kernels.kv_layout import KvLayout
from kernels.lora_work import TileTable
from kernels.norm import rms_norm
from kernels.prefill_attention import PROGRAMS_PER_SM
from kernels.prefill_blocks import prefill_blocks

NO_MEMORY = "quality: not enough free device memory to measure the model; two of its layers and its head must fit"
ROWS = ERROR_WINDOWS * WINDOW_TOKENS


class GpuMeasuredModel:
    """Implements engine.compute.quality.MeasuredModel."""

    def __init__(self, model: ModelConfig, shape: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        """Raises ModelRefused, OSError."""
        directory = Path(model.path)
        self.layers = shape.layers
        self.vocab = shape.vocab
        self.may_keep_layers = model.quantize != "none"
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._base = BaseShape.from_directory(directory)
        self._source = FileSource(directory, shape, dtype, model.quantize)
        # The matrices of the files: unquantised before loading, or published quantised.
        self._files = FileSource(directory, shape, dtype) if self.may_keep_layers else self._source
        self._is_published = load_quantization(directory) is not None
        self._one_layer = dataclasses.replace(shape, layers=1)
        self._plain_kv = self._one_layer.kv_layout(str(dtype).removeprefix("torch."))
        self._served_kv = kv_layout(model, self._one_layer, dtype)
        self._norm = self._read(self._source, "norm")
        self._head: Tensor | None = None

    def embed(self, ids: Tensor) -> Tensor:
        start, layout = self._source.layout.section("embedding")
        embedding = self._fill(self._source, start, layout)  # on the host: it is needed once
        return layout.view(embedding, "embedding")[ids].to(self._device)

    def load_layer(self, index: int) -> tuple[LayerRun, LayerRun, LayerRun, int]:
        prefix = f"layers.{index}."
        quantized, matrices = self._layer(self._source, index, dequantized=False)
        reference, _ = self._layer(self._files, index, dequantized=self._is_published)
        count = sum(name.startswith(prefix) for name in matrices)
        return (
            self._layer_run(reference, self._plain_kv, self._files.layout),
            self._layer_run(quantized, self._served_kv, self._source.layout),
            self._layer_run(reference, self._served_kv, self._files.layout),
            count,
        )

    def logits(self, hidden: Tensor, *, quantized: bool) -> Tensor:
        if self._head is None:
            name = "lm_head" if "lm_head" in self._source.layout.parts else "embedding"
            self._head = self._read(self._source, name)
        normed = torch.empty_like(hidden)
        rms_norm(hidden, self._norm, self._shape.norm_eps, normed)
        return torch.mm(normed, self._head.t()).float()

    def _layer(self, source: FileSource, index: int, *, dequantized: bool) -> tuple[LayerWeights[GpuProduct], set[str]]:
        """A layer on the device, and the names of the quantised matrices. `dequantized`: they are multiplied in the
        model's dtype, by plain torch."""
        start, layout = source.layout.section(f"layers.{index}.")
        slab = self._fill(source, start, layout).to(self._device)

        def product(matrix: Tensor | QuantizedMatrix, format: MatrixFormat | None, bias: Tensor | None) -> GpuProduct:
            if isinstance(matrix, QuantizedMatrix) and dequantized:
                assert format is not None
                columns = matrix.data.shape[1] * (2 if format.element == "int4" else 1)
                return PlainProduct(dequantize_matrix(matrix, format, columns).to(self._dtype), bias)
            return make_product(matrix, format, bias)

        make = section_product(slab, layout, product)
        weights = assemble_layer(self._shape, index, lambda name: layout.view(slab, name), make)
        return weights, set(layout.formats)

    def _layer_run(self, layer: LayerWeights[GpuProduct], kv: KvLayout, slab: SlabLayout) -> LayerRun:
        """The layer, over at most ERROR_WINDOWS windows that share no pages."""
        weights = Weights(self._norm[:0].view(0, 1), (layer,), self._norm, PlainProduct(self._norm[:, None], None))
        page_bytes = page_size([(self._one_layer, kv)], self._dtype)
        pages = -(-WINDOW_TOKENS // kv.tokens_per_page(page_bytes))
        arena = torch.zeros(ERROR_WINDOWS * pages, page_bytes, dtype=torch.uint8, device=self._device)
        decoder = GpuDecoder(self._one_layer, self._base, weights, arena, kv)
        processors = torch.cuda.get_device_properties(self._device).multi_processor_count
        limits = LayoutLimits(ROWS, ERROR_WINDOWS, ERROR_WINDOWS * pages)
        shape = self._one_layer
        layouts = StepLayouts(limits, 1, shape.heads, shape.kv_heads, processors * PROGRAMS_PER_SM)
        sizes = StepSizes(layouts.words_max(), ROWS, ERROR_WINDOWS, ERROR_WINDOWS)
        entries = torch.zeros(1, 1, 1, 2, dtype=torch.int64, device=self._device)
        table = TileTable(torch.empty(0, dtype=self._dtype, device=self._device), entries)
        small = dataclasses.replace(shape, vocab=1)  # no logits are computed
        form = step_form(small, self._dtype, table, sizes, processors, slab, kv_fp8=kv.is_fp8)
        memory = StepMemories(self._device).place(form)
        packer = Packer(sizes.words, 1, pinned=False)

        def run(hidden: Tensor) -> Tensor:
            step = PackedStep(window_chunks(hidden.shape[0], pages), decoder.tokens_per_page)
            layout = self._send(step, packer, layouts, memory.packed)
            work = memory.work.hidden[: step.rows]
            work.copy_(hidden.flatten(0, 1))
            decoder.run_layers(views(layout, memory.packed), memory, None, decodes=False)
            return work.clone().view(hidden.shape)

        return run

    def _send(self, step: PackedStep, packer: Packer, layouts: StepLayouts, packed: Tensor) -> StepLayout:
        shape = self._one_layer
        blocks = prefill_blocks(step.counts, step.kv_lens, shape.heads, shape.kv_heads, programs=layouts.programs)
        layout = layouts.exact(step.rows, len(step.chunks), len(blocks), step.page_count, prefill=True)
        extra = {
            "query_blocks": blocks,
            "lora": np.zeros(layout.sizes.lora_words, np.int32),
            "adapted": np.zeros(layout.sizes.rows, np.int32),
        }
        packer.send(layout, step, {}, extra, packed)
        return layout

    def _read(self, source: FileSource, name: str) -> Tensor:
        """One tensor that is not quantised, on the device."""
        start, layout = source.layout.section(name)
        return layout.view(self._fill(source, start, layout).to(self._device), name)

    def _fill(self, source: FileSource, start: int, layout: SlabLayout) -> Tensor:
        slab = torch.empty(layout.bytes, dtype=torch.uint8)
        source.fill(start, slab)
        return slab


@contextmanager
def memory_is_needed() -> Iterator[None]:
    """Refuses the model if the block finds too little device memory. Afterwards the memory is free for others."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelRefused(NO_MEMORY) from error
    finally:
        torch.cuda.empty_cache()
