"""Threads that fill the words of guided texts: several texts in one call, so that they seldom wait for the GIL."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable

import llguidance
import numpy as np

from engine.guided.mask_times import MASK_SLOW_S, TYPICAL_S
from engine.guided.matcher import GuidedText
from engine.guided.step_words import StepWords
from engine.text.grammars import start_with_stack

# At a stop, masks in progress are waited for: an interpreter must not end while a thread is inside llguidance.
STOP_WAIT_S = 0.5
# From this number of unconsumed ids on, a text has a backlog: of a text that was resumed, or whose draws did not need
# masks.
BACKLOG_MIN = 32
# CPU seconds of one id; after a slower one the rest is consumed without the GIL.
ID_SLOW_S = 0.001
# Texts of one call. A mask that takes long holds up the masks of its call.
GROUP_MAX = 128


class MaskPool:
    """Threads that compute the masks of a call, and consume ids, while the caller waits without the GIL."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.executor = llguidance.LLExecutor(threads)
        self._own = threading.local()

    def consume_ids(self, matcher: llguidance.LLMatcher, ids: list[int]) -> bool:
        """Whether the grammar allows `ids`. From any thread.

        llguidance refuses every further id of a matcher that has refused one."""
        left = iter(ids)
        if len(ids) >= BACKLOG_MIN:
            # A call of the pool takes some 50 µs, an ordinary id 1 µs, and a resumed text has thousands. With the GIL
            # held, until an id is slow.
            for id_ in left:
                began = time.thread_time()
                if not matcher.consume_token(id_):
                    return False
                if time.thread_time() - began > ID_SLOW_S:
                    break
        return all(self.consume_together([(matcher, id_)])[0] for id_ in left)

    def consume_together(self, pairs: list[tuple[llguidance.LLMatcher, int]]) -> list[bool]:
        """For each matcher, whether its grammar allows the id.

        An id may take 40 ms. llguidance consumes the id of a single matcher with the GIL held, which would delay a
        step, and releases the GIL for several. So a matcher is added that is in an error: it does nothing."""
        idle = getattr(self._own, "idle", None)
        if idle is None:  # of this thread, since a matcher may be in one call at a time
            idle = self._own.idle = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), "start: missing", log_level=0)
        return self.executor.consume_token_par([*pairs, (idle, 0)])[:-1]


class MaskBatch:
    """The texts of one step whose words are to be filled. Threads take them group by group."""

    def __init__(self, groups: Iterable[list[GuidedText]], words: StepWords, wait_share: float = 1.0) -> None:
        """All texts must be attached to rows of `words`. `wait_share`: a draw waits this share of its time for them."""
        self.words, self.wait_share = words, wait_share
        self.left = deque(groups)
        self.texts = {text for group in self.left for text in group}  # not noticed as filled; for the loop's thread
        self.taken = 0  # texts of `filled` that were noticed; for the loop's thread
        self.count = len(self.texts)
        self.filled: list[GuidedText] = []
        self.all_filled = threading.Event()

    def fill_groups(self, pool: MaskPool) -> None:
        """Fill groups until no group is left. Several threads run it at once: `popleft` and `append` are atomic."""
        while True:
            try:
                group = self.left.popleft()
            except IndexError:
                return
            if len(group) == 1:
                self._fill_alone(group[0], pool)
            else:
                self._fill_together(group, pool)

    def _fill_alone(self, text: GuidedText, pool: MaskPool) -> None:
        began = time.thread_time()
        try:
            text.consume_new(pool.consume_ids)
            began = time.thread_time()  # of the mask alone: a resumed text has consumed all of its ids
            text.fill_words(pool.consume_ids)
        except BaseException as error:  # noqa: BLE001 - one text's edge; a Rust panic is no Exception
            text.fail(f"the mask could not be computed: {type(error).__name__}")
        text.times.note_mask(time.thread_time() - began)
        self._note_filled([text])

    def _fill_together(self, group: list[GuidedText], pool: MaskPool) -> None:
        began = time.perf_counter()
        try:
            consuming = [(text, *taken) for text in group if (taken := text.take_unconsumed()) is not None]
            if consuming:
                allowed = pool.consume_together([(matcher, id_) for _, matcher, id_ in consuming])
                for (text, _, _), own in zip(consuming, allowed, strict=True):
                    text.note_consumed(own)
            masked = [(text, matcher) for text in group if (matcher := text.begin_words()) is not None]
            if masked:
                words = self.words
                pairs = [(matcher, text.row) for text, matcher in masked]
                pool.executor.unsafe_compute_mask_ptr(pairs, words.address, words.row_bytes, words.rows)
                _finish_together([text for text, _ in masked], words)
        except BaseException:  # noqa: BLE001 - one text of the group failed: each is computed alone to find it
            for text in group:
                self._fill_alone(text, pool)
            return
        if time.perf_counter() - began > MASK_SLOW_S + len(group) * TYPICAL_S / pool.threads:
            for text in group:
                text.times.suspect()
        self._note_filled(group)

    def cancel(self) -> None:
        """Fill no more groups than have been begun."""
        self.left.clear()

    def _note_filled(self, texts: list[GuidedText]) -> None:
        self.filled += texts
        if len(self.filled) == self.count:
            self.all_filled.set()


class MaskThreads:
    """Threads that fill batches, and the pool that computes the masks of a group; started with the first batch."""

    def __init__(self, count: int, pool_threads: int) -> None:
        self._count, self._pool_threads = count, pool_threads
        self._batches: queue.SimpleQueue[MaskBatch | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def fill(self, batch: MaskBatch) -> None:
        if not self._threads:
            pool = MaskPool(self._pool_threads)
            fill_batches = functools.partial(self._fill_batches, pool)
            self._threads = [start_with_stack(fill_batches) for _ in range(self._count)]
        for _ in range(min(self._count, len(batch.left))):
            self._batches.put(batch)

    def stop(self) -> None:
        """The caller has cancelled all batches."""
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join(STOP_WAIT_S)
        self._threads = []

    def _fill_batches(self, pool: MaskPool) -> None:
        while (batch := self._batches.get()) is not None:
            batch.fill_groups(pool)


def in_groups(texts: list[GuidedText]) -> list[list[GuidedText]]:
    return [texts[start : start + GROUP_MAX] for start in range(0, len(texts), GROUP_MAX)]


def _finish_together(texts: list[GuidedText], words: StepWords) -> None:
    """Complete the masks that one call made. Columns of the matrix are changed at once; `finish_words` runs only for
    a text that may end or has failed."""
    by_ends: dict[int, list[GuidedText]] = {}  # by identity of their Ends, which texts share
    for text in texts:
        if text.is_ordinary():
            by_ends.setdefault(id(text.ends), []).append(text)
        else:
            text.finish_words()
    for own in by_ends.values():
        for index in own[0].ends.complete(words.matrix, np.array([text.row for text in own])):
            own[index].finish_words()
