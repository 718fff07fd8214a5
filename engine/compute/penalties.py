"""Changes of the logits before an id is drawn: stop ids excluded, biases, penalties, ids that a mask excludes.

Stateless: the changes follow from the ids of prompt and output alone, so a preempted request continues unchanged.
Temperature and randomness are the samplers' part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Many
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.protocol.frames import Sampling


class Draw(NamedTuple):
    """How one row is drawn: `position` is the new token's index in its sequence, and the ids precede it. `allowed`: the
    ids that its mask allows, int32 words as in `engine.step.Masks`; None: all."""

    sampling: Sampling
    position: int
    prompt_ids: Many[int] = ()
    output_ids: Many[int] = ()
    stop_ids: Collection[int] = ()
    allowed: NDArray[Any] | None = None


def penalize(logits: Tensor, draws: Many[Draw]) -> Tensor:
    """`logits` [rows, vocab] unchanged if no request has penalties or biases, otherwise a changed float32 copy.

    In vLLM's order: stop ids are excluded until `min_tokens` ids are made; `logit_bias` is added; logits of ids in the
    prompt or the output are divided by `repetition_penalty` if positive and multiplied if not; from each id of the
    output `frequency_penalty` is subtracted once per occurrence, and `presence_penalty` once. Last, the logits of ids
    that the mask does not allow become −∞."""
    rows = [row for row, draw in enumerate(draws) if changes_logits(draw) or draw.allowed is not None]
    if not rows:
        return logits
    changed = logits.to(torch.float32, copy=True)
    flat, vocab = changed.view(-1), changed.shape[1]
    for change, column in ((biases, torch.add), (_repeated, _discourage), (_penalties, torch.sub)):
        found = [(row, numbers) for row in rows if (numbers := change(draws[row], vocab))]
        if found:
            places = [row * vocab + index for row, numbers in found for index in numbers]
            index = torch.tensor(places, device=flat.device)
            flat[index] = column(flat[index], flat.new_tensor([x for _, numbers in found for x in numbers.values()]))
    for row in rows:
        if (allowed := draws[row].allowed) is not None:
            changed[row].masked_fill_(~unpack_mask(allowed, vocab).to(changed.device), -math.inf)
    return changed


def unpack_mask(allowed: NDArray[Any], vocab: int) -> Tensor:
    """bool [vocab] of a row's words, int32 [ceil(vocab / 32)], the least significant bit first."""
    octets = np.ascontiguousarray(allowed, dtype="<i4").view(np.uint8)
    return torch.from_numpy(np.unpackbits(octets, count=vocab, bitorder="little").view(np.bool_))


def has_penalties(sampling: Sampling) -> bool:
    """Whether the draw depends on the ids before it."""
    return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def changes_logits(draw: Draw) -> bool:
    """Whether the request changes this row's logits, apart from a mask."""
    sampling = draw.sampling
    return bool(sampling.logit_bias) or len(draw.output_ids) < sampling.min_tokens or has_penalties(sampling)


def biases(draw: Draw, vocab: int) -> Mapping[int, float]:
    """Added numbers by id: the request's, and −∞ for its stop ids until `min_tokens` ids are made."""
    if len(draw.output_ids) >= draw.sampling.min_tokens:
        return draw.sampling.logit_bias
    # A stop id beyond the vocabulary is ignored: it is never drawn.
    held_back = dict.fromkeys((i for i in draw.stop_ids if 0 <= i < vocab), -math.inf)
    return {**draw.sampling.logit_bias, **held_back}


def _repeated(draw: Draw, vocab: int) -> Mapping[int, float]:
    """Divisors by id."""
    penalty = draw.sampling.repetition_penalty
    return {} if penalty == 1 else dict.fromkeys((*draw.prompt_ids, *draw.output_ids), penalty)


def _penalties(draw: Draw, vocab: int) -> Mapping[int, float]:
    """Subtracted numbers by id."""
    once, each = draw.sampling.presence_penalty, draw.sampling.frequency_penalty
    if not once and not each:
        return {}
    return {index: once + each * count for index, count in Counter(draw.output_ids).items()}


def _discourage(logits: Tensor, penalties: Tensor) -> Tensor:
    return torch.where(logits > 0, logits / penalties, logits * penalties)
