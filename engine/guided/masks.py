"""The masks of a step: each guided text fills its own words on a thread, and one matrix holds them.

A text's words that are not ready in time skip the draw of its row alone. They are used by a later step, which computes
the same position again. A draw waits for masks for as long as its caller allows, and not at all for a slow grammar.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from engine.guided.mask_threads import MaskBatch, MaskThreads, in_groups
from engine.guided.matcher import GuidedText
from engine.guided.step_words import StepWords, WordsMemory
from engine.step import Masks, Sequence, Step

# A draw waits this long for the first mask when no row of its step is ready, so that no other request is delayed.
MASK_WAIT_ALONE_S = 1.0
POLL_S = 0.002
# Seconds between two checks of a draw that waits for masks whether the device waits for the draw.
FORWARD_POLL_S = 0.0005
# POOL_MAX threads of llguidance's pool compute masks. GROUP_THREADS Python threads each submit one group and wait for
# it: while the pool computes the group of one thread, the other thread prepares the next group.
POOL_MAX = 12
GROUP_THREADS = 2
# A draw waits only this share of its time for texts that are filled alone (of new grammars for example): hostile ones
# would take all of it in every step, and any hiccup of the machine would then delay the step.
ALONE_WAIT_SHARE = 0.5
# Threads for texts whose masks may take long, and for texts of slow grammars: they delay no other text's mask.
ALONE_THREADS = 4
SLOW_THREADS = 1


class _GuidedRow(NamedTuple):
    row: int  # of the step's matrix
    chunk: int  # index in the step
    position: int  # number of output ids before the id that the chunk draws
    text: GuidedText


class _MasksBegun(NamedTuple):
    """The masks of the newest step, before its draw. `wanted`: the texts whose words it needs and that were not
    filled when it began."""

    words: StepWords
    guided: list[_GuidedRow]
    wanted: set[GuidedText]


class MaskFiller:
    """Makes `engine.step.Masks`. For the loop's thread."""

    def __init__(
        self,
        wait_s: float,
        threads: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait_s`: seconds that a draw waits for the masks of its step unless `take_masks` says otherwise."""
        self.seconds = 0.0  # waited for masks
        self.masks_made = 0
        self.draws_skipped = 0
        pool = threads or max(2, min(POOL_MAX, (os.cpu_count() or 1) * 3 // 4))
        self._group_threads = MaskThreads(min(GROUP_THREADS, pool), pool)
        alone = min(ALONE_THREADS, pool)
        self._alone_threads = MaskThreads(alone, alone)
        self._slow_threads = MaskThreads(SLOW_THREADS, SLOW_THREADS)
        self._wait_s, self._clock = wait_s, clock
        self._filling: set[GuidedText] = set()  # not to be touched: a thread may fill them
        self._batches: list[MaskBatch] = []  # that are not filled
        self._memory = WordsMemory()
        self._begun: _MasksBegun | None = None

    def stop(self) -> None:
        for batch in self._batches:
            batch.cancel()
        for threads in (self._group_threads, self._alone_threads, self._slow_threads):
            threads.stop()

    def begin_masks(self, step: Step, texts: Mapping[Sequence, GuidedText]) -> bool:
        """Begin the masks of a step's rows, when the ids of all earlier steps are known; `take_masks` follows. False:
        no row has a grammar."""
        self._begun = None
        rows = [(index, chunk) for index, chunk in enumerate(step.chunks) if chunk.sample]
        if not any(chunk.sequence in texts for _, chunk in rows):
            return False
        self._take_filled()
        guided: list[_GuidedRow] = []
        wanted: set[GuidedText] = set()
        new: dict[GuidedText, int] = {}  # row by text
        for row, (index, chunk) in enumerate(rows):
            text = texts.get(chunk.sequence)
            if text is None:
                continue
            position = chunk.start + chunk.count - len(chunk.sequence.prompt_ids)
            guided.append(_GuidedRow(row, index, position, text))
            if text in self._filling:
                wanted.add(text)
                continue
            text.sync_ids(chunk.sequence.output_ids, position)
            if text.filled_at != position and not text.is_free():
                wanted.add(text)
                new[text] = row
        pending = (batch.words for batch in self._batches)
        words = self._memory.words(len(rows), guided[0].text.words_count, pending)
        words.attach(new)
        self._begin_batches(new, words)
        self._begun = _MasksBegun(words, guided, wanted)
        return True

    def take_masks(
        self, wait_s: float | None = None, is_forward_done: Callable[[], bool] | None = None
    ) -> Masks | None:
        """Wait for the masks that were begun, at most `wait_s` and until `is_forward_done`, unless no row of the step
        is ready then. None: no row has a constraint."""
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        began = self._clock()
        self._wait(begun, began + (self._wait_s if wait_s is None else wait_s), is_forward_done)
        skip: set[int] = set()
        free = set(range(begun.words.rows))
        for row, index, position, text in begun.guided:
            if text in self._filling:
                skip.add(index)
            elif text.filled_at == position:
                begun.words.take_row(text, row)
                free.discard(row)
            elif not text.is_free():
                skip.add(index)
        masked = begun.words.rows - len(free)
        self.draws_skipped += len(skip)
        self.masks_made += masked
        self.seconds += self._clock() - began
        if not masked and not skip:
            return None
        return Masks(begun.words.matrix if masked else None, frozenset(skip), frozenset(free))

    def fill_masks(self, step: Step, texts: Mapping[Sequence, GuidedText]) -> Masks | None:
        """`begin_masks` and `take_masks`."""
        return self.take_masks() if self.begin_masks(step, texts) else None

    def _begin_batches(self, new: Iterable[GuidedText], words: StepWords) -> None:
        together: list[GuidedText] = []
        alone: list[list[GuidedText]] = []
        slow: list[list[GuidedText]] = []
        for text in new:
            if text.times.is_slow:
                slow.append([text])
            elif text.must_fill_alone():
                alone.append([text])
            else:
                together.append(text)
        for groups, threads, wait_share in (
            (in_groups(together), self._group_threads, 1.0),
            (alone, self._alone_threads, ALONE_WAIT_SHARE),
            (slow, self._slow_threads, 0.0),
        ):
            batch = MaskBatch(groups, words, wait_share)
            if batch.texts:
                self._filling |= batch.texts
                self._batches.append(batch)
                threads.fill(batch)

    def _wait(self, begun: _MasksBegun, deadline: float, is_forward_done: Callable[[], bool] | None) -> None:
        """Wait for the step's texts until the deadline of their batches. If no row of the step is ready then, wait
        until the first row is filled: the step has no ready row that this would delay."""
        began = self._clock()
        for batch in self._batches:
            if batch.wait_share and not begun.wanted.isdisjoint(batch.texts):
                until = began + batch.wait_share * (deadline - began)
                if self._wait_for(batch, until, is_forward_done):
                    deadline = began
        self._take_filled(begun.words)
        alone = len(begun.wanted) == begun.words.rows
        alone_until = self._clock() + MASK_WAIT_ALONE_S
        while alone and begun.wanted <= self._filling and self._clock() < alone_until:
            self._batches[-1].all_filled.wait(POLL_S)
            self._take_filled(begun.words)

    def _wait_for(self, batch: MaskBatch, deadline: float, is_forward_done: Callable[[], bool] | None) -> bool:
        """Wait for a batch until the deadline, or the end of the forward pass. Whether that has ended."""
        if is_forward_done is None:
            batch.all_filled.wait(max(0.0, deadline - self._clock()))
            return False
        while not batch.all_filled.wait(max(0.0, min(FORWARD_POLL_S, deadline - self._clock()))):
            if is_forward_done():
                return True
            if self._clock() >= deadline:
                break
        return False

    def _take_filled(self, words: StepWords | None = None) -> None:
        """Take in the texts that were filled since the last call. A text whose row is in another matrix than `words`
        loses that row."""
        over = [batch for batch in self._batches if batch.all_filled.is_set()]  # before `filled` is read
        for batch in self._batches:
            # Each text once: a later batch may be filling it again.
            filled = batch.filled[batch.taken :]
            batch.taken += len(filled)
            batch.texts.difference_update(filled)
            self._filling.difference_update(filled)
            if batch.words is not words:
                for text in filled:
                    text.detach_words()
        if over:
            self._batches = [batch for batch in self._batches if batch not in over]
