"""One step as tensors: all tokens of all sequences in one row order, and where in the arena each reads and writes.

Built once per step on the host, copied to the device at once, shared by all layers. It must never know weights, how
ids are drawn, or why a sequence runs.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from engine.step import Chunk

# Decodes share one padded gather when their page counts have the same bit length: at most half of it is padding.
# Up to this bit length (15 pages) they always do: one call for all costs less than the padding.
SMALL_BIT_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, stop) of the batch that attend in one call: either one sequence's `stop - start` tokens, or one
    token each of as many sequences. `pages` [sequences × pages each], short ones padded with their own first page;
    the mask hides the padding. `keys` ≤ pages each × tokens_per_page is how many keys are looked at."""

    start: int
    stop: int
    decode: bool
    pages: Tensor
    keys: int
    mask: Tensor | None  # additive: decode [rows, 1, 1, keys], else [rows, keys]; None: every key is seen


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """`rows` tokens of one model. All index tensors are int64 on the device."""

    chunks: list[Chunk]  # in row order: decodes first, alike lengths together, then alike adapters
    starts: list[int]  # first row of each chunk, and at the end the row count
    ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    pages: Tensor  # [rows] arena page that takes the row's K and V
    slots: Tensor  # [rows] token's place in that page
    sampled: Tensor  # [samples] rows whose logits are wanted, in the order of the chunks that sample
    fresh_pages: Tensor  # [n] pages entered for the first time and left partly empty
    spans: list[Span]


def pack(chunks: Many[Chunk], tokens_per_page: int, device: torch.device, dtype: torch.dtype) -> PackedBatch:
    """Lay out `chunks` (at least one; ids within the vocabulary, pages for every token there)."""
    ordered = sorted(chunks, key=_row_order)
    starts, ids, positions, pages, slots, sampled, fresh = [0], [], [], [], [], [], []
    for chunk in ordered:
        stop = chunk.start + chunk.count
        table = chunk.sequence.pages
        ids += chunk.sequence.tokens(chunk.start, stop)
        for position in range(chunk.start, stop):
            positions.append(position)
            pages.append(table[position // tokens_per_page])
            slots.append(position % tokens_per_page)
        # Rows never written may hold another sequence's numbers, NaN among them, and 0 · NaN is NaN.
        if stop % tokens_per_page and (stop - 1) // tokens_per_page * tokens_per_page >= chunk.start:
            fresh.append(pages[-1])
        starts.append(starts[-1] + chunk.count)
        if chunk.sample:
            sampled.append(starts[-1] - 1)
    groups = _spans(ordered, starts)
    tables = [_page_table(ordered[first:last], tokens_per_page) for first, last in groups]
    parts = [ids, positions, pages, slots, sampled, fresh, *tables]
    packed = torch.tensor([number for part in parts for number in part], dtype=torch.int64).to(device)
    split = torch.split(packed, [len(part) for part in parts])
    spans = [
        _span(ordered[first:last], starts[first], starts[last], table, split[1], dtype)
        for (first, last), table in zip(groups, split[6:], strict=True)
    ]
    return PackedBatch(ordered, starts, *split[:6], spans)


def _length_class(chunk: Chunk) -> int:
    return max(len(chunk.sequence.pages).bit_length(), SMALL_BIT_LENGTH)


def _row_order(chunk: Chunk) -> tuple[bool, int, str]:
    decode = chunk.count == 1
    return (not decode, _length_class(chunk) if decode else 0, chunk.sequence.adapter or "")


def _spans(ordered: list[Chunk], starts: list[int]) -> list[tuple[int, int]]:
    """Ranges of chunks that attend together: decodes of a length class, prefill chunks each alone."""
    keys = [(_length_class(chunk) if chunk.count == 1 else -1 - i) for i, chunk in enumerate(ordered)]
    spans, first = [], 0
    for _, members in groupby(keys):
        last = first + len(list(members))
        spans.append((first, last))
        first = last
    return spans


def _page_table(chunks: list[Chunk], tokens_per_page: int) -> list[int]:
    used = [(chunk.start + chunk.count - 1) // tokens_per_page + 1 for chunk in chunks]
    most = max(used)
    table: list[int] = []
    for chunk, count in zip(chunks, used, strict=True):
        pages = chunk.sequence.pages
        table += pages[:count]
        table += [pages[0]] * (most - count)
    return table


def _span(chunks: list[Chunk], start: int, stop: int, table: Tensor, positions: Tensor, dtype: torch.dtype) -> Span:
    decode = chunks[0].count == 1
    keys = max(chunk.start + chunk.count for chunk in chunks)
    mask = None
    if not (decode and all(chunk.start + 1 == keys for chunk in chunks)):
        hidden = torch.arange(keys, device=positions.device) > positions[start:stop, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
        if decode:
            mask = mask[:, None, None, :]
    return Span(start, stop, decode, table, keys, mask)
