"""The LoRA kernels' ops in plain torch, from the same table and work list: the expected results.

Slow and plain: it reads the work on the host. The CPU runs kernels.reference instead.
"""

from __future__ import annotations

import torch

from kernels.lora_work import TILE_ALIGN_BYTES, TILE_RANK, LoraWork, Stack, TileTable, unpack_entry
from kernels.reference import LoraSegment, LoraTile, lora


def lora_tiled(
    x: torch.Tensor, y: torch.Tensor, table: TileTable, work: LoraWork, layer: int, stack: Stack, *, add: bool
) -> None:
    """lora_shrink, then lora_expand: y[rows of a] (+)= scale_a · (x[rows of a] · A_aᵀ) · B_aᵀ, in place.

    x [rows, in], y [rows, outputs of the stack's modules side by side]. Without `add` the rows of the work are written
    whole, zeros where an adapter lacks a module; other rows are not touched.
    """
    segments = []
    for table_row, first, rows, _ in work.segments[: int(work.header[0])].tolist():
        taken = slice(first, first + rows)
        if not add:
            y[taken] = 0
        segments.append(LoraSegment(taken, table_tiles(table, table_row, layer, stack)))
    lora(x, y, segments)


def table_tiles(table: TileTable, table_row: int, layer: int, stack: Stack) -> list[LoraTile]:
    """The tiles of one adapter, as views of the arena."""
    tiles, column = [], 0
    for module, out in enumerate(stack.outs, stack.first):
        head, *places = table.entries[table_row, layer, module].tolist()
        rank, scale = unpack_entry(head)
        for first, place in zip(range(0, rank, TILE_RANK), places, strict=False):
            height = min(TILE_RANK, rank - first)
            start = place * (TILE_ALIGN_BYTES // table.arena.element_size())
            middle, stop = start + height * stack.in_features, start + height * (stack.in_features + out)
            a, b = table.arena[start:middle].view(height, -1), table.arena[middle:stop].view(height, -1)
            tiles.append(LoraTile(a.t(), b, scale, column))
        column += out
    return tiles
