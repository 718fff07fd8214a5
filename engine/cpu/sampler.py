"""From logits to ids: greedy, or temperature, min-p, top-k and top-p, each row drawn by its own random number.

A row's draw depends on (seed, choice, position) alone, so neighbours in the batch never change it. The draw is an
exponential race: each id has a time, shorter on average the likelier the id is, and the shortest wins. So logits that
differ by a rounding error, as they do with the size of a batch, change an id about as rarely as they change its
probability; a point on the cumulative sum would change it far more often. It must never keep state between steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.compute.penalties import Draw, penalize
from kernels.reference_sample import exponentials, row_key

# Rows with min-p, top-k or top-p first sort the CANDIDATES likeliest ids; a wider nucleus sorts all ids.
CANDIDATES = 1024
# Other rows compute the FAVOURITES likeliest ids one by one, and the other ids only if one of these is drawn.
FAVOURITES = 64


def sample(logits: Tensor, draws: Many[Draw]) -> list[int | None]:
    """One id per row of `logits` [rows, vocab], which are not changed; None for a row whose largest logit is not finite
    (NaN, +∞, or −∞ everywhere)."""
    assert logits.shape[0] == len(draws)
    logits = penalize(logits, draws)
    largest, ids = logits.max(dim=-1)
    plain: list[int] = []
    filtered: list[int] = []
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        if sampling.temperature > 0:
            narrowed = sampling.top_p < 1 or 0 < sampling.top_k < logits.shape[1] or sampling.min_p > 0
            (filtered if narrowed else plain).append(row)
    for rows, choose in ((plain, _draw_plain), (filtered, _draw_filtered)):
        if rows:
            index = torch.tensor(rows, device=logits.device)
            own = [draws[row] for row in rows]
            ids[index] = choose(_probabilities(logits[index], largest[index], own), own)
    return [i if usable else None for i, usable in zip(ids.tolist(), largest.isfinite().tolist(), strict=True)]


def _probabilities(logits: Tensor, largest: Tensor, draws: list[Draw]) -> Tensor:
    """[rows, vocab] float64. The maximum is subtracted first: a tiny temperature must not overflow."""
    temperatures = _column([draw.sampling.temperature for draw in draws], logits)
    return ((logits.double() - largest[:, None].double()) / temperatures).softmax(dim=-1)


def _draw_plain(probabilities: Tensor, draws: list[Draw]) -> Tensor:
    """The FAVOURITES likeliest ids race one by one, all other ids as one; only if that one wins, they race among
    themselves."""
    vocab = probabilities.shape[1]
    kept, ids = probabilities.topk(min(FAVOURITES, vocab))
    times, found = _exponentials(draws, ids).div_(kept).min(dim=-1, keepdim=True)
    drawn = ids.gather(1, found)[:, 0]
    if kept.shape[1] == vocab:
        return drawn
    others = (1 - kept.sum(dim=-1, keepdim=True)).clamp(min=0)
    rows = (_exponentials(draws, ids.new_tensor([vocab])).div_(others) < times).nonzero()[:, 0]
    if rows.numel():
        left = probabilities[rows].scatter(1, ids[rows], 0.0)
        everyone = torch.arange(vocab, device=ids.device)
        drawn[rows] = _exponentials([draws[row] for row in rows.tolist()], everyone).div_(left).argmin(dim=-1)
    return drawn


def _draw_filtered(probabilities: Tensor, draws: list[Draw]) -> Tensor:
    """Filters in vLLM's order: min_p keeps ids at least min_p times as likely as the likeliest; of these, top_k keeps
    the k likeliest; of these, top_p keeps the fewest whose part of their sum is at least top_p."""
    ids, wide = _draw_among(probabilities, draws, min(CANDIDATES, probabilities.shape[1]))
    rows = wide.nonzero()[:, 0]
    if rows.numel():
        ids[rows] = _draw_among(probabilities[rows], [draws[row] for row in rows.tolist()], probabilities.shape[1])[0]
    return ids


def _draw_among(probabilities: Tensor, draws: list[Draw], count: int) -> tuple[Tensor, Tensor]:
    """Ids [rows] drawn among the `count` likeliest; and a mask [rows] of rows that need more, whose ids are invalid."""
    vocab = probabilities.shape[1]
    kept, ids = probabilities.topk(count)
    mass = kept.cumsum(-1)
    limits = [draw.sampling.top_k if 0 < draw.sampling.top_k < vocab else vocab for draw in draws]
    limit = torch.tensor(limits, device=mass.device)[:, None]
    min_p = _column([draw.sampling.min_p for draw in draws], mass)
    near = (kept >= min_p * kept[:, :1]).sum(dim=-1, keepdim=True).clamp(min=1)  # at least 1, for rows of NaN
    limit = torch.where(near < count, torch.minimum(limit, near), limit)  # all near: perhaps more beyond `count`
    sums = torch.where(limit < vocab, mass.gather(1, (limit - 1).clamp(max=count - 1)), 1.0)
    enough = _column([draw.sampling.top_p for draw in draws], mass) * sums
    last = torch.minimum(torch.searchsorted(mass, enough), limit - 1)
    wide = (last >= count) | ((limit > count) & ((limit < vocab) | (min_p > 0)))
    out = torch.arange(count, device=mass.device) > last
    found = _exponentials(draws, ids).div_(kept).masked_fill_(out, math.inf).argmin(dim=-1, keepdim=True)
    return ids.gather(1, found)[:, 0], wide[:, 0] & (count < vocab)


def _column(numbers: list[float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=like.device)[:, None]


def _exponentials(draws: list[Draw], ids: Tensor) -> Tensor:
    """For `ids` [n] or [rows, n]: [rows, n] float64, the times of the race."""
    keys = [row_key(draw.sampling.seed, draw.sampling.choice, draw.position) for draw in draws]
    return exponentials(torch.tensor(keys, device=ids.device), ids)
