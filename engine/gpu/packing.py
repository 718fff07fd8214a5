"""One step as one packed buffer: filled on the host as numpy, copied to the device at once, read there through views.

It must never wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.step import PENDING_ID, Chunk, Sequence
from kernels.prefill_blocks import FIELDS as BLOCK_FIELDS

Int32 = NDArray[np.int32]

# Every field begins at a multiple of ALIGN_WORDS int32: vector loads need 16 bytes, 64-bit fields 8.
ALIGN_WORDS = 4
# Value of padding rows and unused entries: nothing is read or written there.
NOWHERE = -1


class BufferField(NamedTuple):
    """Position of a field in the buffer, in words of 4 bytes."""

    offset: int
    words: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Sizes:
    """Capacities of a layout: fixed for a captured graph, exact for an eager step."""

    rows: int
    sequences: int
    query_blocks: int  # of prefill attention; 0: every sequence has one row
    lora_words: int  # of the LoRA work list
    pages: int  # of all sequences' page tables together


class StepLayout:
    """The fields of a step of these sizes. The page list is last, so that only its used part is copied."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._position = 0
        self.fields: dict[str, BufferField] = {}
        for name in ("ids", "source", "positions", "write_pages", "write_slots", "adapted"):
            self._add(name, sizes.rows)
        for name in ("sequence_rows", "kv_lens", "page_starts", "query_lens", "sampled"):
            self._add(name, sizes.sequences)
        self._add("seeds", 2 * sizes.sequences, torch.int64)
        for name in ("choices", "draw_positions", "top_ks"):
            self._add(name, sizes.sequences)
        for name in ("temperatures", "top_ps", "min_ps"):
            self._add(name, sizes.sequences, torch.float32)
        self._add("query_blocks", BLOCK_FIELDS * sizes.query_blocks)
        self._add("lora", sizes.lora_words)
        self._add("pages", sizes.pages)
        self.words = self._position

    def view(self, buffer: Tensor, name: str) -> Tensor:
        """The field in a buffer of int32, on host or device."""
        field = self.fields[name]
        return buffer[field.offset : field.offset + field.words].view(field.dtype)

    def used_words(self, pages: int) -> int:
        return self.fields["pages"].offset + pages

    def _add(self, name: str, words: int, dtype: torch.dtype = torch.int32) -> None:
        self.fields[name] = BufferField(self._position, words, dtype)
        self._position += -(-words // ALIGN_WORDS) * ALIGN_WORDS


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The views of one layout into the device buffer. Rows are tokens; a padding row has write page NOWHERE and no
    adapter, a padding sequence has kv_len 0. int32 unless stated otherwise."""

    ids: Tensor  # [rows] used where source is NOWHERE
    source: Tensor  # [rows] index into the ids drawn by the previous step, or NOWHERE
    positions: Tensor  # [rows]
    write_pages: Tensor  # [rows] arena page that takes the row's K and V
    write_slots: Tensor  # [rows] the token's index in that page
    adapted: Tensor  # [rows] 1: the row has an adapter
    sequence_rows: Tensor  # [sequences] a sequence's first row
    kv_lens: Tensor  # [sequences] keys that its last row sees
    page_starts: Tensor  # [sequences] start of its page table in `pages`
    query_lens: Tensor  # [sequences] its number of rows
    sampled: Tensor  # [sequences] row of each sample, in the order of samples
    seeds: Tensor  # int64; these seven: [sequences], in the order of samples
    choices: Tensor
    draw_positions: Tensor
    top_ks: Tensor  # 0: no limit
    temperatures: Tensor  # float32, as the next two; 0: greedy
    top_ps: Tensor
    min_ps: Tensor
    query_blocks: Tensor  # [blocks, BLOCK_FIELDS], of prefill attention
    lora: Tensor
    pages: Tensor


def views(layout: StepLayout, buffer: Tensor) -> StepTensors:
    found = {name: layout.view(buffer, name) for name in layout.fields}
    found["query_blocks"] = found["query_blocks"].view(-1, BLOCK_FIELDS)
    return StepTensors(**found)


class PackedStep:
    """Chunks in row order, and their numbers as arrays of exactly their sizes. Built once, then written into a layout
    of at least these sizes."""

    def __init__(self, chunks: Many[Chunk], tokens_per_page: int) -> None:
        """Sorted by adapter; rows without an adapter first."""
        self.chunks = sorted(chunks, key=_adapter)
        self.counts = np.array([chunk.count for chunk in self.chunks], np.int32)
        self.rows = int(self.counts.sum())
        self.decodes = self.rows == len(self.chunks)
        starts = np.array([chunk.start for chunk in self.chunks], np.int32)
        self.kv_lens = starts + self.counts
        self.sequence_rows = np.cumsum(self.counts, dtype=np.int32) - self.counts
        used = -(-self.kv_lens // tokens_per_page)
        self.page_starts = np.cumsum(used, dtype=np.int32) - used
        self.page_count = int(used.sum())
        tables = [_first(chunk.sequence.pages, count) for chunk, count in zip(self.chunks, used.tolist(), strict=True)]
        self.pages = np.fromiter(chain.from_iterable(tables), np.int32, self.page_count)
        if self.decodes:
            self.positions = starts
        else:
            offsets = np.arange(self.rows, dtype=np.int32) - np.repeat(self.sequence_rows, self.counts)
            self.positions = np.repeat(starts, self.counts) + offsets
        in_table = self.positions // tokens_per_page
        self.write_slots = self.positions - in_table * tokens_per_page
        self.write_pages = self.pages[np.repeat(self.page_starts, self.counts) + in_table]
        # The samples of a step are its sampling chunks in row order. A step of decodes draws for every row.
        self.sampling = [index for index, chunk in enumerate(self.chunks) if chunk.sample or self.decodes]
        self.sampled = (self.sequence_rows + self.counts - 1)[self.sampling]

    def ids(self, drawn: dict[Sequence, int]) -> tuple[Int32, Int32]:
        """(ids, source) by row. `drawn`: by sequence, the index of its id among the ids of the previous step."""
        found: list[int] = []
        for chunk in self.chunks:
            sequence = chunk.sequence
            if chunk.count == 1 and chunk.start >= len(sequence.prompt_ids):
                found.append(sequence.output_ids[chunk.start - len(sequence.prompt_ids)])
            else:
                found += sequence.tokens(chunk.start, chunk.start + chunk.count)
        ids = np.array(found, np.int32)
        source = np.full(self.rows, NOWHERE, np.int32)
        for row in np.flatnonzero(ids == PENDING_ID).tolist():
            index = int(np.searchsorted(self.sequence_rows, row, side="right")) - 1
            # A sequence whose previous chunk failed drew nothing; the result of this chunk is discarded.
            source[row] = drawn.get(self.chunks[index].sequence, NOWHERE)
            ids[row] = 0
        return ids, source

    def reported_rows(self) -> list[int]:
        """The rows of the reported tokens, in the order of the chunks."""
        if all(chunk.report_from is None for chunk in self.chunks):
            return []
        firsts = zip(self.chunks, self.sequence_rows.tolist(), strict=True)
        return [first + position - chunk.start for chunk, first in firsts for position in chunk.reported()]

    def pooled_rows(self) -> list[tuple[Chunk, slice]]:
        """The chunks with pooled tokens, in order, and the rows of these tokens."""
        firsts = zip(self.chunks, self.sequence_rows.tolist(), strict=True)
        pooling = [(chunk, row) for chunk, row in firsts if chunk.pool_from is not None]
        return [(chunk, slice(row + chunk.pooled().start - chunk.start, row + chunk.count)) for chunk, row in pooling]

    def adapter_runs(self) -> list[tuple[str | None, int]]:
        """(digest or None, rows) of every chunk, in row order."""
        return [(chunk.sequence.adapter, chunk.count) for chunk in self.chunks]


class Packer:
    """Page-locked host buffers used in turn. Each step is sent to the device in one copy, which follows the previous
    step on the stream: no kernel reads the buffer while it is written."""

    def __init__(self, words: int, depth: int, *, pinned: bool) -> None:
        """`depth`: steps that may be in flight while another is packed, plus one. `pinned`: page-locked."""
        self._depth = depth
        self._pinned = pinned
        self._turn = 0
        self._host: list[Tensor] = []
        self.ensure(words)

    def ensure(self, words: int) -> None:
        """Allow steps of `words` words. May be called while steps are in flight: they keep their buffers."""
        if not self._host or len(self._host[0]) < words:
            self._host = [torch.zeros(words, dtype=torch.int32, pin_memory=self._pinned) for _ in range(self._depth)]

    def send(
        self,
        layout: StepLayout,
        packed: PackedStep,
        drawn: dict[Sequence, int],
        extra: dict[str, NDArray[Any]],
        device: Tensor,
    ) -> None:
        """Write the step into the next host buffer and copy it to `device` int32, without waiting. `extra`: the other
        fields, of any dtype; the rest of each such field is filled with NOWHERE."""
        self._turn = (self._turn + 1) % self._depth
        host = self._host[self._turn]
        ids, source = packed.ids(drawn)
        fields: dict[str, tuple[Int32, int]] = {
            "ids": (ids, 0),
            "source": (source, NOWHERE),
            "positions": (packed.positions, 0),
            "write_pages": (packed.write_pages, NOWHERE),
            "write_slots": (packed.write_slots, 0),
            "sequence_rows": (packed.sequence_rows, 0),
            "kv_lens": (packed.kv_lens, 0),
            "page_starts": (packed.page_starts, 0),
            "query_lens": (packed.counts, 0),
            "sampled": (packed.sampled, 0),
            "pages": (packed.pages, NOWHERE),
        }
        fields.update((name, (numbers.reshape(-1).view(np.int32), NOWHERE)) for name, numbers in extra.items())
        numpy = host.numpy()
        for name, (numbers, padding) in fields.items():
            field = layout.fields[name]
            assert len(numbers) <= field.words, f"{name}: {len(numbers)} of {field.words}"
            numpy[field.offset : field.offset + len(numbers)] = numbers
            if name != "pages":
                numpy[field.offset + len(numbers) : field.offset + field.words] = padding
        words = layout.used_words(packed.page_count)
        device[:words].copy_(host[:words], non_blocking=True)


def _adapter(chunk: Chunk) -> str:
    return chunk.sequence.adapter or ""


def _first(pages: list[int], count: int) -> list[int]:
    return pages if len(pages) == count else pages[:count]
