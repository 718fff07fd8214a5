"""Logits as a request wants them changed before its id is drawn: stop ids held back, biases, penalties.

Nothing is remembered between steps: all of it follows from the prompt's and the output's ids, so a preempted request
goes on as if nothing had been. It must never know temperature or chance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Many
from typing import NamedTuple

import torch
from torch import Tensor

from engine.protocol.frames import Sampling


class Draw(NamedTuple):
    """How one row is drawn, the index that the new token will have in its sequence, and the ids before it."""

    sampling: Sampling
    position: int
    prompt_ids: Many[int] = ()
    output_ids: Many[int] = ()
    stop_ids: Collection[int] = ()


def penalize(logits: Tensor, draws: Many[Draw]) -> Tensor:
    """`logits` [rows, vocab] themselves when no row asks for a change, else a float32 copy, changed where asked.

    In vLLM's order: stop ids are ruled out until `min_tokens` ids are made; `logit_bias` is added; what the prompt or
    the output holds is divided by `repetition_penalty` where positive and multiplied where not; each id of the output
    loses `frequency_penalty` for every time it occurs, and `presence_penalty` once."""
    rows = [row for row, draw in enumerate(draws) if _asks(draw)]
    if not rows:
        return logits
    changed = logits.to(torch.float32, copy=True)
    flat, vocab = changed.view(-1), changed.shape[1]
    for change, column in ((_biases, torch.add), (_repeated, _discourage), (_penalties, torch.sub)):
        found = [(row, numbers) for row in rows if (numbers := change(draws[row], vocab))]
        if found:
            places = [row * vocab + index for row, numbers in found for index in numbers]
            index = torch.tensor(places, device=flat.device)
            flat[index] = column(flat[index], flat.new_tensor([x for _, numbers in found for x in numbers.values()]))
    return changed


def changes(draw: Draw, vocab: int) -> list[tuple[list[int], list[float]]]:
    """What `penalize` prepares on the host for one row, as (ids, numbers). Raises as `penalize` would."""
    found = [change(draw, vocab) for change in (_biases, _repeated, _penalties)] if _asks(draw) else []
    for numbers in found:
        if numbers and not 0 <= min(numbers) <= max(numbers) < vocab:
            raise IndexError(f"an id is outside the vocabulary of {vocab}")
    return [(list(map(int, numbers)), list(map(float, numbers.values()))) for numbers in found]


def _asks(draw: Draw) -> bool:
    sampling = draw.sampling
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or len(draw.output_ids) < sampling.min_tokens
        or bool(sampling.logit_bias)
    )


def _biases(draw: Draw, vocab: int) -> Mapping[int, float]:
    """What is added, by id."""
    if len(draw.output_ids) >= draw.sampling.min_tokens:
        return draw.sampling.logit_bias
    # An id beyond the vocabulary may well be among the caller's stop ids: it is never drawn anyway.
    held_back = dict.fromkeys((i for i in draw.stop_ids if 0 <= i < vocab), -math.inf)
    return {**draw.sampling.logit_bias, **held_back}


def _repeated(draw: Draw, vocab: int) -> Mapping[int, float]:
    """The repetition penalty, by id."""
    penalty = draw.sampling.repetition_penalty
    return {} if penalty == 1 else dict.fromkeys((*draw.prompt_ids, *draw.output_ids), penalty)


def _penalties(draw: Draw, vocab: int) -> Mapping[int, float]:
    """What is subtracted, by id."""
    once, each = draw.sampling.presence_penalty, draw.sampling.frequency_penalty
    if not once and not each:
        return {}
    return {index: once + each * count for index, count in Counter(draw.output_ids).items()}


def _discourage(logits: Tensor, penalties: Tensor) -> Tensor:
    return torch.where(logits > 0, logits / penalties, logits * penalties)
