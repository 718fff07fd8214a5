"""The matrix of one step's masks. The words of each guided text are a row of it, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from engine.guided.matcher import GuidedText, Words

# Rows by which matrices grow.
ROWS_STEP = 32
# Matrices that no step uses.
FREE_MAX = 2


class StepWords:
    """int32 [rows, ceil(vocab / 32)], C-contiguous and not initialised."""

    def __init__(self, rows: int, width: int, memory: Words | None = None) -> None:
        """`memory`: of an earlier step that no text uses any more; at least `rows` rows of `width`. None: new."""
        if memory is None:
            memory = np.empty((-(-rows // ROWS_STEP) * ROWS_STEP, width), np.int32)
        self.memory: Words = memory
        self.matrix = self.memory[:rows]
        self.rows = rows
        self.address: int = self.matrix.ctypes.data
        self.row_bytes: int = self.matrix.strides[0]
        self._texts: set[GuidedText] = set()

    def attach(self, row_of: Mapping[GuidedText, int]) -> None:
        """Let each text fill a row."""
        matrix = self.matrix
        for text, row in row_of.items():
            text.attach_words(matrix[row], row)
        self._texts.update(row_of)

    def take_row(self, text: GuidedText, row: int) -> None:
        """The text is filled, and its row is used: it was filled in place, or is copied."""
        if text in self._texts:
            text.release_words()
        else:
            self.matrix[row] = text.words


class WordsMemory:
    """The memory of steps' matrices, used again: the pages of a new one would be cleared in each step."""

    def __init__(self) -> None:
        self._free: list[Words] = []
        self._lent: list[StepWords] = []  # the newest last

    def words(self, rows: int, width: int, pending: Iterable[StepWords]) -> StepWords:
        """The matrix of a new step. `pending`: matrices that threads still fill. A matrix is valid until `words` is
        called twice more."""
        kept = list(pending)
        for old in self._lent[:-1]:
            if old not in kept:
                self._lent.remove(old)
                self._free.append(old.memory)
        fitting = [own for own in self._free if own.shape[1] == width and len(own) >= rows]
        found = StepWords(rows, width, fitting[0] if fitting else None)
        self._free = [own for own in self._free if own is not found.memory][-FREE_MAX:]
        self._lent.append(found)
        return found
