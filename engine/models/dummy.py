"""Random weights in a model's shape, for benchmarks: arithmetic as a real model's, text that means nothing.

It must never be what a served model silently falls back to: a configuration asks for it by name.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.linear import Linear
from engine.models.weights import LayerWeights, Weights

# As transformers initialises: small enough that activations stay finite over many layers.
STD = 0.02


def dummy_digest(model: str) -> str:
    """There is no content to name: by the model's name, so that what one has computed is no other's."""
    return hashlib.sha256(model.encode()).hexdigest()


def dummy_weights(config: DecoderConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """Normal weights of deviation 0.02, norms of one, biases of zero; made on the device, the same for one seed."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(out: int, inner: int) -> Tensor:
        return torch.empty(out, inner, dtype=dtype, device=device).normal_(0, STD, generator=generator)

    def ones(width: int) -> Tensor:
        return torch.ones(width, dtype=dtype, device=device)

    qkv_size = config.q_size + 2 * config.kv_size

    def layer() -> LayerWeights:
        bias = torch.zeros(qkv_size, dtype=dtype, device=device) if config.qkv_bias else None
        return LayerWeights(
            input_norm=ones(config.hidden),
            qkv=Linear(matrix(qkv_size, config.hidden), bias),
            q_norm=ones(config.head_dim) if config.qk_norm else None,
            k_norm=ones(config.head_dim) if config.qk_norm else None,
            o=Linear(matrix(config.hidden, config.q_size)),
            post_norm=ones(config.hidden),
            gate_up=Linear(matrix(2 * config.intermediate, config.hidden)),
            down=Linear(matrix(config.hidden, config.intermediate)),
        )

    embedding = matrix(config.vocab, config.hidden)
    layers = tuple(layer() for _ in range(config.layers))
    head = embedding if config.tied else matrix(config.vocab, config.hidden)
    return Weights(embedding, layers, ones(config.hidden), Linear(head))
