"""The ids that one text may continue with: its grammar, its reasoning, and its stop ids.

The state follows from the output's ids alone: `sync_ids` takes in the new ones, and starts over from the compiled
grammar when the output is shorter than before.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import lru_cache
from typing import NamedTuple

import llguidance
import numpy as np
from numpy.typing import NDArray

from engine.guided.mask_times import MaskTimes
from engine.guided.reasoning import Reasoning
from engine.protocol.frames import Guide
from engine.text.grammars import GrammarTokenizer

Words = NDArray[np.int32]
ConsumeIds = Callable[[llguidance.LLMatcher, list[int]], bool]  # whether the grammar allows the ids
ALL = np.int32(-1)
ENDS_CACHED_MAX = 64
_BITS: Words = (1 << np.arange(32, dtype=np.uint32)).astype(np.uint32).view(np.int32)
_NO_WORDS: Words = np.zeros(0, np.int32)


class Ends(NamedTuple):
    """`eos_ids`: the tokenizer's ids that end a text. `foreign`: the part of them that does not end this request."""

    eos_ids: tuple[int, ...]
    foreign: tuple[int, ...]

    def complete(self, matrix: Words, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Forbid the foreign ids in masks as the matcher made them. Returns the indices in `rows` of the masks that
        need `finish_words`: llguidance allows its end ids where the text may end, and where the matcher failed."""
        ending = np.zeros(len(rows), np.int32)
        for id_ in self.eos_ids:
            ending |= matrix[rows, id_ >> 5] & _BITS[id_ & 31]
        for id_ in self.foreign:
            matrix[rows, id_ >> 5] &= ~_BITS[id_ & 31]
        return np.flatnonzero(ending)


@lru_cache(ENDS_CACHED_MAX)
def _shared_ends(ends: Ends) -> Ends:
    return ends


class GuidedText:
    """Not thread-safe. `error` is set when the grammar can continue no more: the request must end."""

    def __init__(
        self,
        guide: Guide,
        compiled: llguidance.LLMatcher | None,
        tokenizer: GrammarTokenizer | None,
        vocab_size: int,
        stop_ids: frozenset[int],
        min_tokens: int = 0,
        times: MaskTimes | None = None,
    ) -> None:
        """`compiled`: at its start, shared by texts and never advanced. `min_tokens`: no stop id is allowed before that
        many ids, unless the grammar allows nothing else. `times`: shared by the texts of the grammar."""
        self.error = ""
        self.times = MaskTimes() if times is None else times
        self.words_count = -(-vocab_size // 32)
        self.words: Words = _NO_WORDS  # until they are filled
        self.row = -1  # of the step's matrix that has `words`; −1: no matrix has them
        self.filled_at = -1  # number of output ids that `words` is for
        self._guide, self._compiled = guide, compiled
        self._stop_ids = [id_ for id_ in stop_ids if 0 <= id_ < vocab_size]
        eos_ids = tokenizer.eos_ids if tokenizer else frozenset()
        self._foreign = sorted(eos_ids - stop_ids)
        self.ends = _shared_ends(Ends(tuple(sorted(eos_ids)), tuple(self._foreign)))
        self._min_tokens = min_tokens
        self._restart()

    def _restart(self) -> None:
        self._taken = 0
        self._unconsumed: list[int] = []  # ids of the answer that the matcher takes in with the next mask
        self._reasoning = Reasoning(self._guide)
        self._matcher = self._compiled.deep_copy() if self._compiled is not None else None

    def sync_ids(self, output_ids: Many[int], count: int) -> None:
        """Take in the ids of the output that are new since the last call, up to the first `count`. `fill_words` finds
        out whether the grammar allows them."""
        if count < self._taken:
            self._restart()
        while self._taken < count and not self.error:
            if self._reasoning.state == "over":  # all at once: a resumed text may have tens of thousands
                if self._matcher is not None:
                    self._unconsumed += output_ids[self._taken : count]
                self._taken = count
                return
            id_ = output_ids[self._taken]
            self._taken += 1
            if self._reasoning.push_id(id_) and self._matcher is not None:
                self._unconsumed.append(id_)

    def is_free(self) -> bool:
        """Whether the next id has no constraint, so that no mask is needed."""
        return self._matcher is None and self._reasoning.forced_id() is None and not self.error

    def attach_words(self, words: Words, row: int) -> None:
        """Let `fill_words` write into `words`, a row of a step's matrix."""
        self.words, self.row = words, row

    def detach_words(self) -> None:
        """Copy `words` out of a step's matrix, which a later step uses again."""
        self.words, self.row = self.words.copy(), -1

    def release_words(self) -> None:
        """The words were used, and belong to the step's matrix alone."""
        self.words, self.row, self.filled_at = _NO_WORDS, -1, -1

    def consume_new(self, consume_ids: ConsumeIds) -> None:
        """Let the matcher consume the new ids."""
        if self._unconsumed and self._matcher is not None and not self.error:
            ids, self._unconsumed = self._unconsumed, []
            self.note_consumed(consume_ids(self._matcher, ids))

    def fill_words(self, consume_ids: ConsumeIds) -> None:
        """`consume_new`, and compute `words` for the next id."""
        self.consume_new(consume_ids)
        if (matcher := self.begin_words()) is not None:
            matcher.unsafe_compute_mask_ptr(self.words.ctypes.data, self.words.nbytes)
            self.finish_words()

    def fail(self, message: str) -> None:
        """The request must end: no id is allowed."""
        self.error = message
        self.words.fill(0)

    def must_fill_alone(self) -> bool:
        """Whether `fill_words` must compute this text's words, and not one call for several texts."""
        return self.times.is_suspect or len(self._unconsumed) > 1

    def take_unconsumed(self) -> tuple[llguidance.LLMatcher, int] | None:
        """The matcher and its only new id, which the caller lets it consume; `note_consumed` follows."""
        if not self._unconsumed or self._matcher is None or self.error:
            return None
        return self._matcher, self._unconsumed.pop()

    def note_consumed(self, allowed: bool) -> None:
        if not allowed and self._matcher is not None:
            self.error = _message(self._matcher)

    def begin_words(self) -> llguidance.LLMatcher | None:
        """Once all ids are consumed: compute `words`, unless the grammar decides the next id. If it does, the matcher:
        the caller computes its mask into `words`, and `finish_words` follows."""
        if self.words is _NO_WORDS:
            self.words = np.zeros(self.words_count, np.int32)
        self.filled_at = self._taken
        words, reasoning = self.words, self._reasoning
        if reasoning.state == "over" and self._matcher is not None and not self.error:
            return self._matcher
        if self.error:
            words.fill(0)
        elif (forced := reasoning.forced_id()) is not None:
            words.fill(0)
            _allow(words, forced)
        elif self._matcher is None:
            words.fill(ALL)
        elif reasoning.state == "open":
            words.fill(ALL)
            for id_ in (*self._stop_ids, *self._foreign):
                _forbid(words, id_)
        else:
            return self._matcher
        return None

    def is_ordinary(self) -> bool:
        """Whether a mask of the matcher that allows no end of the text needs no `finish_words` but `Ends.complete`."""
        return self._taken >= self._min_tokens and self._reasoning.state == "over"

    def finish_words(self) -> None:
        """Complete the matcher's mask in `words`: the stop ids, and an id that opens reasoning."""
        assert self._matcher is not None
        self._complete_mask(self._matcher)
        if not self.error and (opening := self._reasoning.opening_id()) is not None:
            _allow(self.words, opening)

    def _complete_mask(self, matcher: llguidance.LLMatcher) -> None:
        words = self.words
        if matcher.is_error():
            self.error = _message(matcher)
            words.fill(0)
            return
        accepting = matcher.is_accepting()
        for id_ in self._foreign:
            _forbid(words, id_)
        for id_ in self._stop_ids:
            if self._taken < self._min_tokens:
                _forbid(words, id_)
            elif accepting:
                _allow(words, id_)
        if not accepting or np.count_nonzero(words):  # `words.any()` takes seven times as long
            return
        # The grammar is complete: the text ends, whatever `min_tokens` says.
        for id_ in self._stop_ids or self._foreign:
            _allow(words, id_)


def _message(matcher: llguidance.LLMatcher) -> str:
    reason = matcher.get_error().replace("<non-verbose/>", "").strip() or matcher.stop_reason()
    return f"the grammar cannot be continued: {reason}"


def _allow(words: Words, id_: int) -> None:
    words[id_ >> 5] |= _BITS[id_ & 31]


def _forbid(words: Words, id_: int) -> None:
    words[id_ >> 5] &= ~_BITS[id_ & 31]
