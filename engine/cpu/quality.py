"""A model in two versions on a CPU, a layer at a time, for the quality gate."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.compute.quality import WINDOW_TOKENS, LayerRun, window_chunks
from engine.compute.shared import kv_layout, page_size
from engine.cpu.batch import pack_step
from engine.cpu.decoder import Decoder, PagedKv
from engine.models.config import DecoderConfig
from engine.models.cpu_loading import CpuWeightReader
from engine.models.linear import CpuProduct
from engine.models.weights import LayerWeights, Weights, assemble_layer
from engine.protocol.config import ModelConfig
from kernels.kv_layout import KvLayout


class CpuMeasuredModel:
    """Implements engine.compute.quality.MeasuredModel."""

    def __init__(self, model: ModelConfig, shape: DecoderConfig, dtype: torch.dtype) -> None:
        """Raises ModelRefused, OSError."""
        self.layers = shape.layers
        self.vocab = shape.vocab
        self.may_keep_layers = model.quantize != "none"
        self._model = model
        self._shape = shape
        self._dtype = dtype
        self._one_layer = dataclasses.replace(shape, layers=1)
        with self._open() as reader:
            self._embedding = reader.read_tensor("embedding")
            self._norm = reader.read_tensor("norm")
            head = "embedding" if reader.tied else "lm_head"
            self._head = reader.read_product(head, None)
            self._reference_head = reader.read_reference(head, None)

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._embedding)

    def load_layer(self, index: int) -> tuple[LayerRun, LayerRun, LayerRun, int]:
        with self._open() as reader:
            quantized = assemble_layer(self._shape, index, reader.read_tensor, reader.read_product)
            reference = assemble_layer(self._shape, index, reader.read_tensor, reader.read_reference)
            matrices = sum(name.startswith(f"layers.{index}.") for name in reader.matrices)
        plain = self._one_layer.kv_layout(str(self._dtype).removeprefix("torch."))
        served = kv_layout(self._model, self._one_layer, self._dtype)
        return (
            self._layer_run(reference, plain),
            self._layer_run(quantized, served),
            self._layer_run(reference, served),
            matrices,
        )

    def logits(self, hidden: Tensor, *, quantized: bool) -> Tensor:
        normed = F.rms_norm(hidden, (self._shape.hidden,), self._norm, self._shape.norm_eps)
        head = self._head if quantized else self._reference_head
        return head(normed, normed.new_empty(normed.shape[0], self.vocab)).float()

    def _open(self) -> CpuWeightReader:
        return CpuWeightReader(Path(self._model.path), self._shape, self._dtype, quantize=self._model.quantize)

    def _layer_run(self, layer: LayerWeights[CpuProduct], layout: KvLayout) -> LayerRun:
        """The layer, over windows that share no pages."""
        weights = Weights(self._embedding, (layer,), self._norm, self._reference_head)
        page_bytes = page_size([(self._one_layer, layout)], self._dtype)
        pages = -(-WINDOW_TOKENS // layout.tokens_per_page(page_bytes))

        def run(hidden: Tensor) -> Tensor:
            windows = hidden.shape[0]
            arena = torch.zeros(windows * pages, page_bytes, dtype=torch.uint8)
            decoder = Decoder(self._one_layer, weights, PagedKv.of(arena, layout))
            batch = pack_step(window_chunks(windows, pages), decoder.kv.tokens_per_page, hidden.device, self._dtype)
            return decoder.run_layers(hidden.flatten(0, 1).clone(), batch, None).view(hidden.shape)

        return run
