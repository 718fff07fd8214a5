"""One answer, of one text or several, between the owner task that writes it and the HTTP exchange that reads it.

The owner never waits for the reader: unread text is kept here, bounded by max_tokens. An answer knows no socket, no
engine and no money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal

import msgspec

from gateway.api.pooling.vectors import PooledVectors
from gateway.errors import ApiError
from gateway.generation.endings import EndingCode
from gateway.generation.logprobs import piecewise
from gateway.generation.text import DrawnIds, PromptReport
from gateway.tools.parts import Part, join_parts

# More unread pieces than these are joined: a reader that does not read costs its text, and not one object a token.
PIECES_MAX = 64


FinishReason = Literal["stop", "length", "tool_calls"]


class TokenUsage(msgspec.Struct, frozen=True):
    """The tokens of an answer, for every API. `cached`: of `prompt`; `reasoning`: of `completion`. `engines`: the
    completion tokens made so far by engine epoch, which may be more; for the ledger."""

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0
    engines: dict[str, int] = {}


class TextPiece(msgspec.Struct, frozen=True, gc=False):
    """A new piece of one of the texts. `first`: no piece of this text was read before."""

    index: int
    first: bool
    text: str
    drawn: DrawnIds | None
    parts: list[Part] | None = None  # set for an answer in parts, whose text is in them


class EarlyEnding(msgspec.Struct, frozen=True):
    """Why an answer ends early: for the books, and for its caller."""

    ending: EndingCode
    error: ApiError


class AnswerText:
    """One of the answer's texts. Logprobs are held back until the text of their tokens is complete, or the end."""

    __slots__ = ("_drawn", "_opened", "_parts", "_pieces", "finish_reason", "index", "matched", "prompt")

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.matched: str | None = None  # the stop sequence that ended it
        self.prompt: PromptReport | None = None  # if requested, once all of it was reported
        self._opened = False
        self._pieces: list[str] = []
        self._parts: list[Part] | None = None
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

    def add_parts(self, parts: list[Part], drawn: DrawnIds | None) -> None:
        """Add to an answer in parts."""
        self._parts = parts if self._parts is None else self._parts + parts
        if len(self._parts) > PIECES_MAX:
            self._parts = join_parts(self._parts)
        self.add_text("", drawn)

    def take_piece(self, last: bool) -> TextPiece:
        """The pieces added since the last call. `last`: the answer has ended."""
        pieces, drawn = self._pieces, self._drawn
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        pieces.clear()
        parts = self._parts
        if parts is not None:
            self._parts = []
            parts = join_parts(parts)
        if drawn:
            if text or parts or last:
                self._drawn = None
            else:
                drawn = None
        first, self._opened = not self._opened, True
        return TextPiece(self.index, first, text, drawn, parts)


