"""Threads that fill the words of guided texts: several texts in one call, so that they seldom wait for the GIL."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

import llguidance

from engine.guided.matcher import GuidedText
from engine.guided.step_words import StepWords
from engine.text.grammars import start_with_stack

# Texts of one call, and the CPU seconds expected of it. A mask that takes long holds up the masks of its call.
GROUP_MAX = 64
GROUP_S = 0.01


class Batch:
    """The texts of one step whose words are to be filled. Threads take them group by group."""

    def __init__(self, groups: Iterable[list[GuidedText]], words: StepWords) -> None:
        """All texts are attached to rows of `words`."""
        self.words = words
        self.left = deque(groups)
        self.texts = {text for group in self.left for text in group}  # not known to be filled; for the loop's thread
        self.taken = 0  # of `filled`, known; for the loop's thread
        self.count = len(self.texts)
        self.filled: list[GuidedText] = []
        self.all_filled = threading.Event()

    def fill_groups(self, executor: llguidance.LLExecutor | None) -> None:
        """Fill groups until none is left. On several threads at once: `popleft` and `append` are atomic."""
        while True:
            try:
                group = self.left.popleft()
            except IndexError:
                return
            if len(group) == 1 or executor is None:
                for text in group:
                    self._fill_alone(text)
            else:
                self._fill_together(group, executor)

    def _fill_alone(self, text: GuidedText) -> None:
        began = time.thread_time()
        try:
            text.fill_words()
        except BaseException as error:  # noqa: BLE001 - one text's edge; a Rust panic is no Exception
            text.error = f"the mask could not be computed: {type(error).__name__}"
        text.times.note_mask(time.thread_time() - began)
        self._note_filled(text)

    def _fill_together(self, group: list[GuidedText], executor: llguidance.LLExecutor) -> None:
        began = time.perf_counter()
        try:
            consuming = [(text, *taken) for text in group if (taken := text.take_unconsumed()) is not None]
            if consuming:
                allowed = executor.consume_token_par([(matcher, id_) for _, matcher, id_ in consuming])
                for (text, _, _), own in zip(consuming, allowed, strict=True):
                    text.note_consumed(own)
            masked = [(text, matcher) for text in group if (matcher := text.begin_words()) is not None]
            if masked:
                words = self.words
                pairs = [(matcher, words.row_of(text)) for text, matcher in masked]
                executor.unsafe_compute_mask_ptr(pairs, words.address, words.row_bytes, words.rows)
                for text, _ in masked:
                    text.finish_words()
        except BaseException:  # noqa: BLE001 - the error of one text, which is not known: each is asked alone
            for text in group:
                self._fill_alone(text)
            return
        seconds = time.perf_counter() - began
        for text in group:
            text.times.note_masks(seconds, len(group))
            self._note_filled(text)

    def _note_filled(self, text: GuidedText) -> None:
        self.filled.append(text)
        if len(self.filled) == self.count:
            self.all_filled.set()


class MaskThreads:
    """Threads that fill batches, and the pool that computes the masks of a group; started with the first batch."""

    def __init__(self, count: int, pool: int = 0) -> None:
        """`pool`: threads of the pool; 0: batches of texts that are filled alone need none."""
        self._count, self._pool = count, pool
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._executor: llguidance.LLExecutor | None = None

    def fill(self, batch: Batch) -> None:
        if not self._threads:
            self._executor = llguidance.LLExecutor(self._pool) if self._pool else None
            self._threads = [start_with_stack(self._fill_batches) for _ in range(self._count)]
        for _ in range(min(self._count, len(batch.left))):
            self._batches.put(batch)

    def stop(self) -> None:
        for _ in self._threads:
            self._batches.put(None)
        self._threads = []

    def _fill_batches(self) -> None:
        while (batch := self._batches.get()) is not None:
            batch.fill_groups(self._executor)


def in_groups(texts: Iterable[GuidedText]) -> Iterator[list[GuidedText]]:
    """The texts by the work that is expected of them."""
    group: list[GuidedText] = []
    expected_s = 0.0
    for text in texts:
        if group and (len(group) == GROUP_MAX or expected_s > GROUP_S):
            yield group
            group, expected_s = [], 0.0
        group.append(text)
        expected_s += text.times.mean_s
    if group:
        yield group
