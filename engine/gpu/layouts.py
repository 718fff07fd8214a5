"""How large each kind of step is: decodes and mixed steps of a captured graph, and an eager step of the rows that it
has.

Numbers alone, no triton. It must never know a step's requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.gpu.packing import Sizes, StepLayout
from kernels.lora_work import DECODE_BLOCK_ROWS, PREFILL_BLOCK_ROWS, WorkLayout
from kernels.prefill_blocks import parts_max, prefill_blocks

# Rows of a captured decode are padded up to the next of these; beyond the last, to a multiple of ROWS_STEP.
FEW_ROWS = (1, 2, 4, 8, 16, 24, 32)
ROWS_STEP = 16
# Likewise for steps with prefill. Larger steps need no graph: the device takes longer than the host's launches.
MIXED_ROWS = (*range(64, 769, 64), 896, 1024, 1280, 1536, 1792, 2048)


def row_buckets(rows_max: int) -> list[int]:
    """Ascending, the last at least `rows_max`."""
    few = [rows for rows in FEW_ROWS if rows < rows_max]
    more = range(FEW_ROWS[-1] + ROWS_STEP, rows_max + ROWS_STEP, ROWS_STEP) if rows_max > FEW_ROWS[-1] else ()
    return [*few, *more] if more else [*few, next(rows for rows in FEW_ROWS if rows >= rows_max)]


@dataclass(frozen=True, slots=True)
class LayoutLimits:
    """Sizes of the largest step."""

    rows: int
    sequences: int
    pages: int  # of all sequences' page tables together


@dataclass(frozen=True, slots=True)
class StepLayouts:
    """The layouts of one model. `programs`: concurrent programs of prefill attention, which determine into how many
    parts long chunks are split."""

    limits: LayoutLimits
    tiles_max: int
    heads: int
    kv_heads: int
    programs: int

    @property
    def decode_rows(self) -> list[int]:
        return row_buckets(self.limits.sequences)

    @property
    def mixed_rows(self) -> list[int]:
        return [rows for rows in MIXED_ROWS if rows <= self.limits.rows]

    def decode(self, rows: int) -> StepLayout:
        """`rows` sequences of one row each."""
        return self.exact(rows, rows, 0, self.limits.pages, prefill=False)

    def mixed(self, rows: int) -> StepLayout:
        """Any step of at most `rows` rows."""
        sequences = min(rows, self.limits.sequences)
        return self.exact(rows, sequences, self.blocks_max(rows, sequences), self.limits.pages, prefill=True)

    def exact(self, rows: int, sequences: int, blocks: int, pages: int, *, prefill: bool) -> StepLayout:
        words = self._work(rows, sequences, PREFILL_BLOCK_ROWS if prefill else DECODE_BLOCK_ROWS).size
        return StepLayout(Sizes(rows, sequences, blocks, words, pages))

    def work(self, layout: StepLayout, *, prefill: bool) -> WorkLayout:
        """The layout of the LoRA work list in its field."""
        sizes = layout.sizes
        return self._work(sizes.rows, sizes.sequences, PREFILL_BLOCK_ROWS if prefill else DECODE_BLOCK_ROWS)

    def blocks_max(self, rows: int, sequences: int) -> int:
        """Upper bound of the blocks of prefill attention: each sequence's last block may be partly empty, and some
        blocks are split."""
        whole = len(prefill_blocks([rows], [rows], self.heads, self.kv_heads))
        return sequences + whole + parts_max(self.programs, self.kv_heads)

    def words_max(self) -> int:
        """Words of the largest layout of any step."""
        limits = self.limits
        largest = self.exact(
            limits.rows, limits.sequences, self.blocks_max(limits.rows, limits.sequences), limits.pages, prefill=True
        )
        found = [largest, *map(self.decode, self.decode_rows), *map(self.mixed, self.mixed_rows)]
        # An eager step of decodes. It is never larger than the largest graph, but counting it costs nothing.
        found.append(self.exact(limits.rows, limits.sequences, 0, limits.pages, prefill=False))
        return max(layout.words for layout in found)

    def _work(self, rows: int, sequences: int, block_rows: int) -> WorkLayout:
        return WorkLayout.of(rows, sequences, self.tiles_max, block_rows)
