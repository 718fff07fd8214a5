"""Pooling: the sum of hidden states after the final norm, in float32.

The scheduler adds the sums of a prompt's chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pooled_sum(hidden: Tensor) -> Tensor:
    """float32 [hidden]: the sum of the rows of `hidden` [rows, hidden], on its device and without waiting for it."""
    return hidden.sum(dim=0, dtype=torch.float32)