class Answer:
    """Written by one owner, read by one reader, on one event loop."""

    __slots__ = (
        "_abort",
        "_changed",
        "_granting",
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
        "pooled",
        "record_end",
        "render",
        "texts",
        "usage",
    )

    def __init__(self, texts: int = 1, *, stream: bool, pooled: PooledVectors | None = None) -> None:
        """`stream` False: only the end wakes the reader. `pooled`: of an answer about the prompts' vectors."""
        self._stream = stream
        self.pooled = pooled
        self.granted: int | None = None  # completion tokens of all texts, once they are held
        self.model: str | None = None  # the name shown to the caller; None while a fallback may still serve
        self.begun = False  # it has a token
        self.left = False  # the reader has left
        self.cut: EarlyEnding | None = None  # the reason to end it early, for every reader
        self.texts = [AnswerText(index) for index in range(texts)]
        self.usage: TokenUsage | None = None  # set without an error; then each text has its finish_reason
        self.error: ApiError | None = None
        self.ended = False  # settled, or failed
        # Renders the body in parts; set if the body is stored (Idempotency-Key) before the settlement.
        self.render: Callable[[Answer], Iterator[bytes]] | None = None
        self.body: bytes | None = None  # rendered by `render`
        # Stores the rest of an answer that is stored in pieces, before its settlement: with its usage, and its error.
        self.record_end: Callable[[TokenUsage, ApiError | None], Awaitable[None]] | None = None
        self._granting: asyncio.Future[None] | None = None  # of `wait_granted`
        self._changed: dict[int, None] = {}  # indexes of the texts with something to read, in order
        self._waiter: asyncio.Future[None] | None = None
        self._abort: Callable[[], None] | None = None
        self._push: Callable[[], None] | None = None

    # ---- the owner's side

    def on_leave(self, abort: Callable[[], None]) -> None:
        """Set what to do when the reader leaves or the answer is cut; if that has happened already, it is done now."""
        self._abort = abort
        if self.left or self.cut is not None:
            abort()

    def grant(self, tokens: int) -> None:
        """The tokens are held, and the request may run."""
        self.granted = tokens
        if self._granting is not None and not self._granting.done():
            self._granting.set_result(None)

    def add_text(self, index: int, text: str, drawn: DrawnIds | None = None) -> None:
        """Add to one text; "" for tokens without text that may be shown yet."""
        self.begun = True
        self.texts[index].add_text(text, drawn)
        self._changed[index] = None
        if self._push is not None:
            self._push()
        elif self._stream:
            self.wake()

    def add_parts(self, index: int, parts: list[Part], drawn: DrawnIds | None = None) -> None:
        """Add parts to one text; none for tokens whose part is not known yet."""
        self.texts[index].add_parts(parts, drawn)
        self.add_text(index, "")

    async def spell(self, usage: TokenUsage) -> bytes:
        """The body to store of an answer without an error, before the answer ends for its reader."""
        assert self.render is not None
        self.usage = usage
        self.body = b"".join([part async for part in piecewise(self.render(self))])
        return self.body

    def finish_answer(self, usage: TokenUsage) -> None:
        self.usage = usage
        self._close_answer()

    def fail(self, error: ApiError) -> None:
        self.error = error
        self._close_answer()

    def _close_answer(self) -> None:
        self._abort = self._push = self.render = self.record_end = None  # breaks reference cycles
        self.ended = True
        if self._granting is not None and not self._granting.done():
            self._granting.set_result(None)
        self.wake()

    # ---- the reader's side

    def take_pieces(self) -> list[TextPiece]:
        """The pieces added since the last call, by text."""
        changed, self._changed = self._changed, {}
        texts, ended = self.texts, self.ended
        return [texts[index].take_piece(ended) for index in changed]

    def take_all(self) -> list[TextPiece]:
        """The rest of every text. Call it after the end."""
        assert self.usage is not None or self.error is not None
        self._changed.clear()
        return [text.take_piece(True) for text in self.texts]

    async def wait_granted(self) -> None:
        """Returns once tokens are held, or the answer has ended without."""
        if self.granted is None and not self.ended:
            self._granting = asyncio.get_running_loop().create_future()
            await self._granting

    def has_news(self) -> bool:
        return bool(self._changed)

    async def changed(self) -> None:
        """Returns when something is added, the answer ends, or `wake` is called. Check `has_news` before: earlier
        additions do not end the wait."""
        assert self._waiter is None, "an answer has one reader"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def pushed(self, push: Callable[[], None]) -> None:
        """Like `changed`, but an addition does not end the wait. Instead `push` is called inside the owner's `add`: it
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
        """Stop the generation for every reader: for the reason `cut`, or because the process stops."""
        if self.ended:
            return
        self.cut = self.cut or cut
        if self._abort is not None:
            self._abort()

    def leave(self) -> None:
        """The caller has left. Idempotent; without effect after the end."""
        if self.left or self.ended:
            return
        self.left = True
        if self._abort is not None:
            self._abort()
        self.wake()
