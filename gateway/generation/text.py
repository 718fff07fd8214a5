"""From a stream's output to the text that the caller sees: decoding, stop sequences, and the number of tokens that the
text took. `TextOfIds` reads streams of ids, `TextOfTexts` streams of text."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from engine.protocol.frames import Logprobs, PromptLogprobs
from engine.text.tokenizer import Detokenizer
from gateway.engines.engine import Output, OutputText
from gateway.generation.stops import StopScanner


class Vocabulary(Protocol):
    """The bytes of each id."""

    def token_bytes(self, id_: int) -> bytes: ...


class DrawnIds:
    """Ids with their logprobs, in arrays: 12 bytes per alternative and no object for each. The offset of an id is the
    number of characters decoded before it."""

    __slots__ = ("_ends", "_ids", "_offsets", "_values")

    vocabulary: Vocabulary | None = None  # None: the ids are the tokenizer's

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._ends = array("Q")  # for each id, the end of its alternatives in the two arrays below
        self._ids = array("I")
        self._values = array("d")

    def add_id(self, offset: int, logprobs: Logprobs) -> None:
        """Add an id. `logprobs`: the id's own first, then the likeliest ids."""
        self._offsets.append(offset)
        self._ids.extend([id_ for id_, _ in logprobs])
        self._values.extend([value for _, value in logprobs])
        self._ends.append(len(self._ids))

    def extend(self, other: DrawnIds) -> None:
        before = len(self._ids)
        self._offsets.extend(other._offsets)
        self._ids.extend(other._ids)
        self._values.extend(other._values)
        self._ends.extend([before + end for end in other._ends])

    def __len__(self) -> int:
        return len(self._offsets)

    def token(self, at: int) -> tuple[int, Logprobs]:
        """The offset and the logprobs of one id."""
        start, end = self._ends[at - 1] if at else 0, self._ends[at]
        return self._offsets[at], list(zip(self._ids[start:end], self._values[start:end], strict=True))


class PromptReport:
    """The log probabilities of one prompt's tokens, in the order of their parts. The first token has NaN, which JSON
    writes as null."""

    __slots__ = ("_chars", "_detokenizer", "_echoed", "_listed", "echoed", "listed", "ranks")

    def __init__(self, ids: list[int], detokenizer: Detokenizer, *, echoed: int | None, listed: int | None) -> None:
        """`echoed`, `listed`: the likeliest ids beside each token in the texts' logprobs, and in a list of the prompt
        alone; None: the answer has no such list."""
        self.echoed, self.listed = DrawnIds(), DrawnIds()
        self.ranks = array("i", [0])  # of each token
        self._echoed, self._listed = echoed, listed
        self._detokenizer = detokenizer
        self._chars = 0
        self._add([(ids[0], math.nan)])

    def add_part(self, part: PromptLogprobs) -> None:
        ids, values, width = array("i", part.ids), array("f", part.values), part.width
        for start in range(0, len(ids), width):
            stop = start + width
            self._add(list(zip(ids[start:stop], values[start:stop], strict=True)))
        self.ranks.frombytes(part.ranks)

    def _add(self, logprobs: Logprobs) -> None:
        for drawn, count in ((self.echoed, self._echoed), (self.listed, self._listed)):
            if count is not None:
                drawn.add_id(self._chars, logprobs[: 1 + count])
        self._chars += len(self._detokenizer.push_ids([logprobs[0][0]]))


class DrawnTexts(DrawnIds):
    """The logprobs of tokens without ids of the tokenizer: their ids are indices in `vocabulary`."""

    __slots__ = ("vocabulary",)

    def __init__(self, vocabulary: TokenTexts) -> None:
        super().__init__()
        self.vocabulary = vocabulary


