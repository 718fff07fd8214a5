"""Random weights in a model's shape, for benchmarks: the arithmetic of a real model, meaningless text.

Only `dummy = true` in the configuration selects them; a served model must never fall back to them.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.cpu_loading import head_format, quantized_product
from engine.models.linear import CpuProduct, Linear
from engine.models.matrices import quantize_matrix
from engine.models.quantized import formats_on_loading
from engine.models.weights import Weights, assemble, fused_tensors

# As transformers initialises; activations stay finite over many layers.
STD = 0.02


def dummy_digest(model: str) -> str:
    """The digest of a model without files: from its name, so that dummy models do not share prefix-cache entries."""
    return hashlib.sha256(model.encode()).hexdigest()


def dummy_vector(name: str) -> float:
    """The value of all elements of a one-dimensional tensor, by its name in `weights.fused_tensors`."""
    return 0.0 if name.endswith("bias") else 1.0


def dummy_weights(config: DecoderConfig, dtype: torch.dtype, quantize: str = "none") -> Weights[CpuProduct]:
    """On the CPU: matrices normal with deviation STD, norms 1, biases 0. The same for each call with one shape."""
    generator, tied = torch.Generator().manual_seed(0), bool(config.tied)
    known = {fused.name: fused for fused in fused_tensors(config, tied=tied)}
    formats = formats_on_loading(config, quantize)
    embedding: list[Tensor] = []

    def draw(name: str) -> Tensor:
        tensor = torch.empty(known[name].shape, dtype=dtype)
        if tensor.dim() == 1:
            return tensor.fill_(dummy_vector(name))
        tensor.normal_(0, STD, generator=generator)
        if name == "embedding":
            embedding.append(tensor)
        return tensor

    def product(name: str, bias: Tensor | None) -> CpuProduct:
        weight = embedding[0] if name == "embedding" else draw(name)
        format = formats.get(name) if known[name].is_linear else head_format(quantize)
        if format is None:
            return Linear(weight, bias)
        return quantized_product(quantize_matrix(weight, format, name), format, known[name], dtype, bias)

    return assemble(config, draw, product, tied=tied)
