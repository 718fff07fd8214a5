"""What the model itself thought of an id that was drawn, and of the likeliest, whatever the request made of it.

It must never change a logit or know how the id was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.compute.penalties import Draw
from engine.protocol.frames import Logprobs

# JSON has no infinity. OpenAI's API says this for what is as good as impossible.
LOGPROB_MIN = -9999.0


def logprobs(logits: Tensor, draws: Many[Draw], ids: Many[int | None]) -> dict[int, Logprobs]:
    """By row, for rows that requested logprobs and drew an id: log softmax of the raw `logits` [rows, vocab], before
    biases, penalties and temperature (vLLM's default too)."""
    rows = [row for row, draw in enumerate(draws) if draw.sampling.logprobs >= 0 and ids[row] is not None]
    if not rows:
        return {}
    raw = logits[torch.tensor(rows, device=logits.device)].float()
    total = raw.logsumexp(dim=-1, keepdim=True)
    own = torch.tensor([[ids[row]] for row in rows], device=logits.device)
    most = min(max(draws[row].sampling.logprobs for row in rows), raw.shape[1])
    likeliest, their_ids = raw.topk(most)
    reported = torch.cat((own, their_ids), dim=1).tolist()
    values = (torch.cat((raw.gather(1, own), likeliest), dim=1) - total).clamp(min=LOGPROB_MIN).tolist()
    return {
        row: list(zip(reported[i], values[i], strict=True))[: 1 + draws[row].sampling.logprobs]
        for i, row in enumerate(rows)
    }
