"""Every op in plain torch: the expected results of its kernel, and the CPU's implementation.

Tensors only: this knows neither adapters' names nor pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

Rows = slice | torch.Tensor
"""Which rows of a batch: a contiguous range with start and stop, or distinct int64 indices."""


class LoraTile(NamedTuple):
    """Up to 16 rank rows of one module of one layer of one adapter.

    `a` [in, rank] (A transposed) and `b` [rank, out] (B transposed) have the dtype of x and y. The module's outputs are
    y's columns from `column` on: y holds the outputs of stacked modules side by side.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    column: int


class LoraSegment(NamedTuple):
    """One adapter's share of a launch: its rows, and its tiles of the modules that read the same x. No row is in two
    segments of a launch."""

    rows: Rows
    tiles: Sequence[LoraTile]


def lora_shrink(x: torch.Tensor, segments: Sequence[LoraSegment]) -> list[list[torch.Tensor]]:
    """h[s][t] = x[rows of s] · A_tᵀ for every tile t of every segment s.

    x [tokens, in]; h[s][t] [rows of s, rank of t].
    """
    shrunk = []
    for rows, tiles in segments:
        taken = x[rows] if isinstance(rows, slice) else x.index_select(0, rows)
        shrunk.append([torch.mm(taken, tile.a) for tile in tiles])
    return shrunk


def lora_expand(y: torch.Tensor, shrunk: Sequence[Sequence[torch.Tensor]], segments: Sequence[LoraSegment]) -> None:
    """y[rows of s, columns of t] += scale_t · h[s][t] · B_tᵀ, in place. Columns that no tile covers are not touched.

    y [tokens, outputs of the stacked modules together], contiguous within a row.
    """
    for (rows, tiles), small in zip(segments, shrunk, strict=True):
        for tile, h in zip(tiles, small, strict=True):
            width = tile.b.shape[1]
            if isinstance(rows, slice):
                _block(y, rows.start, rows.stop, tile.column, width).addmm_(h, tile.b, alpha=tile.scale)
            else:
                block = _block(y, 0, y.shape[0], tile.column, width)
                block.index_add_(0, rows, torch.mm(h, tile.b), alpha=tile.scale)


def lora(x: torch.Tensor, y: torch.Tensor, segments: Sequence[LoraSegment]) -> None:
    """y[rows of s, columns of t] += scale_t · (x[rows of s] · A_tᵀ) · B_tᵀ, in place. Shapes as above."""
    lora_expand(y, lora_shrink(x, segments), segments)


def lora_in_blocks(x: torch.Tensor, y: torch.Tensor, segments: Sequence[LoraSegment], block: int) -> None:
    """`lora` in products of exactly `block` rows, the last padded with zeros, so that a row's bits depend on no other
    row and on no number of rows."""
    for rows, tiles in segments:
        taken = x[rows] if isinstance(rows, slice) else x.index_select(0, rows)
        count = taken.shape[0]
        padded = F.pad(taken, (0, 0, 0, -count % block))
        for tile in tiles:
            deltas = [torch.mm(torch.mm(part, tile.a), tile.b) for part in padded.split(block)]
            # Scaled, then added: in one op, some elements would be rounded once and others twice.
            delta = torch.cat(deltas)[:count].mul_(tile.scale)
            target = _block(y, 0, y.shape[0], tile.column, tile.b.shape[1])
            if isinstance(rows, slice):
                target[rows] += delta
            else:
                target.index_add_(0, rows, delta)


def _block(y: torch.Tensor, start: int, stop: int, column: int, width: int) -> torch.Tensor:
    """y[start:stop, column : column + width], in one call: slicing twice takes as long as a small product."""
    assert 0 <= start <= stop <= y.shape[0]
    assert column + width <= y.shape[1]
    row = y.stride(0)
    return y.as_strided((stop - start, width), (row, 1), y.storage_offset() + start * row + column)
