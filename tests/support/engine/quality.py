"""The quality gate on a short text: the same measurement, in a fraction of a second for a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import engine.compute.quality
from engine.compute.quality import held_out_ids
from engine.protocol.config import QualityLimits

# Limits that every model passes. The default limits would refuse random models of a few layers.
ANY_QUALITY = QualityLimits(mean_kl_max=100, top1_min=0, layer_error_max=100)


def measure_few_windows(patch: pytest.MonkeyPatch, windows: int = 1) -> None:
    """Let the gate measure the first windows of its text only."""

    def few_ids(directory: Path, vocab: int) -> torch.Tensor:
        return held_out_ids(directory, vocab, windows)

    patch.setattr(engine.compute.quality, "held_out_ids", few_ids)
