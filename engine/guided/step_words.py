"""The matrix of one step's masks. The words of each guided text are a row of it, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from engine.guided.matcher import ALL, GuidedText, Words

# Rows by which matrices grow.
ROWS_STEP = 32
# Matrices that no step uses.
FREE_MAX = 2


class StepWords:
    """int32 [rows, ceil(vocab / 32)], C-contiguous and not initialised."""

    def __init__(self, rows: int, width: int, memory: Words | None = None) -> None:
        """`memory`: of an earlier step that no text uses any more; at least `rows` rows of `width`. None: new."""
        self.memory: Words = (
            np.empty((-(-rows // ROWS_STEP) * ROWS_STEP, width), np.int32) if memory is None else memory
        )
        self.matrix = self.memory[:rows]
        self.rows = rows
        self.address: int = self.matrix.ctypes.data
        self.row_bytes: int = self.matrix.strides[0]
        self._row_of: dict[GuidedText, int] = {}

    def attach(self, row_of: Mapping[GuidedText, int]) -> None:
        """Let each text fill a row."""
        for text, row in row_of.items():
            text.attach_words(self.matrix[row], self.address + row * self.row_bytes)
        self._row_of.update(row_of)

    def __contains__(self, text: GuidedText) -> bool:
        return text in self._row_of

    def row_of(self, text: GuidedText) -> int:
        return self._row_of[text]

    def complete(self, masked: Mapping[GuidedText, int]) -> None:
        """Complete the rows that no thread filled. `masked`: the texts that are ready, with their rows. The rows of
        skipped draws are not read."""
        known = {*masked.values(), *self._row_of.values()}
        self.matrix[[row for row in range(self.rows) if row not in known]] = ALL
        for text, row in masked.items():
            if text.error:
                self.matrix[row] = 0
            elif text not in self._row_of:
                self.matrix[row] = text.words
            if text in self._row_of:
                text.release_words()


class WordsMemory:
    """The memory of steps' matrices, used again: the pages of a new one would be cleared in each step."""

    def __init__(self) -> None:
        self._free: list[Words] = []
        self._lent: list[StepWords] = []  # the newest last

    def words(self, rows: int, width: int, pending: Iterable[StepWords]) -> StepWords:
        """The matrix of a new step. `pending`: those that threads still fill. A matrix is valid until the second call
        after its own."""
        pending = list(pending)
        for old in self._lent[:-1]:
            if old not in pending:
                self._lent.remove(old)
                self._free.append(old.memory)
        fitting = [own for own in self._free if own.shape[1] == width and len(own) >= rows]
        found = StepWords(rows, width, fitting[0] if fitting else None)
        self._free = [own for own in self._free if own is not found.memory][-FREE_MAX:]
        self._lent.append(found)
        return found
