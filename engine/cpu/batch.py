"""One step as tensors: all tokens of all sequences as rows, and where each row reads and writes in the arena.

Built once per step on the host, copied to the device at once, shared by all layers.
"""

from __future__ import annotations

from collections.abc import Callable
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
    the mask hides the padding. `keys` ≤ pages each × tokens_per_page: the number of keys attended to.

    `shared`: the rows are tokens of one sequence, each a separate call over the same `pages`."""

    start: int
    stop: int
    decode: bool
    pages: Tensor
    keys: int
    mask: Tensor | None  # additive: decode or shared [rows, 1, 1, keys], else [rows, keys]; None: every key is seen
    shared: bool = False


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """All tokens of a step, as rows. Index tensors are int64 on the device."""

    chunks: list[Chunk]  # in row order: decodes first, by length class, then by adapter
    starts: list[int]  # first row of each chunk, and at the end the row count
    ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    pages: Tensor  # [rows] arena page that takes the row's K and V
    slots: Tensor  # [rows] the token's index in that page
    sampled: Tensor  # [samples] rows of which logits are computed, in the order of the sampling chunks
    reported: Tensor  # [reports] rows of which prompt logprobs are computed, in the order of the chunks
    fresh_pages: Tensor  # [n] pages written for the first time and not filled
    spans: list[Span]
    exact: bool = False  # each row is to get the same bits as in any other batch

    def pooled_rows(self) -> list[tuple[Chunk, slice]]:
        """The chunks with pooled tokens, in order, and the rows of these tokens."""
        pooling = [(chunk, row) for chunk, row in zip(self.chunks, self.starts, strict=False) if chunk.pooled()]
        return [(chunk, slice(row + chunk.pooled().start - chunk.start, row + chunk.count)) for chunk, row in pooling]


def pack_step(
    chunks: Many[Chunk], tokens_per_page: int, device: torch.device, dtype: torch.dtype, *, exact: bool = False
) -> PackedBatch:
    """Lay out `chunks`: at least one, with ids within the vocabulary and a page for every token. `exact`: each row is
    to get the same bits as in any other batch. It attends in calls whose shape depends on its position alone."""

    def span_class(chunk: Chunk) -> tuple[bool, int]:
        return _span_class(chunk, tokens_per_page, exact=exact)

    ordered = sorted(chunks, key=lambda chunk: (span_class(chunk), chunk.sequence.adapter or ""))
    starts = [0]
    ids: list[int] = []
    positions: list[int] = []
    pages: list[int] = []
    sampled: list[int] = []
    reported: list[int] = []
    fresh: list[int] = []
    for chunk in ordered:
        stop = chunk.start + chunk.count
        table = chunk.sequence.pages
        ids += chunk.sequence.tokens(chunk.start, stop)
        positions += range(chunk.start, stop)
        pages += [table[position // tokens_per_page] for position in range(chunk.start, stop)]
        # Rows never written may hold another sequence's numbers, NaN among them, and 0 · NaN is NaN.
        if stop % tokens_per_page and (stop - 1) // tokens_per_page * tokens_per_page >= chunk.start:
            fresh.append(pages[-1])
        starts.append(starts[-1] + chunk.count)
        if chunk.sample:
            sampled.append(starts[-1] - 1)
        first_row = starts[-1] - stop
        reported += [first_row + position for position in chunk.reported()]
    slots = [position % tokens_per_page for position in positions]
    ranges = _span_ranges(ordered, span_class)
    tables = [_page_table(ordered[first:last], tokens_per_page) for first, last in ranges]
    parts = [ids, positions, pages, slots, sampled, reported, fresh, *tables]
    packed = torch.tensor([number for part in parts for number in part], dtype=torch.int64).to(device)
    on_device = torch.split(packed, [len(part) for part in parts])
    spans: list[Span] = []
    for (first, last), own in zip(ranges, on_device[7:], strict=True):
        if exact:
            spans += _exact_spans(ordered[first:last], starts[first], own, on_device[1], tokens_per_page, dtype)
        else:
            spans.append(_span(ordered[first:last], starts[first], starts[last], own, on_device[1], dtype))
    all_ids, all_positions, all_pages, all_slots, samples, reports, fresh_pages = on_device[:7]
    return PackedBatch(
        ordered, starts, all_ids, all_positions, all_pages, all_slots, samples, reports, fresh_pages, spans, exact
    )


def _pages_used(chunk: Chunk, tokens_per_page: int) -> int:
    return (chunk.start + chunk.count - 1) // tokens_per_page + 1


def _span_class(chunk: Chunk, tokens_per_page: int, *, exact: bool) -> tuple[bool, int]:
    """Row order: decodes by length class, which is of one number of pages if `exact`, then prefill chunks."""
    if chunk.count > 1:
        return True, 0
    used = _pages_used(chunk, tokens_per_page)
    return False, used if exact else max(used.bit_length(), SMALL_BIT_LENGTH)


def _span_ranges(ordered: list[Chunk], span_class: Callable[[Chunk], tuple[bool, int]]) -> list[tuple[int, int]]:
    """Ranges of chunks that attend together: the decodes of a length class; each prefill chunk alone."""
    ranges, first = [], 0
    for (prefill, _), members in groupby(ordered, key=span_class):
        last = first + len(list(members))
        ranges += [(i, i + 1) for i in range(first, last)] if prefill else [(first, last)]
        first = last
    return ranges


def _page_table(chunks: list[Chunk], tokens_per_page: int) -> list[int]:
    used = [_pages_used(chunk, tokens_per_page) for chunk in chunks]
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


def _exact_spans(
    chunks: list[Chunk], start: int, table: Tensor, positions: Tensor, tokens_per_page: int, dtype: torch.dtype
) -> list[Span]:
    """The calls of decodes of one number of pages, or of one prefill chunk: a call for the rows of each page. The keys
    of a row are all keys of its page and of the pages before it, masked or not."""
    first, decode = chunks[0], chunks[0].count == 1
    if decode:
        used = _pages_used(first, tokens_per_page)
        cuts = [(start, start + len(chunks), used)]
    else:
        stop, cuts = first.start + first.count, []
        for page in range(first.start // tokens_per_page, _pages_used(first, tokens_per_page)):
            begin, end = max(first.start, page * tokens_per_page), min(stop, (page + 1) * tokens_per_page)
            cuts.append((start + begin - first.start, start + end - first.start, page + 1))
    spans = []
    for begin, end, used in cuts:
        keys = used * tokens_per_page
        hidden = torch.arange(keys, device=positions.device) > positions[begin:end, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
        pages = table if decode else table[:used]
        spans.append(Span(begin, end, True, pages, keys, mask[:, None, None, :], shared=not decode))
    return spans
