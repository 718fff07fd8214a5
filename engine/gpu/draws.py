"""The draw parameters of a step's rows as arrays for the device, and the requested logprobs, of drawn ids and of
prompts, on their way to the host."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.compute.logprobs import LOGPROB_MIN, ReportedRows, prompt_parts, prompt_report, reported_ids
from engine.compute.penalties import Draw
from engine.gpu.packing import PackedStep
from engine.protocol.frames import Logprobs, PromptLogprobs
from engine.step import UNDRAWABLE, Chunk
from kernels.sample import Mode


def draw_fields(draws: Many[Draw], vocab: int) -> dict[str, NDArray[Any]]:
    """The sampling fields of a packed step, by place in the order of samples. A top_k of `vocab` or more is stored as 0
    (off). Raises for a value that does not fit its array's type; `undrawable` then finds the row."""
    sampling = [draw.sampling for draw in draws]
    # A seed is any 64 bits: numpy takes them unsigned.
    return {
        "seeds": np.array([own.seed & (1 << 64) - 1 for own in sampling], np.uint64),
        "choices": np.array([own.choice for own in sampling], np.int32),
        "draw_positions": np.array([draw.position for draw in draws], np.int32),
        "top_ks": np.array([own.top_k if own.top_k < vocab else 0 for own in sampling], np.int32),
        "temperatures": np.array([own.temperature for own in sampling], np.float32),
        "top_ps": np.array([own.top_p for own in sampling], np.float32),
        "min_ps": np.array([own.min_p for own in sampling], np.float32),
    }


def undrawable(draws: Many[Draw], vocab: int) -> dict[int, str]:
    """Call it after `draw_fields` raised. The error of each draw that also raises alone, by place."""
    found = {}
    for place, draw in enumerate(draws):
        try:
            draw_fields([draw], vocab)
        except Exception as error:  # noqa: BLE001 - one row's edge: its request ends, its neighbours are drawn
            found[place] = f"{UNDRAWABLE}: {type(error).__name__}: {error}"
    return found


def mode_of(draws: Many[Draw], vocab: int) -> Mode:
    """The most expensive mode that a row needs."""
    mode = Mode.GREEDY
    for draw in draws:
        sampling = draw.sampling
        if sampling.temperature > 0:
            if sampling.top_p < 1 or 0 < sampling.top_k < vocab or sampling.min_p > 0:
                return Mode.FILTERED
            mode = Mode.PLAIN
    return mode


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Logprobs on their way to the host: for each of `places` (in the order of samples), the drawn id, then the
    likeliest."""

    places: list[int]
    counts: list[int]  # likeliest ids requested for each
    ids: Tensor  # [places, 1 + most], page-locked
    values: Tensor  # [places, 1 + most], page-locked

    def by_place(self) -> dict[int, Logprobs]:
        """Log probabilities by place. Valid once the copies are completed."""
        ids, values = self.ids.tolist(), self.values.tolist()
        return {
            place: list(zip(ids[i], values[i], strict=True))[: 1 + count]
            for i, (place, count) in enumerate(zip(self.places, self.counts, strict=True))
        }


def report_logprobs(logits: Tensor, drawn: Tensor, draws: Many[Draw]) -> PendingLogprobs | None:
    """Like engine.compute.logprobs, without waiting: log softmax of the raw `logits` [samples, vocab] for the rows that
    request it, of the ids in `drawn` [samples] (a failed row's −1 is read as 0, and its report is dropped with it)."""
    places = [place for place, draw in enumerate(draws) if draw.sampling.logprobs >= 0]
    if not places:
        return None
    counts = [draws[place].sampling.logprobs for place in places]
    rows = torch.tensor(places).pin_memory().to(logits.device, non_blocking=True)
    raw = logits.index_select(0, rows).float()
    total = raw.logsumexp(dim=-1, keepdim=True)
    own = drawn.index_select(0, rows).clamp(min=0).long()[:, None]
    likeliest, their_ids = raw.topk(min(max(counts), raw.shape[1]))
    values = (torch.cat((raw.gather(1, own), likeliest), dim=1) - total).clamp(min=LOGPROB_MIN)
    ids = torch.cat((own, their_ids), dim=1)
    return PendingLogprobs(places, counts, to_host(ids), to_host(values))


@dataclass(frozen=True, slots=True)
class PendingPrompts:
    """Log probabilities of prompts on their way to the host, of these chunks in order."""

    chunks: list[Chunk]
    report: ReportedRows  # page-locked

    def parts(self) -> list[PromptLogprobs | None]:
        """The log probabilities of each chunk; None: a log probability of it is no finite number. Valid once the copies
        are completed."""
        return prompt_parts(self.chunks, self.report)


def report_prompts(
    packed: PackedStep, logits_of: Callable[[Tensor], Tensor], device: torch.device
) -> PendingPrompts | None:
    """Launch the computation of a step's prompt logprobs, behind its forward pass and without waiting. `logits_of`: the
    logits [reports, vocab] of rows int64 [reports]. None: the step reports none."""
    rows = packed.reported_rows()
    if not rows:
        return None
    chunks = [chunk for chunk in packed.chunks if chunk.reported()]
    ids, most = reported_ids(chunks)
    numbers = torch.tensor([rows, ids]).pin_memory().to(device, non_blocking=True)
    found = prompt_report(logits_of(numbers[0]), numbers[1], most)
    return PendingPrompts(chunks, ReportedRows(*map(to_host, found)))


@dataclass(frozen=True, slots=True)
class PendingVectors:
    """Pooled sums on their way to the host, of these chunks in order."""

    chunks: list[Chunk]
    sums: Tensor  # float32 [chunks, hidden], page-locked


def pool_prompts(packed: PackedStep, sums_of: Callable[[list[slice]], Tensor]) -> PendingVectors | None:
    """Launch the pooling of a step, behind its forward pass and without waiting. `sums_of`: float32 [spans, hidden], of
    spans of the step's rows. None: the step pools nothing."""
    pooling = packed.pooled_rows()
    if not pooling:
        return None
    return PendingVectors([chunk for chunk, _ in pooling], to_host(sums_of([span for _, span in pooling])))


def to_host(tensor: Tensor) -> Tensor:
    """A page-locked copy, valid once the stream has executed it."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
