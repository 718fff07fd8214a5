"""One answer in the making, between the task that owns its generation and the HTTP exchange that reads it: one text or
several.

The owner writes and never waits for the reader: what is not read yet lies here, as text, bounded by max_tokens. It
must never know a socket, an engine or money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from gateway.errors import ApiError
from gateway.generation.logprobs import piecewise
from gateway.generation.text import DrawnIds

# Pieces that lie unread are joined beyond so many: a reader who does not read costs its text, not an object a token.
PIECES_MAX = 64


FinishReason = Literal["stop", "length"]


class TokenUsage(msgspec.Struct, frozen=True):
    """What an answer used, whichever API it is said in. `cached`: of `prompt`."""

    prompt: int
    cached: int
    completion: int


class TextPiece(msgspec.Struct, frozen=True, gc=False):
    """What is new of one text. `first`: nothing of it was read before."""

    index: int
    first: bool
    text: str
    drawn: DrawnIds | None


class EarlyEnding(msgspec.Struct, frozen=True):
    """Why an answer ends before its time: in a word, and for its caller."""

    ending: str
    error: ApiError


class AnswerText:
    """One of the answer's texts. Logprobs wait for the text that their ids show, or for the end."""

    __slots__ = ("_drawn", "_opened", "_pieces", "finish_reason", "index", "matched")

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.matched: str | None = None  # the stop sequence that ended it
        self._opened = False
        self._pieces: list[str] = []
        self._drawn: DrawnIds | None = None

    def add_text(self, text: str, drawn: DrawnIds | None) -> None:
        if text:
            self._pieces.append(text)
            if len(self._pieces) > PIECES_MAX:
                self._pieces[:] = ["".join(self._pieces)]
        if drawn:
            if self._drawn is None:
                self._drawn = drawn
            else:
                self._drawn.extend(drawn)

    def take_piece(self, last: bool) -> TextPiece:
        """What came since the last call. `last`: nothing more will come."""
        pieces, drawn = self._pieces, self._drawn
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        pieces.clear()
        if drawn:
            if text or last:
                self._drawn = None
            else:
                drawn = None
        first, self._opened = not self._opened, True
        return TextPiece(self.index, first, text, drawn)


class Answer:
    """Written by one owner, read by one reader, on one event loop."""

    __slots__ = (
        "_abort",
        "_changed",
        "_push",
        "_stream",
        "_waiter",
        "begun",
        "body",
        "cut",
        "ended",
        "error",
        "granted",
        "left",
        "model",
        "texts",
        "usage",
        "whole",
    )

    def __init__(self, texts: int = 1, *, stream: bool) -> None:
        """Without `stream` the reader is woken by the end alone."""
        self._stream = stream
        self.granted: int | None = None  # completion tokens of all texts, once they are held
        self.model: str | None = None  # as the caller is told it; None while another may yet serve
        self.begun = False  # the first token is here
        self.left = False  # the reader is gone
        self.cut: EarlyEnding | None = None  # it is to end, whoever reads
        self.texts = [AnswerText(index) for index in range(texts)]
        self.usage: TokenUsage | None = None  # of an answer that ends well; then each text has its finish_reason
        self.error: ApiError | None = None
        self.ended = False  # settled, or failed
        # Makes the parts of the body; set if the body is stored (Idempotency-Key) before the settlement.
        self.whole: Callable[[Answer], Iterator[bytes]] | None = None
        self.body: bytes | None = None  # what `whole` made
        self._changed: dict[int, None] = {}  # indexes of the texts with something to read, in order
        self._waiter: asyncio.Future[None] | None = None
        self._abort: Callable[[], None] | None = None
        self._push: Callable[[], None] | None = None

    # ---- the owner's side

    def on_leave(self, abort: Callable[[], None]) -> None:
        """What to do when the reader leaves or the answer is cut; done at once when that was already."""
        self._abort = abort
        if self.left or self.cut is not None:
            abort()

    def add_text(self, index: int, text: str, drawn: DrawnIds | None = None) -> None:
        """More of one text; "" when tokens came that show nothing yet."""
        self.begun = True
        self.texts[index].add_text(text, drawn)
        self._changed[index] = None
        if self._push is not None:
            self._push()
        elif self._stream:
            self.wake()

    async def spell(self, usage: TokenUsage) -> bytes:
        """The body of an answer that will end well, for whoever keeps it; its reader is not told yet."""
        assert self.whole is not None
        self.usage = usage
        self.body = b"".join([part async for part in piecewise(self.whole(self))])
        return self.body

    def finish_answer(self, usage: TokenUsage) -> None:
        self.usage = usage
        self._close_answer()

    def fail(self, error: ApiError) -> None:
        self.error = error
        self._close_answer()

    def _close_answer(self) -> None:
        self._abort = self._push = self.whole = None  # breaks reference cycles
        self.ended = True
        self.wake()

    # ---- the reader's side

    def take_pieces(self) -> list[TextPiece]:
        """What came since the last call, of each text that has something new."""
        changed, self._changed = self._changed, {}
        texts, ended = self.texts, self.ended
        return [texts[index].take_piece(ended) for index in changed]

    def take_all(self) -> list[TextPiece]:
        """When no more comes: all that was not taken, of every text."""
        assert self.usage is not None or self.error is not None
        self._changed.clear()
        return [text.take_piece(True) for text in self.texts]

    def has_news(self) -> bool:
        return bool(self._changed)

    async def changed(self) -> None:
        """Until something is added, it ends, or `wake` is called. Look first: what came before is not announced."""
        assert self._waiter is None, "an answer has one reader"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def pushed(self, push: Callable[[], None]) -> None:
        """As `changed`, but an addition does not end the wait. Instead `push` is called inside the owner's `add`: it
        takes the addition, must not raise, and calls `stop_pushing` to end the wait."""
        self._push = push
        try:
            await self.changed()
        finally:
            self._push = None

    def stop_pushing(self) -> None:
        self._push = None
        self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def stop(self, cut: EarlyEnding | None = None) -> None:
        """Stop the generation, whoever reads: because the process ends, or for what `cut` says."""
        if self.ended:
            return
        self.cut = self.cut or cut
        if self._abort is not None:
            self._abort()

    def leave(self) -> None:
        """The caller is gone. Idempotent; after the end it means nothing."""
        if self.left or self.ended:
            return
        self.left = True
        if self._abort is not None:
            self._abort()
        self.wake()
