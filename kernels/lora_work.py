"""The LoRA kernels' inputs: where tiles are in the arena, and which rows of a step belong to which adapter.

Tensors and numbers only: this module knows neither adapters' names nor who assigns pages, and loads no triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

# Rank rows of a tile at most: the smallest inner size of a tensor-core product.
TILE_RANK = 16
# Tiles begin at multiples of TILE_ALIGN_BYTES, the table's unit: every load may be 16 bytes wide.
TILE_ALIGN_BYTES = 64
# A decode step's adapters have a few rows each, a prefill chunk hundreds.
DECODE_BLOCK_ROWS = 16
PREFILL_BLOCK_ROWS = 64
# Numbers before the lists of a work buffer: how many segments, how many pieces, two unused.
HEADER = 4
# Numbers of a segment (table row, first row, rows, tiles) and of a piece (table row, first row, rows, tile).
FIELDS = 4
# Parts that the shrink cuts its inner size into at most; the scratch has one plane for each.
SPLITS_MAX = 8


class Stack(NamedTuple):
    """Modules `first` ≤ m < `first + len(outs)` of the table: they read the same x, and their outputs lie side by side
    in one y."""

    first: int
    in_features: int
    outs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TileTable:
    """The positions of each adapter's tiles. All at fixed addresses, on one device.

    `arena` [elements] in the weights' dtype, its storage aligned to 64 bytes.
    `entries` int64 [rows, layers, modules, 1 + tiles_max]: the first number of a module is its rank (low half) and its
    scale (high half, the bits of a float32), then its tiles in units of 64 bytes of the arena. A tile holds A
    [rank rows, in], then Bᵀ [rank rows, out]. Rank 0: the adapter lacks the module.
    """

    arena: torch.Tensor
    entries: torch.Tensor

    def __post_init__(self) -> None:
        assert self.arena.dim() == 1
        assert self.arena.is_contiguous()
        assert self.arena.data_ptr() % TILE_ALIGN_BYTES == 0
        assert self.entries.dim() == 4
        assert self.entries.dtype == torch.int64
        assert self.entries.is_contiguous()
        assert self.entries.shape[3] >= 2

    @property
    def tiles_max(self) -> int:
        return self.entries.shape[3] - 1


def pack_entry(rank: int, scale: float) -> int:
    """The entry of a module's rank and scale in a table row, as the first number of the module."""
    bits = int(np.float32(scale).view(np.int32))
    return (bits << 32) | rank


def unpack_entry(entry: int) -> tuple[int, float]:
    """(rank, scale)"""
    return entry & 0xFFFFFFFF, float(np.int32(entry >> 32).view(np.float32))


class Range(NamedTuple):
    """Rows `first ≤ i < first + rows` of a batch have the adapter of this row of the table, whose largest module has
    `tiles` tiles."""

    table_row: int
    first: int
    rows: int
    tiles: int


@dataclass(frozen=True, slots=True)
class LoraWork:
    """One step's work, shared by all layers: views of a device buffer at fixed addresses.

    `header` int32 [4], `segments` int32 [capacity, 4], `pieces` int32 [capacity, 4]. How many are live is data, so
    that one captured graph serves any mix. A segment is at most `block_rows` rows of one adapter, which the expand
    processes at once; a piece is one tile's share of a segment, for the shrink.
    """

    header: torch.Tensor
    segments: torch.Tensor
    pieces: torch.Tensor
    block_rows: int


class WorkLayout(NamedTuple):
    """How a step's work lies in a buffer of int32: the header, then the segments, then the pieces."""

    segments_max: int
    pieces_max: int
    block_rows: int

    @classmethod
    def of(cls, rows: int, ranges: int, tiles_max: int, block_rows: int) -> WorkLayout:
        """The layout for steps of at most `rows` rows in at most `ranges` ranges, of adapters of at most `tiles_max`
        tiles."""
        segments = min(rows, ranges + rows // block_rows)
        return cls(segments, segments * tiles_max, block_rows)

    @property
    def size(self) -> int:
        """Numbers in the buffer."""
        return HEADER + FIELDS * (self.segments_max + self.pieces_max)

    def view(self, numbers: torch.Tensor) -> LoraWork:
        """`numbers` int32 [size], contiguous, on the device."""
        assert numbers.dtype == torch.int32
        assert numbers.shape == (self.size,)
        assert numbers.is_contiguous()
        parts = torch.split_with_sizes(numbers, [HEADER, FIELDS * self.segments_max, FIELDS * self.pieces_max])
        return LoraWork(parts[0], parts[1].view(-1, FIELDS), parts[2].view(-1, FIELDS), self.block_rows)

    def plan(self, ranges: list[Range], out: npt.NDArray[np.int32]) -> None:
        """Write a step's work into `out` int32 [size]. No row is in two ranges. Entries beyond the live ones are left
        unchanged."""
        assert out.shape == (self.size,)
        out[:HEADER] = 0
        if not ranges:
            return
        numbers = np.fromiter(chain.from_iterable(ranges), np.int32, FIELDS * len(ranges))
        table_row, first, rows, tiles = numbers.reshape(-1, FIELDS).T
        owner, block = _repeat(-(-rows // self.block_rows))
        start = block * self.block_rows
        segments = np.stack(
            (table_row[owner], first[owner] + start, np.minimum(rows[owner] - start, self.block_rows), tiles[owner]),
            axis=1,
        )
        # The longest first, so that no long unit starts last.
        segments = segments[np.argsort(-segments[:, 3], kind="stable")]
        owner, tile = _repeat(segments[:, 3])
        pieces = segments[owner]
        pieces[:, 3] = tile
        assert len(segments) <= self.segments_max, f"{len(segments)} segments, there is room for {self.segments_max}"
        assert len(pieces) <= self.pieces_max, f"{len(pieces)} pieces, there is room for {self.pieces_max}"
        out[:2] = len(segments), len(pieces)
        body = out[HEADER:]
        body[: segments.size] = segments.ravel()
        offset = FIELDS * self.segments_max
        body[offset : offset + pieces.size] = pieces.ravel()


def _repeat(counts: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For counts (2, 3): owners (0, 0, 1, 1, 1), and each one's number among its owner's (0, 1, 0, 1, 2)."""
    owner = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - starts[owner]


# Numbers from one launch's counters to the next one's: a cache line.
SYNC = 32


@dataclass(frozen=True, slots=True)
class LoraScratch:
    """The buffers that launches write between shrink and expand. All at fixed addresses, on one device; for one stream.

    `planes` float32 [splits, rows, rank rows of the stacked modules]: the shrink's partial sums, which the expand adds
    in one order, so that the same work gives the same bits. `sync` int32 [layers, modules, 32]: tickets drawn and
    shrink units arrived of each launch of a step.
    """

    planes: torch.Tensor
    sync: torch.Tensor

    @classmethod
    def empty(cls, rows: int, modules_stacked: int, table: TileTable) -> LoraScratch:
        """An empty scratch for steps of at most `rows` rows and stacks of at most `modules_stacked` modules."""
        device = table.entries.device
        width = modules_stacked * table.tiles_max * TILE_RANK
        planes = torch.empty(SPLITS_MAX, rows, width, dtype=torch.float32, device=device)
        return cls(planes, torch.zeros(*table.entries.shape[1:3], SYNC, dtype=torch.int32, device=device))

    def begin_step(self) -> None:
        """Call it once a step, before its first launch and on its stream."""
        self.sync.zero_()
