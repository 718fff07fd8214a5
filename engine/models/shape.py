"""Values that every device derives from a model's shape: names of stacked projections, and rotary frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.models.config import DecoderConfig

# Projections that are one stacked matrix, in the order of its rows.
QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")


def rotary_frequencies(config: DecoderConfig) -> Tensor:
    """Radians per position [head_dim / 2], float32, after Llama 3's scaling if the model has it."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)  # over the original context
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
