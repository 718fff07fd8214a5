"""Without a CUDA device, kernels run in Triton's interpreter, which has to be asked for before triton is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