class TokenTexts:
    """Numbers the tokens of one text, given as bytes, in the order of their first use."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._tokens: list[bytes] = []

    def id_of(self, token: bytes) -> int:
        id_ = self._ids.setdefault(token, len(self._tokens))
        if id_ == len(self._tokens):
            self._tokens.append(token)
        return id_

    def token_bytes(self, id_: int) -> bytes:
        return self._tokens[id_]


class OutputReader(Protocol):
    """Turns the output of one stream into one text."""

    tokens: int  # that the shown text took

    @property
    def reasoning(self) -> int:
        """The reasoning tokens, which `tokens` counts too."""
        ...

    @property
    def stopped(self) -> bool:
        """A stop sequence ended the text."""
        ...

    @property
    def matched(self) -> str | None:
        """The stop sequence that ended the text."""
        ...

    def push_output(self, output: Output, logprobs: Sequence[Logprobs] = ()) -> str:
        """The new text that may be shown."""
        ...

    def take_drawn(self) -> DrawnIds:
        """The logprobs of the tokens counted since the last call."""
        ...

    def flush_text(self) -> str:
        """The text that was held back, once the stream has ended."""
        ...


class TextOfIds:
    """Reads one text of an engine that answers with ids. `tokens` counts the ids up to and including the id that
    completed a stop sequence. An id among `stop_ids` ends the text and is not shown. Stop sequences are searched only
    after `min_tokens` ids."""

    reasoning: ClassVar[int] = 0

    __slots__ = ("_bulk", "_chars", "_detokenizer", "_drawn", "_min_tokens", "_scanner", "_stop_ids", "tokens")

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: list[str],
        stop_ids: Collection[int] = (),
        min_tokens: int = 0,
        *,
        offset: int = 0,
    ) -> None:
        """`offset`: of the first token, after an echoed prompt."""
        self.tokens = 0
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._bulk = not stops
        self._chars = offset
        self._drawn = DrawnIds()

    @property
    def stopped(self) -> bool:
        return self._scanner.stopped

    @property
    def matched(self) -> str | None:
        """The stop sequence that ended the text."""
        return self._scanner.matched

    def push_ids(self, ids: list[int], logprobs: Sequence[Logprobs] = ()) -> str:
        """The new text that may be shown. Ids after a stop sequence are not counted and not shown. `logprobs`: one
        entry for each id, or empty; `take_drawn` returns the entries of the counted ids."""
        if self._bulk and not logprobs:
            self.tokens += len(ids)
            return self._detokenizer.push_ids(ids if ids[-1] not in self._stop_ids else ids[:-1])
        shown = ""
        for at, id_ in enumerate(ids):
            if self._scanner.stopped:
                break
            self.tokens += 1
            if logprobs:
                self._drawn.add_id(self._chars, logprobs[at])
            text = "" if id_ in self._stop_ids else self._detokenizer.push_ids([id_])
            self._chars += len(text)
            shown += text if self.tokens <= self._min_tokens else self._scanner.push_text(text)
        return shown

    push_output = push_ids  # the same function: a token takes no further call

    def take_drawn(self) -> DrawnIds:
        """The logprobs of the ids counted since the last call."""
        drawn, self._drawn = self._drawn, DrawnIds()
        return drawn

    def flush_text(self) -> str:
        """The text that was held back, once the stream has ended."""
        if self._scanner.stopped:
            return ""
        shown = self._scanner.push_text(self._detokenizer.flush_text())
        return shown if self._scanner.stopped else shown + self._scanner.flush_text()


class TextOfTexts:
    """Reads one text of an engine that answers with text. `tokens` counts whole pieces, up to and including the piece
    that completed a stop sequence: a piece cannot be divided, as only the engine knows its tokens. Stop sequences are
    searched only after `min_tokens` tokens."""

    __slots__ = ("_chars", "_drawn", "_min_tokens", "_scanner", "_vocabulary", "reasoning", "tokens")

    def __init__(self, stops: list[str], min_tokens: int = 0) -> None:
        self.tokens = 0
        self.reasoning = 0
        self._scanner = StopScanner(stops)
        self._min_tokens = min_tokens
        self._chars = 0
        self._vocabulary = TokenTexts()
        self._drawn = DrawnTexts(self._vocabulary)

    @property
    def stopped(self) -> bool:
        return self._scanner.stopped

    @property
    def matched(self) -> str | None:
        return self._scanner.matched

    def push_output(self, output: Output, logprobs: Sequence[Logprobs] = ()) -> str:
        """`output`: pieces of text, which have their logprobs with them."""
        shown = ""
        for piece in output:
            if self._scanner.stopped:
                break
            self._push_piece(piece)
            unscanned = self.tokens <= self._min_tokens
            shown += piece.text if unscanned else self._scanner.push_text(piece.text)
        return shown

    def _push_piece(self, piece: OutputText) -> None:
        self.tokens += piece.tokens
        offset = self._chars
        for alternatives in piece.logprobs:
            ids = [(self._vocabulary.id_of(token), logprob) for token, logprob in alternatives]
            self._drawn.add_id(offset, ids)
            offset += len(alternatives[0][0].decode(errors="ignore"))
        self._chars += len(piece.text)

    def take_drawn(self) -> DrawnIds:
        drawn, self._drawn = self._drawn, DrawnTexts(self._vocabulary)
        return drawn

    def flush_text(self) -> str:
        return "" if self._scanner.stopped else self._scanner.flush_text()
