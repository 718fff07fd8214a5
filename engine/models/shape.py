"""What is derived from a model's shape for every device: names of stacked projections, rotary frequencies, and the
shape that adapters are checked against.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from adapters.files.spec import BaseShape
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


def base_shape(directory: Path) -> BaseShape:
    return BaseShape.from_config(json.loads((directory / "config.json").read_bytes()))
