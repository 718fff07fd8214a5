"""Random weights in a model's shape, for benchmarks: the arithmetic of a real model, meaningless text.

Only `dummy = true` in the configuration selects them; a served model must never fall back to them.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.weights import Weights, assemble, fused_tensors

# As transformers initialises; activations stay finite over many layers.
STD = 0.02


def dummy_digest(model: str) -> str:
    """The digest of a model without files: from its name, so that dummy models do not share prefix-cache entries."""
    return hashlib.sha256(model.encode()).hexdigest()


def dummy_vector(name: str) -> float:
    """The value of all elements of a one-dimensional tensor, by its name in `weights.fused_tensors`."""
    return 0.0 if name.endswith("bias") else 1.0


def dummy_weights(config: DecoderConfig, dtype: torch.dtype) -> Weights:
    """On the CPU: matrices normal with deviation STD, norms 1, biases 0. The same for each call with one shape."""
    generator, tied = torch.Generator().manual_seed(0), bool(config.tied)
    shapes = {fused.name: fused.shape for fused in fused_tensors(config, tied=tied)}

    def draw(name: str) -> Tensor:
        tensor = torch.empty(shapes[name], dtype=dtype)
        return tensor.fill_(dummy_vector(name)) if tensor.dim() == 1 else tensor.normal_(0, STD, generator=generator)

    return assemble(config, draw, tied=tied)
