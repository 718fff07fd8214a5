"""Random weights in a model's shape, for benchmarks: arithmetic as a real model's, text that means nothing.

It must never be what a served model silently falls back to: a configuration asks for it by name.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.weights import Weights, assemble, fused_tensors

# As transformers initialises: small enough that activations stay finite over many layers.
STD = 0.02


def dummy_digest(model: str) -> str:
    """There is no content to name: by the model's name, so that what one has computed is no other's."""
    return hashlib.sha256(model.encode()).hexdigest()


def dummy_vector(name: str) -> float:
    """What each number is of a tensor of one dimension, by its name among `weights.fused_tensors`."""
    return 0.0 if name.endswith("bias") else 1.0


def dummy_weights(config: DecoderConfig, dtype: torch.dtype) -> Weights:
    """In a CPU's memory: normal weights of deviation 0.02, norms of one, biases of zero; the same for one shape."""
    generator, tied = torch.Generator().manual_seed(0), bool(config.tied)
    shapes = {fused.name: fused.shape for fused in fused_tensors(config, tied=tied)}

    def draw(name: str) -> Tensor:
        tensor = torch.empty(shapes[name], dtype=dtype)
        return tensor.fill_(dummy_vector(name)) if tensor.dim() == 1 else tensor.normal_(0, STD, generator=generator)

    return assemble(config, draw, tied=tied)
