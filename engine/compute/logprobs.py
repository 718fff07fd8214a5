"""The model's own log probabilities of drawn ids, of prompt tokens, and of the likeliest ids beside them.

They are of the raw logits, before biases, penalties and temperature. This module never changes a logit.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

import torch
from torch import Tensor

from engine.compute.penalties import Draw
from engine.protocol.frames import Logprobs, PromptLogprobs
from engine.step import Chunk

# JSON has no infinity. OpenAI's API has this value for a token of probability 0.
LOGPROB_MIN = -9999.0
# Error of a prompt token whose log probability cannot be computed.
NO_LOGPROB = "the model's logits are not finite numbers"
# Rows whose logits are in float32 at once: 17 MB for 128,256 ids.
REPORT_ROWS = 32


class ReportedRows(NamedTuple):
    """Log probabilities of rows of logits: int32 [rows, 1 + most] ids, each row's own id first, then the likeliest;
    their log probabilities, float32 [rows, 1 + most]; int32 [rows] ranks of the own ids: 1 + the number of likelier
    ids."""

    ids: Tensor
    values: Tensor
    ranks: Tensor


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


def prompt_report(logits: Tensor, own: Tensor, most: int) -> ReportedRows:
    """The log probabilities of the ids `own` [rows] int64 by raw `logits` [rows, vocab], and of the `most` likeliest
    ids. It does not wait for the device. At most REPORT_ROWS rows are in float32 at a time."""
    most = min(most, logits.shape[1])
    parts = []
    for start in range(0, logits.shape[0], REPORT_ROWS):
        raw = logits[start : start + REPORT_ROWS].float()
        mine = own[start : start + REPORT_ROWS, None]
        value = raw.gather(1, mine)
        likeliest, their_ids = raw.topk(most)
        values = torch.cat((value, likeliest), dim=1) - raw.logsumexp(dim=-1, keepdim=True)
        ranks = (raw > value).sum(dim=-1, dtype=torch.int32) + 1
        parts.append((torch.cat((mine, their_ids), dim=1).int(), values.clamp(min=LOGPROB_MIN), ranks))
    return ReportedRows(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def reported_ids(chunks: Many[Chunk]) -> tuple[list[int], int]:
    """The prompt tokens that follow the reported tokens of the chunks, in order; and the largest number of likeliest
    ids that a chunk's request asks for beside them."""
    found = [(chunk, chunk.reported()) for chunk in chunks]
    ids = [index for chunk, rows in found for index in chunk.sequence.prompt_ids[rows.start + 1 : rows.stop + 1]]
    return ids, max([chunk.sequence.sampling.prompt_logprobs for chunk, rows in found if rows], default=0)


def prompt_parts(chunks: Many[Chunk], report: ReportedRows) -> list[PromptLogprobs | None]:
    """For each chunk, the log probabilities for its frame; None: a log probability of it is no finite number. `report`:
    of the reported tokens of all `chunks`, in order, on the host."""
    parts: list[PromptLogprobs | None] = []
    row = 0
    for chunk in chunks:
        rows = chunk.reported()
        width = min(1 + chunk.sequence.sampling.prompt_logprobs, report.ids.shape[1])
        ids, values, ranks = (tensor[row : row + len(rows)] for tensor in report)
        row += len(rows)
        if not values.isfinite().all():
            parts.append(None)
            continue
        packed = [tensor.numpy().tobytes() for tensor in (ids[:, :width], values[:, :width], ranks)]
        parts.append(PromptLogprobs(rows.start + 1, width, *packed))
    return parts
