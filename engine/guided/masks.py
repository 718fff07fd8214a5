"""The masks of a step: each guided text fills its own words on a thread, and one matrix is packed from them.

A text's words that are not ready in time skip the draw of its row alone. They are used by a later step, which computes
the same position again.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable

import numpy as np

from engine.guided.matcher import ALL, GuidedText, Words
from engine.step import Chunk, Masks, Sequence, Step
from engine.text.grammars import start_with_stack

# A draw waits this long for the first mask when no row of its step is ready, so that no other request is delayed.
MASK_WAIT_ALONE_S = 1.0


class MaskThreads:
    """Threads that fill masks; started with the first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._texts: queue.SimpleQueue[tuple[GuidedText, Callable[[], None]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def fill(self, text: GuidedText, done: Callable[[], None]) -> None:
        if not self._threads:
            self._threads = [start_with_stack(self._fill_texts) for _ in range(self._count)]
        self._texts.put((text, done))

    def stop(self) -> None:
        for _ in self._threads:
            self._texts.put(None)
        self._threads = []

    def _fill_texts(self) -> None:
        while (item := self._texts.get()) is not None:
            text, done = item
            try:
                text.fill_words()
            except BaseException as error:  # noqa: BLE001 - one text's edge; a Rust panic is no Exception
                text.error = f"the mask could not be computed: {type(error).__name__}"
            done()


class MaskFiller:
    """Makes `engine.step.Masks`. For the loop's thread."""

    def __init__(
        self,
        wait_s: float,
        threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait_s`: seconds that a draw waits for the masks of its step, if other rows have none to wait for."""
        self.seconds = 0.0  # waited for masks
        self.masks_made = 0
        self.draws_skipped = 0
        self._threads = MaskThreads(threads)
        self._wait_s, self._clock = wait_s, clock
        self._filling: set[GuidedText] = set()  # not to be touched before they leave `_finished`
        self._finished: queue.SimpleQueue[GuidedText] = queue.SimpleQueue()

    def stop(self) -> None:
        self._threads.stop()

    def fill_masks(self, step: Step, texts: dict[Sequence, GuidedText]) -> Masks | None:
        """The masks of a step's rows, when the ids of all earlier steps are known. None: no row has a constraint."""
        rows = [(index, chunk) for index, chunk in enumerate(step.chunks) if chunk.sample]
        guided = [(row, index, chunk, texts[chunk.sequence]) for row, (index, chunk) in enumerate(rows)
                  if chunk.sequence in texts]  # fmt: skip
        if not guided:
            return None
        began = self._clock()
        self._take_finished()
        wanted = {text for _, _, chunk, text in guided if self._is_wanted(text, chunk)}
        self._begin(wanted)
        self._wait(wanted, len(wanted & self._filling), began + self._wait_s)
        if len(wanted) == len(rows) and wanted <= self._filling:
            self._wait(wanted, 1, began + MASK_WAIT_ALONE_S)
        skip: set[int] = set()
        masked: list[tuple[int, GuidedText]] = []
        for row, index, chunk, text in guided:
            if text in self._filling or (not text.is_free() and text.filled_at != _position(chunk)):
                skip.add(index)
            elif not text.is_free():
                masked.append((row, text))
        self.draws_skipped += len(skip)
        self.masks_made += len(masked)
        self.seconds += self._clock() - began
        if not masked and not skip:
            return None
        words = _packed(len(rows), masked) if masked else None
        return Masks(words, frozenset(skip))

    def _is_wanted(self, text: GuidedText, chunk: Chunk) -> bool:
        """Take in the text's new ids, unless a thread still fills it. Whether its words must be filled."""
        if text in self._filling:
            return True
        position = _position(chunk)
        text.sync_ids(chunk.sequence.output_ids, position)
        return text.filled_at != position and not text.is_free()

    def _begin(self, wanted: set[GuidedText]) -> None:
        for text in wanted:
            if text not in self._filling:
                self._filling.add(text)
                self._threads.fill(text, functools.partial(self._finished.put, text))

    def _wait(self, wanted: set[GuidedText], count: int, until: float) -> None:
        """Until `count` of them are filled, or the time is over."""
        while count > 0:
            rest = until - self._clock()
            try:
                text = self._finished.get(timeout=rest) if rest > 0 else self._finished.get_nowait()
            except queue.Empty:
                return
            self._filling.discard(text)
            count -= text in wanted

    def _take_finished(self) -> None:
        while True:
            try:
                self._filling.discard(self._finished.get_nowait())
            except queue.Empty:
                return


def _position(chunk: Chunk) -> int:
    """The number of output ids before the id that the chunk draws."""
    return chunk.start + chunk.count - len(chunk.sequence.prompt_ids)


def _packed(rows: int, masked: list[tuple[int, GuidedText]]) -> Words:
    words = np.full((rows, masked[0][1].words.size), ALL, np.int32)
    for row, text in masked:
        words[row] = text.words if not text.error else 0
    return words
