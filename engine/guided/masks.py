"""The masks of a step: each guided text fills its own words on a thread, and one matrix is packed from them.

A text's words that are not ready in time skip the draw of its row alone. They are used by a later step, which computes
the same position again. A draw waits for masks at most `wait_s`, and not at all for a slow grammar.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Set

import numpy as np

from engine.guided.matcher import ALL, GuidedText, Words
from engine.step import Chunk, Masks, Sequence, Step
from engine.text.grammars import start_with_stack

# A draw waits this long for the first mask when no row of its step is ready, so that no other request is delayed.
MASK_WAIT_ALONE_S = 1.0
POLL_S = 0.002
THREADS_MAX = 8
# Threads for the texts of slow grammars, apart: they delay no other text's mask.
SLOW_THREADS = 1


class _Batch:
    """The texts of one step whose words are to be filled. Threads take them one by one."""

    def __init__(self, texts: Iterable[GuidedText]) -> None:
        self.texts = set(texts)  # not known to be filled; for the loop's thread
        self.taken = 0  # of `filled`, known; for the loop's thread
        self.left = deque(self.texts)
        self.count = len(self.texts)
        self.filled: list[GuidedText] = []
        self.all_filled = threading.Event()

    def fill_words(self) -> None:
        """Fill texts until none is left. On several threads at once: `popleft` and `append` are atomic."""
        while True:
            try:
                text = self.left.popleft()
            except IndexError:
                return
            began = time.thread_time()
            try:
                text.fill_words()
            except BaseException as error:  # noqa: BLE001 - one text's edge; a Rust panic is no Exception
                text.error = f"the mask could not be computed: {type(error).__name__}"
            text.times.note_mask(time.thread_time() - began)
            self.filled.append(text)
            if len(self.filled) == self.count:
                self.all_filled.set()


class MaskThreads:
    """Threads that fill masks; started with the first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def fill(self, batch: _Batch) -> None:
        if not self._threads:
            self._threads = [start_with_stack(self._fill_batches) for _ in range(self._count)]
        for _ in range(min(self._count, batch.count)):
            self._batches.put(batch)

    def stop(self) -> None:
        for _ in self._threads:
            self._batches.put(None)
        self._threads = []

    def _fill_batches(self) -> None:
        while (batch := self._batches.get()) is not None:
            batch.fill_words()


class MaskFiller:
    """Makes `engine.step.Masks`. For the loop's thread."""

    def __init__(
        self,
        wait_s: float,
        threads: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait_s`: seconds that a draw waits for the masks of its step, if other rows have none to wait for."""
        self.seconds = 0.0  # waited for masks
        self.masks_made = 0
        self.draws_skipped = 0
        self._threads = MaskThreads(threads or max(2, min(THREADS_MAX, (os.cpu_count() or 1) // 2)))
        self._slow_threads = MaskThreads(SLOW_THREADS)
        self._wait_s, self._clock = wait_s, clock
        self._filling: set[GuidedText] = set()  # not to be touched: a thread may fill them
        self._batches: list[_Batch] = []  # that are not filled

    def stop(self) -> None:
        self._threads.stop()
        self._slow_threads.stop()

    def fill_masks(self, step: Step, texts: dict[Sequence, GuidedText]) -> Masks | None:
        """The masks of a step's rows, when the ids of all earlier steps are known. None: no row has a constraint."""
        rows = [(index, chunk) for index, chunk in enumerate(step.chunks) if chunk.sample]
        guided = [(row, index, chunk, texts[chunk.sequence]) for row, (index, chunk) in enumerate(rows)
                  if chunk.sequence in texts]  # fmt: skip
        if not guided:
            return None
        began = self._clock()
        for text in self._take_filled():
            text.detach_words()  # from the matrix of an earlier step
        wanted = {text for _, _, chunk, text in guided if self._is_wanted(text, chunk)}
        words: Words = np.empty((len(rows), guided[0][3].words_count), np.int32)
        new = {text: row for row, _, _, text in guided if text in wanted and text not in self._filling}
        _attach_rows(words, new)
        self._fill(wanted, new.keys(), len(rows), began)
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
        _finish_rows(words, masked, new)
        return Masks(words if masked else None, frozenset(skip))

    def _is_wanted(self, text: GuidedText, chunk: Chunk) -> bool:
        """Take in the text's new ids, unless a thread still fills it. Whether its words must be filled."""
        if text in self._filling:
            return True
        position = _position(chunk)
        text.sync_ids(chunk.sequence.output_ids, position)
        return text.filled_at != position and not text.is_free()

    def _fill(self, wanted: set[GuidedText], new: Set[GuidedText], rows: int, began: float) -> None:
        """Fill the words of `wanted`, of which no thread fills the `new` yet; wait for `wait_s`, or until the first
        is filled if no row of the step is ready. Texts of slow grammars are not waited for."""
        slow = {text for text in new if text.times.is_slow}
        self._begin_batch(new - slow, self._threads)
        self._begin_batch(slow, self._slow_threads)
        for batch in self._batches:
            if any(text in wanted and not text.times.is_slow for text in batch.texts):
                batch.all_filled.wait(max(0.0, began + self._wait_s - self._clock()))
        self._take_filled()
        while len(wanted) == rows and wanted <= self._filling and self._clock() < began + MASK_WAIT_ALONE_S:
            self._batches[-1].all_filled.wait(POLL_S)
            self._take_filled()

    def _begin_batch(self, texts: Set[GuidedText], threads: MaskThreads) -> None:
        if texts:
            batch = _Batch(texts)
            self._filling |= texts
            self._batches.append(batch)
            threads.fill(batch)

    def _take_filled(self) -> list[GuidedText]:
        """The texts that were filled since the last call."""
        found: list[GuidedText] = []
        over = [batch for batch in self._batches if batch.all_filled.is_set()]  # before `filled` is read
        for batch in self._batches:
            # Each text once: a later batch may be filling it again.
            filled = batch.filled[batch.taken :]
            batch.taken += len(filled)
            batch.texts.difference_update(filled)
            self._filling.difference_update(filled)
            found += filled
        if over:
            self._batches = [batch for batch in self._batches if batch not in over]
        return found


def _position(chunk: Chunk) -> int:
    """The number of output ids before the id that the chunk draws."""
    return chunk.start + chunk.count - len(chunk.sequence.prompt_ids)


def _attach_rows(words: Words, new: dict[GuidedText, int]) -> None:
    """Let each text fill its row of `words`. Nothing is copied, and the row's memory is first touched by its thread."""
    address, row_bytes = words.ctypes.data, words.strides[0]
    for text, row in new.items():
        text.attach_words(words[row], address + row * row_bytes)


def _finish_rows(words: Words, masked: list[tuple[int, GuidedText]], new: dict[GuidedText, int]) -> None:
    """Complete the rows that no thread filled. The rows of skipped draws are not read."""
    free = set(range(len(words))).difference(row for row, _ in masked).difference(new.values())
    words[sorted(free)] = ALL
    for row, text in masked:
        if text.error:
            words[row] = 0
        elif text not in new:
            words[row] = text.words
        if text in new:
            text.release_words()
