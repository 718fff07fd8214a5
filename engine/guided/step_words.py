"""The matrix of one step's masks. The words of each guided text are a row of it, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.guided.matcher import ALL, GuidedText, Words


class StepWords:
    """int32 [rows, ceil(vocab / 32)], C-contiguous and not initialised: the thread that fills a row touches its memory
    first."""

    def __init__(self, rows: int, width: int) -> None:
        self.matrix: Words = np.empty((rows, width), np.int32)
        self.rows = rows
        self.address: int = self.matrix.ctypes.data
        self.row_bytes: int = self.matrix.strides[0]
        self._row_of: dict[GuidedText, int] = {}

    def attach(self, row_of: Mapping[GuidedText, int]) -> None:
        """Let each text fill a row."""
        for text, row in row_of.items():
            text.attach_words(self.matrix[row], self.address + row * self.row_bytes)
        self._row_of.update(row_of)

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
