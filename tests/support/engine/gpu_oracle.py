"""The oracle on a GPU: at which positions its greedy id differs from the engine's, and by which gap of logits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from support import oracle


@dataclass
class Compared:
    """The comparison of one prompt: the first position at which the oracle would draw another id, the gap of its logits
    there, and the widest gap."""

    first: int | None
    gap: float
    first_gap: float = 0.0


def compare(model: Any, prompt: list[int], made: list[int]) -> Compared:
    ids = torch.tensor([prompt + made], device="cuda")
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    best = logits.max(dim=-1).values
    gaps = best - logits.gather(1, torch.tensor(made, device="cuda")[:, None])[:, 0]
    wrong = (gaps > 0).nonzero()[:, 0].tolist()
    if not wrong:
        return Compared(None, float(gaps.max()))
    return Compared(wrong[0], float(gaps.max()), float(gaps[wrong[0]]))


def load_oracle(directory: Path, dtype: torch.dtype, adapter: Path | None = None) -> Any:
    return oracle.load(directory, adapter).to(device="cuda", dtype=dtype)
